// SPDX-License-Identifier: BSD-2-Clause
// VMA_HANDLE_SIGINTR and VMA_HANDLE_SIGSEGV: what the library does when a signal is about to end the program.
#pragma once

namespace vma::runtime::fatal_signals {

// Sets what the library does before a process ends in good order. An upper layer sets it when the library is
// loaded.
void set_end(void (*end)() noexcept) noexcept;

// interrupt: where SIGINT would end the program (SIG_DFL), the internal thread calls the function of
// set_end() first. A program's own handler runs as always, and the program ends in good order when it calls
// exit(). A second SIGINT does not wait for the first.
//
// fault: SIGSEGV writes a backtrace to the log, with the names that the dynamic linker knows and module
// offsets for addr2line. Then comes the program's handler, or the signal's default action, core dump
// included. The process writes only a few backtraces in its life, because some programs recover from faults.
// A stack overflow gives a backtrace only where the program has given the thread an alternate stack.
//
// Call once for a process, after signals::start(), and again in a forked child that starts the library anew.
void start(bool interrupt, bool fault) noexcept;

}  // namespace vma::runtime::fatal_signals
