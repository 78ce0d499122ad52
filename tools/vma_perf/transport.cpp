// SPDX-License-Identifier: BSD-2-Clause
// The table of transports. A row's functions are in the transport's own folder.
#include "tools/vma_perf/transport.h"

#include "tools/vma_perf/raw/sessions.h"
#include "tools/vma_perf/rdma/sessions.h"
#include "tools/vma_perf/sockets/sessions.h"

namespace vma_perf {
namespace {

const TransportType kTransports[] = {
    {"udp", "UDP sockets of the kernel or, preloaded, of libvma", false, sockets::kMaxDatagram, nullptr,
     sockets::check_udp, sockets::serve_udp, sockets::connect_udp},
    {"tcp", "TCP sockets of the kernel or, preloaded, of libvma", true, sockets::kMaxStreamMessage, nullptr,
     sockets::check_tcp, sockets::serve_tcp, sockets::connect_tcp},
    {"rc", "reliable connections of RDMA devices, by RDMA-CM", true, rdma::kMaxRcMessage, rdma::add_options,
     rdma::check_rc, rdma::serve_rc, rdma::connect_rc, Wait::nonblocking},
    {"ud", "unreliable datagrams of RDMA devices", false, rdma::kMaxUdMessage, nullptr,
     rdma::check_ud, rdma::serve_ud, rdma::connect_ud, Wait::nonblocking},
    {"raw", "UDP datagrams over libvma's device layer, without sockets", false, raw::kMaxMessage, raw::add_options, raw::check,
     raw::serve, raw::connect, Wait::nonblocking, "device"},
};

}  // namespace

std::span<const TransportType> transports() noexcept { return kTransports; }

const TransportType& transport(const std::string& name) {
    for (const TransportType& type : kTransports)
        if (name == type.name) return type;
    throw Failure(kUnsupported, "this vma_perf has no transport " + name);
}

}  // namespace vma_perf
