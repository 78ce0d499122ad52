// SPDX-License-Identifier: BSD-2-Clause
// Any text as libvma.conf: it must be read to its end, and the rules it gives must answer every question.
#include <string_view>

#include "libvma/config/rules.h"
#include "tests/fuzz/input.h"

using namespace vma::config;
using vma::net::Endpoint;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    fuzz::Exact exact({data, size});
    std::string_view text(reinterpret_cast<const char*>(exact.data()), size);
    Complaints complaints;
    const RuleTable rules = RuleTable::parse(text, "program", "id", complaints);
    for (const auto& complaint : complaints) {
        FUZZ_CHECK(!complaint.empty() && complaint.size() < 1000);
        for (char c : complaint) FUZZ_CHECK(c >= ' ' && c <= '~');
    }
    const Endpoint endpoints[] = {{0, 0},
                                  {htonl(0xc6120001), htons(5001)},
                                  {htonl(0xe0000001), htons(65535)},
                                  {htonl(0xffffffff), htons(1)}};
    for (Role role :
         {Role::tcp_server, Role::tcp_client, Role::udp_sender, Role::udp_receiver, Role::udp_connect}) {
        const bool all_os = rules.all_os(role) != nullptr;
        for (const Endpoint& first : endpoints) {
            const Verdict alone = rules.match(role, first, nullptr);
            if (all_os) FUZZ_CHECK(alone.os());
            if (alone.rule == nullptr) {
                FUZZ_CHECK(!alone.os());
                continue;
            }
            // A rule is named as it would be written, so reading that gives the same answer.
            const std::string_view named = *alone.rule;
            FUZZ_CHECK(named.starts_with("libvma.conf:") && named.size() < 300);
            Complaints none;
            const RuleTable again =
                RuleTable::parse(named.substr(named.find(": ") + 2), "program", "*", none);
            FUZZ_CHECK(again.match(role, first, nullptr).transport == alone.transport);
            for (const Endpoint& second : endpoints) rules.match(role, first, &second);
        }
    }
    return 0;
}
