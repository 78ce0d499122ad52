// SPDX-License-Identifier: BSD-2-Clause
// The statistics segment: its layout, socket blocks, descriptions under readers, fork, exec; and what counts
// into it.
#include <dirent.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <set>
#include <sstream>
#include <thread>

#include "libvma/config/params.h"
#include "libvma/runtime/runtime.h"
#include "libvma/stats/mux.h"
#include "libvma/stats/report.h"
#include "libvma/stats/socket_counters.h"
#include "libvma/stats/stats_memory.h"
#include "tests/stats/stats_directory.h"
#include "tests/support/child.h"

namespace {

using namespace vma::stats;
using vma::test::in_child;

class StatsSegment : public vma::test::StatsDirectory {
  protected:
    std::unique_ptr<StatsMemory> make(unsigned sockets, std::vector<ParameterBlock> parameters = {}) {
        std::string why;
        auto segment = StatsMemory::create({sockets, directory_, std::move(parameters)}, why);
        EXPECT_EQ(why, "");
        EXPECT_NE(segment, nullptr);
        return segment;
    }
    std::string file() const { return directory_ + "/vmastat." + std::to_string(getpid()); }
    bool exists() const { return access(file().c_str(), F_OK) == 0; }
    // The process's own segment, in this directory.
    void start(const char* sockets) {
        setenv("VMA_STATS_SHMEM_DIR", directory_.c_str(), 1);
        setenv("VMA_STATS_FD_NUM", sockets, 1);
        vma::stats::start();
        ASSERT_NE(current(), nullptr);
    }
};

TEST_F(StatsSegment, LayoutTellsTheTruth) {
    ParameterBlock parameter{};
    put_text(parameter.name, "VMA_RX_POLL");
    for (unsigned sockets : {0u, 1u, 100u, 1024u, 5000u}) {
        auto segment = make(sockets, {parameter});
        struct stat s {};
        ASSERT_EQ(stat(file().c_str(), &s), 0);
        const Header& h = segment->header();
        EXPECT_EQ(std::memcmp(h.magic, kMagic, sizeof kMagic), 0);
        EXPECT_EQ(h.version, kVersion);
        EXPECT_EQ(h.header_size, sizeof(Header));
        EXPECT_EQ(h.file_size, static_cast<std::uint64_t>(s.st_size));
        EXPECT_EQ(h.pid, static_cast<std::uint32_t>(getpid()));
        EXPECT_EQ(h.uid, geteuid());
        EXPECT_EQ(h.life, static_cast<std::uint32_t>(Life::running));
        EXPECT_GT(h.start_ticks, 0u);
        EXPECT_EQ(text_of(h.program), "unit_tests");
        std::uint64_t end = sizeof(Header);
        std::set<std::uint32_t> kinds;
        for (const SectionEntry& e : h.sections) {
            if (e.kind == 0) continue;
            kinds.insert(e.kind);
            EXPECT_GE(e.offset, end) << "sections do not overlap";
            EXPECT_EQ(e.offset % 8, 0u);
            EXPECT_EQ(e.block_size % 8, 0u);
            end = e.offset + std::uint64_t{e.block_size} * e.blocks;
            EXPECT_LE(end, h.file_size);
            if (e.kind == static_cast<std::uint32_t>(Section::sockets)) {
                EXPECT_EQ(e.blocks, std::min(sockets, 1024u));
            }
        }
        EXPECT_EQ(kinds.size(), 7u);
        EXPECT_EQ(text_of(segment->parameter(0).name), "VMA_RX_POLL");
        segment.reset();
        EXPECT_FALSE(exists()) << "it goes with the segment";
    }
}

TEST_F(StatsSegment, PrivateMemoryWhereThereCanBeNoFile) {
    std::string why;
    auto segment = StatsMemory::create({3, directory_ + "/none", {}}, why);
    ASSERT_NE(segment, nullptr);
    EXPECT_NE(why.find("cannot be opened"), std::string::npos) << why;
    EXPECT_FALSE(segment->is_file());
    EXPECT_NE(segment->take_socket(), nullptr);
    why.clear();
    segment = StatsMemory::create({3, "", {}}, why);
    ASSERT_NE(segment, nullptr);
    EXPECT_EQ(why, "") << "none was wanted";
    EXPECT_FALSE(segment->is_file());
    segment = StatsMemory::create({3, std::string(5000, 'x'), {}}, why);
    ASSERT_NE(segment, nullptr);
    EXPECT_NE(why.find("too long"), std::string::npos);
}

TEST_F(StatsSegment, DirectoryWithProcessId) {
    const std::string with_pid = directory_ + "/" + std::to_string(getpid());
    ASSERT_EQ(mkdir(with_pid.c_str(), 0700), 0);
    std::string why;
    auto segment = StatsMemory::create({1, directory_ + "/%d", {}}, why);
    EXPECT_EQ(why, "");
    EXPECT_EQ(segment->path(), with_pid + "/vmastat." + std::to_string(getpid()));
}

TEST_F(StatsSegment, SocketBlocksAreFew) {
    auto segment = make(3);
    std::set<SocketBlock*> blocks;
    std::set<std::uint64_t> ids;
    for (int i = 0; i < 3; i++) {
        SocketBlock* block = segment->take_socket();
        ASSERT_NE(block, nullptr);
        EXPECT_EQ(&segment->socket(segment->index_of(block)), block);
        blocks.insert(block);
        ids.insert(block->id);
        block->rx_os.bytes = 7;
        EXPECT_EQ(block->sequence % 2, 0u);
    }
    EXPECT_EQ(blocks.size(), 3u);
    EXPECT_EQ(segment->take_socket(), nullptr);
    SocketBlock* one = *blocks.begin();
    segment->give_socket(one);
    EXPECT_EQ(one->state, 0u);
    EXPECT_EQ(segment->take_socket(1), nullptr) << "one is to be spared";
    EXPECT_EQ(segment->take_socket(), one);
    EXPECT_EQ(one->rx_os.bytes, 0u);
    EXPECT_FALSE(ids.contains(one->id));
    EXPECT_EQ(make(0)->take_socket(), nullptr);
}

// A reader copies descriptions while a writer changes them: what it takes is never half of each.
TEST_F(StatsSegment, DescriptionsAreReadWhole) {
    auto segment = make(1);
    SocketBlock* block = segment->take_socket();
    std::atomic<bool> stop{false};
    std::uint64_t taken = 0, torn = 0;
    const int fd = open(file().c_str(), O_RDONLY | O_CLOEXEC);
    const auto size = static_cast<std::size_t>(segment->header().file_size);
    const auto* view = static_cast<const std::byte*>(mmap(nullptr, size, PROT_READ, MAP_SHARED, fd, 0));
    close(fd);
    ASSERT_NE(view, MAP_FAILED);
    const auto* seen = reinterpret_cast<const SocketBlock*>(
        view + (reinterpret_cast<std::byte*>(block) - reinterpret_cast<std::byte*>(&segment->header())));
    std::thread reader([&] {
        while (!stop.load()) {
            SocketBlock copy;
            const std::uint32_t before = __atomic_load_n(&seen->sequence, __ATOMIC_ACQUIRE);
            std::memcpy(static_cast<void*>(&copy), static_cast<const void*>(seen), sizeof copy);
            std::atomic_thread_fence(std::memory_order_acquire);
            if (before % 2 != 0 || before != __atomic_load_n(&seen->sequence, __ATOMIC_RELAXED)) continue;
            taken++;
            const std::string_view detail = text_of(copy.detail);
            torn += detail != std::string(detail.size(), static_cast<char>('a' + copy.fd)) ||
                    (copy.fd != 0 && detail.size() != 90);
        }
    });
    for (int i = 0; i < 200000 || (taken == 0 && i < 100'000'000); i++) {
        Describe guard(block->sequence);
        ASSERT_TRUE(guard);
        block->fd = 1 + i % 20;
        put_text(block->detail, std::string(90, static_cast<char>('a' + block->fd)));
    }
    stop = true;
    reader.join();
    munmap(const_cast<std::byte*>(view), size);
    EXPECT_GT(taken, 0u);
    EXPECT_EQ(torn, 0u);
}

TEST_F(StatsSegment, AnInterruptedDescriptionIsGivenUp) {
    std::uint32_t sequence = 0;
    {
        Describe first(sequence);
        ASSERT_TRUE(first);
        Describe second(sequence);
        EXPECT_FALSE(second) << "a signal handler must not wait for the thread it interrupted";
    }
    EXPECT_EQ(sequence, 2u);
    EXPECT_TRUE(Describe(sequence));
}

TEST_F(StatsSegment, TextsAreCut) {
    char text[8];
    put_text(text, "0123456789");
    EXPECT_STREQ(text, "0123456");
    put_text(text, "");
    EXPECT_EQ(text_of(text), "");
    std::memset(text, 'x', sizeof text);
    EXPECT_EQ(text_of(text).size(), 8u) << "a reader needs no terminating zero";
}

TEST_F(StatsSegment, EndsAndComesBack) {
    auto segment = make(2);
    segment->totals(0).sockets = 5;
    const int fd = open(file().c_str(), O_RDONLY | O_CLOEXEC);
    segment->end();
    EXPECT_FALSE(exists());
    Header held{};
    ASSERT_EQ(pread(fd, &held, sizeof held, 0), static_cast<ssize_t>(sizeof held));
    EXPECT_EQ(held.life, static_cast<std::uint32_t>(Life::ended)) << "who has it open sees that it is over";
    segment->end();
    segment->resume();
    EXPECT_TRUE(exists());
    EXPECT_EQ(segment->header().life, static_cast<std::uint32_t>(Life::running));
    EXPECT_EQ(segment->totals(0).sockets, 5u);
    segment->totals(0).sockets = 6;
    ASSERT_EQ(pread(fd, &held, sizeof held, 0), static_cast<ssize_t>(sizeof held));
    EXPECT_EQ(held.life, static_cast<std::uint32_t>(Life::ended)) << "the old one is left behind";
    close(fd);
}

TEST_F(StatsSegment, LeavesNoDescriptorOpen) {
    auto count = [] {
        int n = 0;
        DIR* d = opendir("/proc/self/fd");
        while (readdir(d) != nullptr) n++;
        closedir(d);
        return n;
    };
    const int before = count();
    auto segment = make(10);
    EXPECT_EQ(count(), before);
}

// ---- the process's own ----

TEST_F(StatsSegment, ForkedChildWritesElsewhere) {
    const auto outcome = in_child([&] {
        start("5");
        SocketBlock* block = current()->take_socket();
        block->rx_os.bytes = 1;
        EXPECT_TRUE(exists());
        const std::string parents = file();
        const pid_t child = fork();
        if (child == 0) {
            block->rx_os.bytes = 99;  // what is left of the parent's objects
            bool good = current() == nullptr;
            end();
            good &= access(parents.c_str(), F_OK) == 0;
            vma::stats::start();
            good &= current() != nullptr && exists() && file() != parents;
            good &= current()->header().pid == static_cast<std::uint32_t>(getpid()) &&
                    current()->take_socket() != nullptr;
            end();
            good &= !exists();
            _exit(good ? 0 : 1);
        }
        int status = -1;
        waitpid(child, &status, 0);
        EXPECT_EQ(status, 0);
        EXPECT_EQ(block->rx_os.bytes, 1u);
        EXPECT_TRUE(exists());
        end();
        EXPECT_FALSE(exists());
        resume();
        EXPECT_TRUE(exists());
        end();
    });
    EXPECT_TRUE(outcome.passed()) << outcome.output;
}

TEST_F(StatsSegment, AnothersFileIsLeftAlone) {
    if (geteuid() != 0) GTEST_SKIP() << "needs root to make files of others";
    const auto outcome = in_child([&] {
        std::ofstream(file()) << "theirs";
        ASSERT_EQ(chown(file().c_str(), 12345, 12345), 0);
        start("5");
        EXPECT_FALSE(current()->is_file());
        EXPECT_NE(current()->take_socket(), nullptr);
        end();
        std::ifstream in(file());
        std::string text;
        in >> text;
        EXPECT_EQ(text, "theirs");
    });
    EXPECT_TRUE(outcome.passed()) << outcome.output;
    EXPECT_NE(outcome.output.find("belongs to another user"), std::string::npos) << outcome.output;
}

TEST_F(StatsSegment, ParametersWithValues) {
    const auto outcome = in_child([&] {
        start("7");
        bool found = false;
        const auto values = vma::config::values();
        for (unsigned i = 0; i < values.size(); i++) {
            const ParameterBlock& p = current()->parameter(i);
            EXPECT_EQ(text_of(p.name), values[i].name);
            if (text_of(p.name) != "VMA_STATS_FD_NUM") continue;
            found = true;
            EXPECT_EQ(text_of(p.value), "7");
            EXPECT_EQ(text_of(p.origin), "environment");
        }
        EXPECT_TRUE(found);
    });
    EXPECT_TRUE(outcome.passed()) << outcome.output;
}

// ---- counting ----

TEST_F(StatsSegment, CountsInBlocksAndTotals) {
    const auto outcome = in_child([&] {
        start("1");
        SocketCounters first, second;
        first.open(Protocol::udp, 10, SOCK_DGRAM, true);
        second.open(Protocol::udp, 11, SOCK_DGRAM, true);
        ASSERT_NE(first.block(), nullptr);
        EXPECT_EQ(second.block(), nullptr) << "VMA_STATS_FD_NUM is 1";
        EXPECT_EQ(current()->header().sockets_unseen, 1u);
        for (SocketCounters* tally : {&first, &second}) {
            tally->moved(TrafficPath::rx_offload, 100, true);
            tally->moved(TrafficPath::tx_os, 20, false);
            tally->eagain(TrafficPath::rx_os);
            tally->failed(TrafficPath::tx_offload);
            tally->result(TrafficPath::rx_os, -EAGAIN);
            tally->result(TrafficPath::rx_os, -ECONNREFUSED);
            tally->dropped(50);
            tally->queued(3, 300);
            tally->came(Arrived::slept);
        }
        const SocketBlock& b = *first.block();
        EXPECT_EQ(b.rx_offload.packets, 1u);
        EXPECT_EQ(b.rx_offload.bytes, 100u);
        EXPECT_EQ(b.rx_os.eagain, 2u);
        EXPECT_EQ(b.rx_os.errors, 1u);
        EXPECT_EQ(b.rx_drop_bytes, 50u);
        EXPECT_EQ(b.rx_queue_max_packets, 3u);
        EXPECT_EQ(b.rx_poll_miss, 1u);
        EXPECT_NE(b.rx_thread, 0);
        EXPECT_TRUE(active(b));

        const TotalsBlock& t = current()->totals(kTotalsUdp);
        EXPECT_EQ(t.sockets, 2u);
        EXPECT_EQ(t.rx_offload.packets, 0u) << "in stripes, until somebody looks";
        collect_totals();
        EXPECT_EQ(t.rx_offload.packets, 1u);
        EXPECT_EQ(t.tx_os.bytes, 20u);
        EXPECT_EQ(t.rx_drop_packets, 1u);
        first.close();
        EXPECT_EQ(t.rx_offload.packets, 2u);
        EXPECT_EQ(t.rx_os.eagain, 4u);
        EXPECT_EQ(t.tx_offload.errors, 2u);
        second.close();
        EXPECT_EQ(current()->totals(kTotalsTcp).rx_offload.packets, 0u);
        first.open(Protocol::tcp, 10, SOCK_STREAM, true);
        EXPECT_NE(first.block(), nullptr) << "the block is free again";
        EXPECT_FALSE(active(*first.block()));
        first.close();
        end();
    });
    EXPECT_TRUE(outcome.passed()) << outcome.output;
}

TEST_F(StatsSegment, ManyThreadsLoseNoCount) {
    const auto outcome = in_child([&] {
        start("1");
        SocketCounters seen, unseen;
        seen.open(Protocol::udp, 1, SOCK_DGRAM, true);
        unseen.open(Protocol::udp, 2, SOCK_DGRAM, true);
        std::vector<std::thread> threads;
        for (int i = 0; i < 4; i++)
            threads.emplace_back([&] {
                for (int n = 0; n < 50000; n++) {
                    seen.moved(TrafficPath::tx_os, 3, false);
                    unseen.moved(TrafficPath::tx_os, 3, n % 2 == 0);
                    if (n % 1000 == 0) collect_totals();
                }
            });
        for (auto& thread : threads) thread.join();
        collect_totals();
        EXPECT_EQ(seen.block()->tx_os.packets, 200000u);
        EXPECT_EQ(current()->totals(kTotalsUdp).tx_os.packets, 200000u);
        EXPECT_EQ(current()->totals(kTotalsUdp).tx_os.bytes, 600000u);
        end();
    });
    EXPECT_TRUE(outcome.passed()) << outcome.output;
}

TEST_F(StatsSegment, DecisionsWithTexts) {
    const auto outcome = in_child([&] {
        start("1");
        SocketCounters tally;
        tally.open(Protocol::udp, 1, SOCK_DGRAM, true);
        const SocketBlock& b = *tally.block();
        EXPECT_EQ(b.rx_reason, static_cast<std::uint16_t>(Reason::not_bound));
        tally.decided(Direction::rx, {Path::offloaded, Reason::none, {}, "no rule"});
        EXPECT_EQ(text_of(b.rule), "no rule");
        tally.decided(Direction::tx,
                      {Path::kernel, Reason::rule, {}, "libvma.conf:3: use os udp_sender *:*"});
        EXPECT_EQ(b.tx_path, static_cast<std::uint8_t>(Path::kernel));
        EXPECT_EQ(text_of(b.rule), "libvma.conf:3: use os udp_sender *:*");
        tally.decided(Direction::rx, {Path::offloaded, Reason::none, {}, "no rule"});
        EXPECT_EQ(text_of(b.rule), "libvma.conf:3: use os udp_sender *:*") << "the one that matters stays";
        const std::uint32_t sequence = b.sequence;
        tally.decided(Direction::tx,
                      {Path::kernel, Reason::rule, {}, "libvma.conf:3: use os udp_sender *:*"});
        EXPECT_EQ(b.sequence, sequence) << "nothing new, nothing written";
        for (unsigned r = 0; r < static_cast<unsigned>(Reason::count_); r++)
            EXPECT_STRNE(reason_text(static_cast<Reason>(r)), "unknown reason") << r;
        tally.close();
        end();
    });
    EXPECT_TRUE(outcome.passed()) << outcome.output;
}

TEST_F(StatsSegment, KernelSocketsTakeFewBlocksAndGo) {
    const auto outcome = in_child([&] {
        start("8");
        std::vector<int> fds;
        auto in_use = [&] {
            unsigned n = 0;
            for (unsigned i = 0; i < 8; i++) n += current()->socket(i).state != 0;
            return n;
        };
        for (int i = 0; i < 8; i++) {
            fds.push_back(socket(AF_UNIX, SOCK_DGRAM, 0));
            note_kernel_socket(fds.back(), AF_INET6, SOCK_DGRAM, Reason::not_inet, "IPv6");
        }
        EXPECT_EQ(in_use(), 6u) << "a quarter stays for sockets of ours";
        forget_closed_kernel_sockets();
        EXPECT_EQ(in_use(), 6u);
        for (int fd : fds) close(fd);
        const int again = socket(AF_UNIX, SOCK_DGRAM, 0);  // the first number, another socket
        note_kernel_socket(again, AF_INET6, SOCK_DGRAM, Reason::not_inet, "IPv6");
        EXPECT_EQ(in_use(), 6u);
        forget_closed_kernel_sockets();
        EXPECT_EQ(in_use(), 1u);
        end();
    });
    EXPECT_TRUE(outcome.passed()) << outcome.output;
}

TEST_F(StatsSegment, Muxes) {
    const auto outcome = in_child([&] {
        start("1");
        count_call(calls_of(Mux::poll), 3, 2, Arrived::polled);
        count_call(calls_of(Mux::poll), 0, 0, Arrived::slept);
        count_call(calls_of(Mux::poll), -EINTR, 0, Arrived::slept);
        count_call(calls_of(Mux::select), 1, 1, Arrived::there);
        collect_muxes();
        const MuxBlock& p = current()->mux(0);
        EXPECT_EQ(p.state, 1u);
        EXPECT_EQ(p.kind, static_cast<std::uint32_t>(Mux::poll));
        EXPECT_EQ(p.calls, 3u);
        EXPECT_EQ(p.rx_ready_offload, 2u);
        EXPECT_EQ(p.rx_ready_os, 1u);
        EXPECT_EQ(p.timeouts, 1u);
        EXPECT_EQ(p.errors, 1u);
        EXPECT_EQ(p.poll_hit, 1u);
        EXPECT_EQ(current()->mux(1).rx_ready_offload, 1u);
        std::vector<MuxBlock*> sets;
        for (int i = 0; i < 40; i++) sets.push_back(open_epoll(100 + i));
        EXPECT_EQ(sets[30]->fd, 130);
        EXPECT_EQ(sets[31]->fd, -1) << "the last block is for many";
        EXPECT_EQ(sets[39], sets[31]);
        close_epoll(sets[0]);
        EXPECT_EQ(sets[0]->state, 0u);
        EXPECT_EQ(open_epoll(7), sets[0]);
        zero_muxes();
        EXPECT_EQ(p.calls, 0u);
        end();
    });
    EXPECT_TRUE(outcome.passed()) << outcome.output;
}

// ---- reports ----

TEST_F(StatsSegment, ReportAsInTheManual) {
    SocketBlock b{};
    b.fd = 10;
    b.type = SOCK_DGRAM;
    b.tx_offload = b.rx_offload = {233020, 466040, 0, 0};
    b.rx_queue_max_bytes = 200;
    b.rx_queue_max_packets = 1;
    b.rx_queue_limit = 2000000;
    b.rx_poll_hit = 233020;
    const auto lines = report_lines(b);
    ASSERT_EQ(lines.size(), 8u);
    EXPECT_EQ(lines[1], "[fd=10] Tx Offload: 455 KB / 233020 / 0 [bytes/packets/errors]");
    EXPECT_EQ(lines[2], "[fd=10] Tx OS info: 0 KB / 0 / 0 [bytes/packets/errors]");
    EXPECT_EQ(lines[3], "[fd=10] Rx Offload: 455 KB / 233020 / 0 [bytes/packets/errors]");
    EXPECT_EQ(lines[4], "[fd=10] Rx OS info: 0 KB / 0 / 0 [bytes/packets/errors]");
    EXPECT_EQ(lines[5], "[fd=10] Rx byte: max 200 / dropped 0 (0.00%) / limit 2000000");
    EXPECT_EQ(lines[6], "[fd=10] Rx pkt : max 1 / dropped 0 (0.00%)");
    EXPECT_EQ(lines[7], "[fd=10] Rx poll: 0 / 233020 (100.00%) [miss/hit]");
    EXPECT_GT(dump_lines(b).size(), 8u);
}

TEST_F(StatsSegment, ReportFileIsSafe) {
    const std::string name = directory_ + "/report";
    const auto outcome = in_child([&] {
        setenv("VMA_STATS_FILE", (name + ".%d").c_str(), 1);
        const std::string mine = name + "." + std::to_string(getpid());
        SocketBlock b{};
        b.rx_os = {1, 1, 0, 0};
        EXPECT_TRUE(reports_wanted());
        report(b);
        report(b);
        struct stat s {};
        ASSERT_EQ(stat(mine.c_str(), &s), 0);
        EXPECT_EQ(s.st_mode & 0777, 0600u);
        std::ifstream in(mine);
        std::string line;
        int lines = 0;
        while (std::getline(in, line)) {
            lines++;
            EXPECT_EQ(line.rfind("VMA: [fd=0] ", 0), 0u) << line;
        }
        EXPECT_EQ(lines, 12) << "appended";
        unlink(mine.c_str());
        std::ofstream(name) << "precious";
        ASSERT_EQ(symlink(name.c_str(), mine.c_str()), 0);
        report(b);
        std::ifstream victim(name);
        std::string text;
        victim >> text;
        EXPECT_EQ(text, "precious");
        unlink(mine.c_str());
        ASSERT_EQ(mkfifo(mine.c_str(), 0600), 0);
        report(b);  // returns
    });
    EXPECT_TRUE(outcome.passed()) << outcome.output;
    EXPECT_NE(outcome.output.find("VMA_STATS_FILE"), std::string::npos) << outcome.output;
}

}  // namespace
