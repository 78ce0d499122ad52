// SPDX-License-Identifier: BSD-2-Clause
// For tests that call a layer of the library themselves: being on one of two hosts for a while, and addresses
// there.
#pragma once

#include <linux/bpf.h>
#include <netinet/in.h>

#include <cstdint>
#include <span>
#include <string>

#include "two_hosts.h"

namespace testing_support {

// This thread is on another host while the object lives. Sockets stay where they were made. Throws
// std::runtime_error.
class On {
  public:
    On(const TwoHosts& hosts, Host host);
    ~On();
    On(const On&) = delete;
    On& operator=(const On&) = delete;

  private:
    Fd before_;
};

// A packet socket on an interface of the host where this thread is, which receives frames of `protocol` (in
// network byte order; 0: none). Empty when the kernel refuses it.
Fd packet_socket(const std::string& interface, std::uint16_t protocol = 0);

// A tcx program on an interface of the host where this thread is. It is there as long as the descriptor;
// empty when the kernel refuses it. `name`: of the program.
enum class Tcx { ingress, egress };
Fd tcx_program(const std::string& interface, Tcx where, std::span<const bpf_insn> program,
               const char* name = "");

// What that is made of. `attach`: of the kernel's enumeration, as a link's and, where the kernel asks for it,
// as the program's. Both empty when the kernel refuses.
Fd load_program(bpf_prog_type type, std::span<const bpf_insn> program, const char* name = "", int attach = 0);
Fd link_program(const Fd& program, std::uint32_t target, int attach);

sockaddr_in socket_address(const std::string& ip, std::uint16_t port);

}  // namespace testing_support
