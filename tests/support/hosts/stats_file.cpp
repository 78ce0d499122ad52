// SPDX-License-Identifier: BSD-2-Clause
#include "stats_file.h"

#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <iterator>

namespace testing_support {

using namespace vma::stats;

bool StatsFile::exists() const { return access(path_.c_str(), F_OK) == 0; }

bool StatsFile::read() {
    std::ifstream in(path_, std::ios::binary);
    std::vector<char> text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
    bytes_.resize(text.size());
    if (!text.empty()) std::memcpy(bytes_.data(), text.data(), text.size());
    return bytes_.size() >= sizeof(Header) && std::memcmp(header().magic, kMagic, sizeof kMagic) == 0 &&
           header().version == kVersion && header().file_size == bytes_.size();
}

const Header& StatsFile::header() const { return *reinterpret_cast<const Header*>(bytes_.data()); }

template <class Block>
std::vector<Block> StatsFile::blocks(Section kind) const {
    std::vector<Block> out;
    for (const SectionEntry& e : header().sections) {
        if (e.kind != static_cast<std::uint32_t>(kind)) continue;
        for (std::uint32_t i = 0; i < e.blocks; i++) {
            Block block;
            std::memcpy(static_cast<void*>(&block), bytes_.data() + e.offset + std::size_t{i} * e.block_size,
                        sizeof block);
            if constexpr (requires { block.state; })
                if (block.state == 0) continue;
            out.push_back(block);
        }
    }
    return out;
}

std::vector<SocketBlock> StatsFile::sockets() const { return blocks<SocketBlock>(Section::sockets); }
std::vector<RingBlock> StatsFile::rings() const { return blocks<RingBlock>(Section::rings); }
std::vector<MuxBlock> StatsFile::muxes() const { return blocks<MuxBlock>(Section::muxes); }
std::vector<GroupBlock> StatsFile::groups() const { return blocks<GroupBlock>(Section::groups); }
std::vector<TotalsBlock> StatsFile::totals() const { return blocks<TotalsBlock>(Section::totals); }

std::optional<SocketBlock> StatsFile::socket(int type, int local_port) const {
    for (const SocketBlock& b : sockets())
        if (b.type == type && b.local.port == local_port && b.tcp_state != 10) return b;
    return std::nullopt;
}

Answer command(const TwoHosts& hosts, Host host, const StatsFile& file, Command what, int value, int level) {
    StatsFile now = file;
    Answer none{0, -1, {}};
    if (!now.read()) return none;
    auto* answer = static_cast<Answer*>(
        mmap(nullptr, sizeof(Answer), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    *answer = none;
    Process process = hosts.run(host, [&] {
        const std::string name(now.header().command_socket,
                               strnlen(now.header().command_socket, sizeof now.header().command_socket));
        sockaddr_un address{};
        address.sun_family = AF_UNIX;
        std::memcpy(address.sun_path + 1, name.data(), name.size());
        const int fd = ::socket(AF_UNIX, SOCK_SEQPACKET, 0);
        timeval limit{5, 0};
        setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
        const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
        const Request request{kControlMagic, kVersion, static_cast<std::uint32_t>(what), value, level, 0};
        if (connect(fd, reinterpret_cast<const sockaddr*>(&address), length) != 0 ||
            send(fd, &request, sizeof request, 0) != static_cast<ssize_t>(sizeof request) ||
            recv(fd, answer, sizeof *answer, 0) != static_cast<ssize_t>(sizeof *answer))
            return 1;
        return 0;
    });
    const bool good = process.wait().ok();
    const Answer result = good ? *answer : none;
    munmap(answer, sizeof *answer);
    return result;
}

bool refresh(const TwoHosts& hosts, Host host, StatsFile& file) {
    return command(hosts, host, file, Command::refresh).error == 0 && file.read();
}

}  // namespace testing_support
