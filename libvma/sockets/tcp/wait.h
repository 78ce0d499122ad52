// SPDX-License-Identifier: BSD-2-Clause
// TcpCore::wait(): how a blocking call on a TCP socket waits; see wait_loop.h.
#pragma once

#include "libvma/runtime/signal_hold.h"
#include "libvma/sockets/tcp/core.h"
#include "libvma/sockets/wait_loop.h"

namespace vma::sockets {

template <class F>
int TcpCore::wait(int fd, Waiting& w, F&& ready) {
    const std::int64_t limit = config::get().rx_poll;
    PollTime time;
    Pin pin(transport_);  // one for all rounds: it costs more than a look at an empty queue
    for (;; pin.look_again()) {
        progress(pin);
        if (ready()) return 0;
        if (closed()) return -EBADF;
        switch (w.next(limit)) {
            case Waiting::Next::poll:
                flush(pin);  // what polling has answered must not wait for the flusher
                w.pause(time);
                continue;
            case Waiting::Next::interrupted:
                return w.error();
            case Waiting::Next::late:
                return -EAGAIN;
            case Waiting::Next::sleep:
                break;
        }
        time.stop();
        runtime::SignalHold hold;  // released last, see Sleep
        if (w.interrupted()) return w.error();
        w.slept = true;
        Sleep sleep(*this, fd);
        do {
            sleep.arm();
            pin.look_again();
            progress(pin);
            if (ready() || closed() || w.interrupted()) break;
            if (int error = sleep.run(w.deadline, hold.original()))
                return error == -EAGAIN && ready() ? 0 : error;
        } while (sleep.goes_on());
        w.spins = 0;
    }
}

}  // namespace vma::sockets
