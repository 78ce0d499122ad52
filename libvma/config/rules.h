// SPDX-License-Identifier: BSD-2-Clause
// The rules of libvma.conf: which sockets the library serves and which it leaves to the kernel.
//
//   application-id <program> <id>                 begins a block; * and ? work in <program> as in file names
//   use <transport> <role> <addr>:<ports>[:<addr>:<ports>]
//   log { destination <stderr|syslog|file <name>> | min-level <number> }
//
//   transport   vma, os; * (see RuleTable::match); sdp and sa are reported and ignored
//   role        tcp_server, tcp_client, udp_sender, udp_receiver, udp_connect
//   addr        a.b.c.d[/prefix], [IPv6 address][/prefix] or *             ports   number[-number] or *
//
// A statement is a line; # begins a comment anywhere; blanks are free around every token. A line with a
// mistake is reported and skipped; the other lines count. Rules below a wrong application-id are skipped,
// too, because their program is unknown. Rules before the first application-id belong to the block `* *`;
// naming a block again continues it. Only the first block that fits the program decides. Blocks and rules
// that can never decide are reported. A rule fits addresses of its family only, and the library offloads IPv4
// only; so IPv6 addresses fit no socket. `log` is
// accepted for old files and changes nothing (VMA_TRACELEVEL and VMA_LOG_FILE set up the log).
//
// docs/configuration.md tells users the same.
#pragma once

#include <netinet/in.h>

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "libvma/config/params.h"
#include "libvma/net/address.h"
#include "libvma/runtime/error.h"

namespace vma::config {

enum class Role { tcp_server, tcp_client, udp_sender, udp_receiver, udp_connect };
enum class Transport { vma, os };

// The rules' answer, and the rule that gave it.
struct Verdict {
    Transport transport = Transport::vma;
    // "libvma.conf:12: use os udp_sender *:53", or null when no rule fits. The RuleTable owns the text; the
    // process's own (rules()) is never destroyed.
    const std::string* rule = nullptr;

    bool os() const noexcept { return transport == Transport::os; }
    const char* text() const noexcept { return rule != nullptr ? rule->c_str() : "no rule"; }
};

class RuleTable {
  public:
    // Parses the rules that apply to a program called `program` (no path) with application id `app_id`.
    // Complaints name line and column, "line 3, column 14: ...". `text` may be any bytes. `file` is the name
    // for Verdict::rule. `called` is the name the program was started by, if that is a different one (a link
    // to the program).
    static RuleTable parse(std::string_view text, std::string_view program, std::string_view app_id,
                           Complaints& complaints, std::string_view file = "libvma.conf",
                           std::string_view called = {});

    // The same rules with those of `other` before them.
    RuleTable behind(const RuleTable& other) const;
    bool empty() const noexcept;

    // The first rule for `role` that fits, else vma. `first` is the local endpoint of a server or receiver
    // (or the group), and the remote one of a client, sender or connected socket. `second`, the local
    // endpoint of a client or connected socket, may be null; then second addresses of rules do not count.
    // Transport * means os for tcp_client, udp_connect and unicast receivers, else vma: VMA has always read
    // it so.
    Verdict match(Role role, const net::Endpoint& first, const net::Endpoint* second) const;

    // The rule that leaves every endpoint to the kernel for `role`, or null. With such a rule the library
    // need not look at a socket of IPv4 at all. Ownership as in Verdict::rule.
    const std::string* all_os(Role role) const;

  private:
    enum class Word { vma, os, any };
    struct Addresses {
        sa_family_t family = AF_UNSPEC;        // AF_UNSPEC: *
        std::uint8_t prefix = 0;               // bits that count
        std::array<std::uint8_t, 16> bytes{};  // network order; IPv4: the first four
        std::uint16_t low = 0, high = 65535;   // ports, in the machine's order
        bool matches(const net::Endpoint& endpoint) const noexcept;
        // Is `address` one of the family that this names? * names both.
        bool same_family(const net::Address& address) const noexcept {
            return family == AF_UNSPEC || (family == AF_INET) == address.is_v4();
        }
        // Does this fit every endpoint that `other` fits?
        bool covers(const Addresses& other) const noexcept;
        bool everything() const noexcept {
            return family != AF_INET6 && prefix == 0 && low == 0 && high == 65535;
        }
    };
    struct Rule {
        Word transport;
        Addresses first;
        std::optional<Addresses> second;
        std::string text;  // Verdict::rule
        bool covers(const Rule& other) const noexcept;
    };
    using Lists = std::array<std::vector<Rule>, 5>;  // by role
    class Parser;

    Lists lists_;
};

// The process's rules, read on first use from VMA_CONFIG_FILE for this program and VMA_APPLICATION_ID.
// Complaints go to the log. Without the file there are no rules, so every socket may be offloaded.
const RuleTable& rules() noexcept;

// Puts the rule in `line` before all others, for sockets that ask from now on. Errors: EINVAL and what is
// wrong with the line.
Result<void> add_rule(std::string_view line) noexcept;

// rules().match(), with a line in the log. At level info the line appears the first time that a rule leaves a
// socket to the kernel, at level debug always.
Verdict decide(Role role, const net::Endpoint& first, const net::Endpoint* second) noexcept;

}  // namespace vma::config
