// SPDX-License-Identifier: BSD-2-Clause
// Calls by which a program gives up CAP_NET_ADMIN: see sockets/privileges.h. libc makes them in all threads.
// The library does not follow changes that a thread makes for itself alone, by syscall().
#include <linux/capability.h>
#include <linux/securebits.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "libvma/os/raw_syscall.h"
#include "libvma/preload/guard.h"
#include "libvma/sockets/handover/privileges.h"
#include "libvma/sockets/stack.h"

using namespace vma;
using namespace vma::preload;

namespace {

// capabilities(7): does a change of the effective user leave the effective set alone?
bool keeps_capabilities() noexcept {
    const long bits = os::raw_syscall(SYS_prctl, PR_GET_SECUREBITS);
    return bits > 0 && (bits & (SECBIT_NO_SETUID_FIXUP | SECBIT_KEEP_CAPS)) != 0;
}

template <class F>
int change(bool drops, F&& call) noexcept {
    if (sockets::Stack::running() == nullptr || table_is_foreign()) return call();
    if (drops) {
        NotCancelled hold;
        sockets::privileges::before_drop();
    }
    const int result = call();
    sockets::privileges::changed();
    return result;
}

bool leaves_root(uid_t effective) noexcept {
    return effective != static_cast<uid_t>(-1) && effective != 0 && geteuid() == 0 && !keeps_capabilities();
}

}  // namespace

VMA_EXPORT int setuid(uid_t user) noexcept {
    return change(leaves_root(user), [&] { return os::setuid(user); });
}
VMA_EXPORT int seteuid(uid_t user) noexcept {
    return change(leaves_root(user), [&] { return os::seteuid(user); });
}
VMA_EXPORT int setreuid(uid_t real, uid_t effective) noexcept {
    return change(leaves_root(effective), [&] { return os::setreuid(real, effective); });
}
VMA_EXPORT int setresuid(uid_t real, uid_t effective, uid_t saved) noexcept {
    return change(leaves_root(effective), [&] { return os::setresuid(real, effective, saved); });
}
// libcap calls this one. The first element has the capabilities below 32.
VMA_EXPORT int capset(cap_user_header_t header, const cap_user_data_t data) noexcept {
    const bool drops = header != nullptr && data != nullptr && (data[0].effective >> CAP_NET_ADMIN & 1) == 0;
    return change(drops, [&] { return os::capset(header, data); });
}
