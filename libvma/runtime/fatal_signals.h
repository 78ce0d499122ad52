// SPDX-License-Identifier: BSD-2-Clause
// VMA_HANDLE_SIGINTR and VMA_HANDLE_SIGSEGV: what the library does when a signal is about to end the program.
#pragma once

namespace vma::runtime::fatal_signals {

// What the library does before a process ends in good order. Set by the layer that knows, when the library is
// loaded.
void set_end(void (*end)() noexcept) noexcept;

// interrupt: where SIGINT would end the program (SIG_DFL), the internal thread calls the function of
// set_end() first. A program with a handler of its own has it called as always, and ends in good order when
// it calls exit(). A second SIGINT does not wait for the first.
//
// fault: SIGSEGV writes a backtrace to the log, with the names that the dynamic linker knows and module
// offsets for addr2line; then comes the program's handler, or what the signal does by default, core dump
// included. Programs that recover from faults get a few backtraces in the life of the process, not one for
// each. A stack overflow is told only where the program has given the thread an alternate stack.
//
// Once for a process, after signals::start(); again in a forked child that starts the library anew.
void start(bool interrupt, bool fault) noexcept;

}  // namespace vma::runtime::fatal_signals
