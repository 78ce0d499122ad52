// SPDX-License-Identifier: BSD-2-Clause
// The functions of the extra API's table (include/mellanox/vma_extra*.h say what each one does), and what
// they have in common.
#pragma once

#include <errno.h>
#include <pthread.h>
#include <sys/socket.h>

#include "libvma/preload/guard.h"
#include "libvma/sockets/extra_socket.h"
#include "libvma/sockets/user_memory.h"
#include "mellanox/vma_extra.h"
#include "mellanox/vma_extra2.h"

namespace vma::api {

// -1 with errno for a -errno; other results as they are.
inline int answer(int result) noexcept {
    if (result >= 0) return result;
    errno = -result;
    return -1;
}

// call(ExtraSocket&) for a socket of the library: a result or -errno. EINVAL for all other descriptors.
template <class F>
inline int on_socket(int fd, F&& call) noexcept {
    preload::NotCancelled inside;
    if (auto socket = preload::ours(fd))
        if (sockets::ExtraSocket* extra = socket->extra(); extra != nullptr) return answer(call(*extra));
    return answer(-EINVAL);
}

// receive.cpp, callbacks.cpp
int register_recv_callback(int fd, vma_recv_callback_t callback, void* context) noexcept;
int recvfrom_zcopy(int fd, void* buf, size_t len, int* flags, sockaddr* from, socklen_t* fromlen);
int free_packets(int fd, vma_packet_t* packets, size_t count) noexcept;

// send_buffers.cpp
int get_send_buffers(int fd, vma_send_buffer_t* buffers, unsigned count, const sockaddr* to,
                     socklen_t tolen) noexcept;
int send_zcopy(int fd, void* id, size_t length, int flags, const sockaddr* to, socklen_t tolen);
int free_send_buffer(void* id) noexcept;

// settings.cpp
int add_conf_rule(const char* line) noexcept;
int thread_offload(int offload, pthread_t thread) noexcept;
int dump_fd_stats(int fd, int log_level) noexcept;
int ioctl(void* cmsg, size_t cmsg_len) noexcept;
int register_memory(void* addr, size_t* length) noexcept;

// rings.cpp
int get_socket_rings_num(int fd) noexcept;
int get_socket_rings_fds(int fd, int* ring_fds, int count) noexcept;
int get_socket_tx_ring_fd(int fd, sockaddr* to, socklen_t tolen) noexcept;
int get_socket_network_header(int fd, void* header, uint16_t* len) noexcept;
int vma_modify_ring(vma_modify_ring_attr* attr) noexcept;

// ring_choice.cpp
int vma_add_ring_profile(vma_ring_type_attr* profile, int* key) noexcept;
// SO_VMA_RING_ALLOC_LOGIC: 0 or -errno.
int choose_ring(int fd, const void* value, socklen_t length) noexcept;

// socketxtreme.cpp
int socketxtreme_poll(int ring_fd, vma_completion_t* completions, unsigned count, int flags);
int socketxtreme_free_vma_packets(vma_packet_desc_t* packets, int count) noexcept;
int socketxtreme_ref_vma_buff(vma_buff_t* buffer) noexcept;
int socketxtreme_free_vma_buff(vma_buff_t* buffer) noexcept;

}  // namespace vma::api
