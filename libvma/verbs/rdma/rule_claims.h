// SPDX-License-Identifier: BSD-2-Clause
// Which process has a rule of the adapter.
//
// An adapter gives a copy of a frame to each QP that has its rule. So of several processes with sockets on
// one port (SO_REUSEPORT, SO_REUSEADDR) all would answer. One process at a time has such a rule; the kernel
// serves the others' sockets until that process lets go of it.
//
// A claim is a lock of one byte on the device's file, which all processes that use the adapter have open. The
// lock belongs to the open file (F_OFD_SETLK of fcntl(2)). So it ends when the rules end, however the process
// ends, and it costs no descriptor.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "libvma/runtime/lock.h"

namespace vma::verbs::rdma {

class RuleClaims {
  public:
    // `fd`: the device's open file, whose owner outlives this object; its number may change.
    explicit RuleClaims(const int& fd) noexcept : fd_(fd) {}
    ~RuleClaims();
    RuleClaims(const RuleClaims&) = delete;
    RuleClaims& operator=(const RuleClaims&) = delete;

    // `freed` is called, on the internal thread, when another process may have let go of a rule that claim()
    // could not have.
    void on_freed(std::function<void()> freed);

    // `claim`: of claim_of(); 0 needs none. False: another process has the rule. A file that knows no locks
    // refuses nothing.
    bool claim(std::uint64_t claim) noexcept;
    void release(std::uint64_t claim) noexcept;

  private:
    struct Waiting {
        Lock lock;  // a leaf
        std::function<void()> freed;
        std::vector<std::uint64_t> claims;  // that other processes had
        bool looking = false;
        bool closed = false;
    };
    bool wait_for(std::uint64_t claim);
    static bool look(Waiting& waiting, const int& fd);

    const int& fd_;
    std::shared_ptr<Waiting> waiting_ = std::make_shared<Waiting>();  // shared with the internal thread
};

}  // namespace vma::verbs::rdma
