// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/sockets/membership_options.h"

#include <errno.h>
#include <netinet/in.h>

#include <algorithm>
#include <iterator>

#include "libvma/config/params.h"
#include "libvma/os/raw_syscall.h"
#include "libvma/runtime/clock.h"

namespace vma::sockets {
namespace {

using Change = MembershipOption::Change;
using Form = MembershipOption::Form;
constexpr MembershipOption kOptions[] = {
    {IP_ADD_MEMBERSHIP, Change::join, Form::mreq, false},
    {IP_DROP_MEMBERSHIP, Change::leave, Form::mreq, false},
    {IP_ADD_SOURCE_MEMBERSHIP, Change::join, Form::addresses, true},
    {IP_DROP_SOURCE_MEMBERSHIP, Change::leave, Form::addresses, true},
    {IP_BLOCK_SOURCE, Change::filter, Form::addresses, true},
    {IP_UNBLOCK_SOURCE, Change::filter, Form::addresses, true},
    {IP_MSFILTER, Change::filter, Form::addresses, false},
    {MCAST_JOIN_GROUP, Change::join, Form::index, false},
    {MCAST_LEAVE_GROUP, Change::leave, Form::index, false},
    {MCAST_JOIN_SOURCE_GROUP, Change::join, Form::index, true},
    {MCAST_LEAVE_SOURCE_GROUP, Change::leave, Form::index, true},
    {MCAST_BLOCK_SOURCE, Change::filter, Form::index, true},
    {MCAST_UNBLOCK_SOURCE, Change::filter, Form::index, true},
    {MCAST_MSFILTER, Change::filter, Form::index, false},
};

}  // namespace

const MembershipOption* find_membership_option(int name) noexcept {
    const auto* found = std::ranges::find(kOptions, name, &MembershipOption::name);
    return found != std::end(kOptions) ? found : nullptr;
}

void wait_after_join() noexcept {
    const auto wait = clock::Msec(static_cast<clock::Msec::rep>(config::get().wait_after_join_msec));
    if (wait.count() == 0) return;
    const timespec until = clock::to_timespec((clock::monotonic() + wait).time_since_epoch());
    while (os::raw_syscall(SYS_clock_nanosleep, CLOCK_MONOTONIC, TIMER_ABSTIME, &until, nullptr) == -EINTR) {
    }
}

}  // namespace vma::sockets
