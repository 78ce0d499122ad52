// SPDX-License-Identifier: BSD-2-Clause
// The extra API on a connection: what the program keeps, and what its callback judges.
#include <errno.h>

#include "libvma/tcp/connection.h"
#include "libvma/tcp/lwip/pcb.h"

namespace vma::tcp {

ssize_t Connection::lend(LentData& out, unsigned most, bool undecided, std::size_t bytes) noexcept {
    if (!enter()) return -EWOULDBLOCK;
    ssize_t result;
    if (__builtin_expect(tcb_.freeze.away(), 0)) {
        result = -EREMOTE;
    } else {
        if (!undecided) tcb_.sender.program_reads();
        result = tcb_.receiver.lend(out, most, undecided, bytes);
        if (result == 0) result = undecided ? -EAGAIN : nothing_to_read(0, 0);
    }
    leave();
    return result;
}

void Connection::given_back(std::uint32_t charge) noexcept {
    tcb_.receiver.given_back(charge);
    if (!enter()) return;  // the interrupted call, or the next one, opens the window
    const bool live = tcb_.pcb != nullptr && !tcb_.phase.orphan && !tcb_.freeze.away();
    if (live && !tcb_.pcb->in(State::time_wait)) tcb_.receiver.open_window();
    leave();
}

void Connection::filter(bool on) noexcept {
    if (!enter()) return;
    tcb_.receiver.set_filtered(on);
    leave();
}

void Connection::judged(LentData* data) noexcept {
    if (!enter()) return;
    ref();  // data's reference may be the last one
    tcb_.receiver.judged(data);
    leave();
    unref();
}

void Connection::decide_all() noexcept {
    if (!enter()) return;
    tcb_.receiver.decide_all();
    leave();
}

int Connection::network_header(void* out, std::size_t room) noexcept {
    if (!enter()) return -ENOTCONN;
    int length = -ENOTCONN;
    if (tcb_.pcb != nullptr && tcb_.phase.established && !tcb_.freeze.away())
        length = tcb_.writer.headers(out, room);
    leave();
    return length;
}

}  // namespace vma::tcp
