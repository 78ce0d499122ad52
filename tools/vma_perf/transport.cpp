// SPDX-License-Identifier: BSD-2-Clause
// The table of transports. What a row says is in the transport's own folder.
#include "tools/vma_perf/transport.h"

#include "tools/vma_perf/raw/sessions.h"
#include "tools/vma_perf/rdma/sessions.h"
#include "tools/vma_perf/sockets/sessions.h"

namespace vma_perf {
namespace {

const TransportType* const kTransports[] = {&sockets::kUdp, &sockets::kTcp, &rdma::kRc, &rdma::kUd,
                                            &raw::kRaw};

}  // namespace

std::span<const TransportType* const> transports() noexcept { return kTransports; }

const TransportType& transport(const std::string& name) {
    for (const TransportType* const type : kTransports)
        if (name == type->name) return *type;
    throw Failure(kUnsupported, "this vma_perf has no transport " + name);
}

}  // namespace vma_perf
