// SPDX-License-Identifier: BSD-2-Clause
// Any text as libvma.conf: it must be read to its end, and the rules it gives must answer every question.
#include <string_view>

#include "libvma/config/rules.h"
#include "tests/fuzz/input.h"

using namespace vma::config;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    fuzz::Exact exact({data, size});
    std::string_view text(reinterpret_cast<const char*>(exact.data()), size);
    Complaints complaints;
    const Rules rules = Rules::parse(text, "program", "id", complaints);
    for (const auto& complaint : complaints) FUZZ_CHECK(!complaint.empty());
    const Endpoint endpoints[] = {{0, 0},
                                  {htonl(0xc6120001), htons(5001)},
                                  {htonl(0xe0000001), htons(65535)},
                                  {htonl(0xffffffff), htons(1)}};
    for (Role role :
         {Role::tcp_server, Role::tcp_client, Role::udp_sender, Role::udp_receiver, Role::udp_connect}) {
        const bool all_os = rules.all_os(role) != nullptr;
        for (const Endpoint& first : endpoints) {
            const Transport alone = rules.match(role, first, nullptr).transport;
            FUZZ_CHECK(alone == Transport::vma || alone == Transport::os);
            if (all_os) FUZZ_CHECK(alone == Transport::os);
            for (const Endpoint& second : endpoints) rules.match(role, first, &second);
        }
    }
    return 0;
}
