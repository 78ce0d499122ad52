// SPDX-License-Identifier: BSD-2-Clause
// Messages of other processes: control messages with descriptors (SCM_RIGHTS) as a program receives or sends
// them, of any lengths; and commands to the process on its control socket, from any user.
//
// Input: what to do, then the message.
#include <string.h>
#include <sys/socket.h>

#include <cerrno>

#include "libvma/preload/scm_rights.h"
#include "libvma/stats/control_server.h"
#include "libvma/stats/layout.h"
#include "tests/fuzz/input.h"

namespace {

int g_zeroed, g_dumped;

void descriptors(std::span<const std::uint8_t> bytes) {
    fuzz::Exact control(bytes);
    msghdr message{};
    message.msg_control = bytes.empty() ? nullptr : control.data();
    message.msg_controllen = bytes.size();
    std::size_t seen = 0;
    vma::preload::for_each_passed_fd(message, [&](int) { seen++; });
    FUZZ_CHECK(seen * sizeof(int) <= bytes.size());
}

void command(std::uint8_t who, std::span<const std::uint8_t> bytes) {
    vma::stats::CommandHandlers handlers;
    handlers.zero = []() noexcept { g_zeroed++; };
    handlers.dump = [](int fd, int level) noexcept -> unsigned {
        FUZZ_CHECK(fd >= 0 && level >= 0);
        g_dumped++;
        return fd % 2;
    };
    const int before = g_zeroed + g_dumped;
    fuzz::Exact message(bytes);
    const vma::stats::Answer answer =
        vma::stats::answer_to(message.data(), bytes.size(), who & 3, 1, handlers);
    FUZZ_CHECK(answer.magic == vma::stats::kControlMagic);
    FUZZ_CHECK(strnlen(answer.text, sizeof answer.text) < sizeof answer.text);
    // Only the process's own user and root are heard.
    if ((who & 3) > 1) FUZZ_CHECK(answer.error == EPERM && g_zeroed + g_dumped == before);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    fuzz::Input input(data, size);
    const auto what = input.take<std::uint8_t>();
    if (what % 2) {
        command(what >> 1, input.rest());
    } else {
        descriptors(input.rest());
    }
    return 0;
}
