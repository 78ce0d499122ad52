// SPDX-License-Identifier: BSD-2-Clause
// The table of the extra API, and what answers for functions that this release does not have.
#include "libvma/api/calls.h"
#include "libvma/preload/extra_api.h"
#include "libvma/sockets/extreme.h"

namespace vma::api {
namespace {

// Registered memory is not there.
template <class... Arguments>
int unsupported(Arguments...) noexcept {
    return answer(-EOPNOTSUPP);
}

// The bits of vma_extra_supported_mask.
enum Bit : unsigned {
    has_register_recv_callback = 0,
    has_recvfrom_zcopy = 1,
    has_free_packets = 2,
    has_add_conf_rule = 3,
    has_thread_offload = 4,
    has_dump_fd_stats = 5,
    has_xtreme_poll = 6,
    has_xtreme_free_packets = 7,
    has_xtreme_ref_buff = 8,
    has_xtreme_free_buff = 9,
    has_rings_num = 10,
    has_rings_fds = 11,
    has_tx_ring_fd = 12,
    has_network_header = 13,
    has_add_ring_profile = 16,
    has_modify_ring = 20,
    has_ioctl = 21,
};
template <class... Bits>
constexpr std::uint64_t mask(Bits... bits) noexcept {
    return (... | (std::uint64_t{1} << bits));
}

// With VMA_SOCKETXTREME.
constexpr std::uint64_t kExtremeMask =
    mask(has_xtreme_poll, has_xtreme_free_packets, has_xtreme_ref_buff, has_xtreme_free_buff);

// Not const: the header gives programs a pointer to a plain struct.
constinit vma_api_t g_api = {
    .register_recv_callback = &register_recv_callback,
    .recvfrom_zcopy = &recvfrom_zcopy,
    .free_packets = &free_packets,
    .add_conf_rule = &add_conf_rule,
    .thread_offload = &thread_offload,
    .socketxtreme_poll = &socketxtreme_poll,
    .get_socket_rings_num = &get_socket_rings_num,
    .get_socket_rings_fds = &get_socket_rings_fds,
    .get_socket_tx_ring_fd = &get_socket_tx_ring_fd,
    .socketxtreme_free_vma_packets = &socketxtreme_free_vma_packets,
    .socketxtreme_ref_vma_buff = &socketxtreme_ref_vma_buff,
    .socketxtreme_free_vma_buff = &socketxtreme_free_vma_buff,
    .dump_fd_stats = &dump_fd_stats,
    .vma_add_ring_profile = &vma_add_ring_profile,
    .get_socket_network_header = &get_socket_network_header,
    .get_ring_direct_descriptors = &unsupported<int, vma_mlx_hw_device_data*>,
    .register_memory_on_ring = &unsupported<int, void*, size_t, uint32_t*>,
    .deregister_memory_on_ring = &unsupported<int, void*, size_t>,
    .vma_modify_ring = &vma_modify_ring,
    .vma_extra_supported_mask =
        mask(has_register_recv_callback, has_recvfrom_zcopy, has_free_packets, has_add_conf_rule,
             has_thread_offload, has_dump_fd_stats, has_rings_num, has_rings_fds, has_tx_ring_fd,
             has_network_header, has_add_ring_profile, has_modify_ring, has_ioctl),
    .ioctl = &ioctl,
};

}  // namespace
}  // namespace vma::api

namespace vma::preload {

vma_api_t* extra_api() noexcept {
    if (sockets::ExtremeMember::wanted()) api::g_api.vma_extra_supported_mask |= api::kExtremeMask;
    return &api::g_api;
}

}  // namespace vma::preload
