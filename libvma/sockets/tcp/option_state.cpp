// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/sockets/tcp/option_state.h"

#include <errno.h>

#include "libvma/os/calls.h"
#include "libvma/runtime/errno_kept.h"

namespace vma::sockets {

bool TcpOptionState::note(int level, int name, const void* value, socklen_t len) noexcept {
    try {
        // Accepted sockets share the list, so it is not changed under them.
        if (set_ == nullptr)
            set_ = std::make_shared<OptionLog>();
        else if (set_.use_count() != 1)
            set_ = std::make_shared<OptionLog>(*set_);
        set_->note(level, name, value, len);
        return true;
    } catch (...) {
        return false;
    }
}

void TcpOptionState::inherit(const TcpOptionState& listener, bool with_list) noexcept {
    send_timeout_.store(listener.send_timeout(), std::memory_order_relaxed);
    receive_lowat_.store(listener.receive_lowat(), std::memory_order_relaxed);
    linger_.store(listener.linger(), std::memory_order_relaxed);
    report_inq_.store(listener.report_inq(), std::memory_order_relaxed);
    if (!with_list) return;
    inherited_ = listener.set_;
    has_inherited_.store(inherited_ != nullptr, std::memory_order_relaxed);
}

void TcpOptionState::settle_now(int fd) noexcept {
    if (!has_inherited_.exchange(false)) return;
    const ErrnoKept kept;
    for (const OptionLog::Entry& e : inherited_->entries())
        os::setsockopt(fd, e.level, e.name, e.value.data(), static_cast<socklen_t>(e.value.size()));
    const int none = 0;  // the priority is not inherited, but IP_TOS sets it as well
    os::setsockopt(fd, SOL_SOCKET, SO_PRIORITY, &none, sizeof none);
}

}  // namespace vma::sockets
