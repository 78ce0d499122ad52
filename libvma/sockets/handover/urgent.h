// SPDX-License-Identifier: BSD-2-Clause
// Sockets that have to become the kernel's although the program makes no call: urgent data has come.
//
// A connection notices it while a ring is polled, with locks held and without knowing a descriptor number. It
// rings here, and the internal thread looks for the sockets concerned (Socket::leaving) and hands them over.
// The program learns of the urgent data from the kernel then: POLLPRI, SIGURG, MSG_OOB.
#pragma once

namespace vma::sockets::urgent {

// Before the first connection: makes the bell. Idempotent; without it (no descriptors) a socket is handed
// over when the program calls.
void prepare() noexcept;
// Any thread, any lock, signal handlers.
void ring_bell() noexcept;

}  // namespace vma::sockets::urgent
