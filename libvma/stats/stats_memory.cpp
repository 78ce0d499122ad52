// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/stats/stats_memory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <new>

#include "libvma/config/params.h"
#include "libvma/os/proc_file.h"
#include "libvma/os/raw_syscall.h"
#include "libvma/runtime/clock.h"
#include "libvma/runtime/fork_renewal.h"
#include "libvma/runtime/log.h"
#include "libvma/runtime/pid_name.h"
#include "libvma/runtime/runtime.h"
#include "libvma/stats/counter.h"
#include "libvma/stats/file.h"
#include "libvma/stats/socket_counters.h"
#include "libvma/stats/stale_files.h"

namespace vma::stats {
namespace {

constexpr std::size_t kLine = 64;  // blocks of different sockets share no cache line
constexpr std::size_t round_up(std::size_t n, std::size_t to) noexcept { return (n + to - 1) / to * to; }

std::string program_name() {
    char path[4096];
    const long n = os::raw_syscall(SYS_readlinkat, AT_FDCWD, "/proc/self/exe", path, sizeof path);
    if (n > 0) {
        std::string_view whole(path, static_cast<std::size_t>(n));
        return std::string(whole.substr(whole.rfind('/') + 1));
    }
    std::string name = os::read_proc_file("/proc/self/comm", 64);
    if (!name.empty() && name.back() == '\n') name.pop_back();
    return name;
}

constinit std::atomic<StatsMemory*> g_current{nullptr};

StatsMemory* g_inherited = nullptr;  // kept within reach of leak checkers

std::vector<ParameterBlock> parameters() {
    std::vector<ParameterBlock> blocks;
    for (const config::ParamValue& value : config::values()) {
        ParameterBlock& block = blocks.emplace_back();
        put_text(block.name, value.name);
        put_text(block.value, value.value);
        put_text(block.origin, value.origin);
    }
    return blocks;
}

}  // namespace

// The name in field 2 may hold any character, so counting begins behind its last parenthesis.
std::uint64_t start_ticks_of(long pid) {
    const std::string text = os::read_proc_file(fmt::format("/proc/{}/stat", pid).c_str(), 4096);
    std::size_t at = text.rfind(')');
    for (int field = 2; field < 22 && at != std::string::npos; field++) at = text.find(' ', at + 1);
    std::uint64_t began = 0;
    if (at != std::string::npos) std::from_chars(text.data() + at + 1, text.data() + text.size(), began);
    return began;
}

void forget_segment_in_child() noexcept {
    forget_totals();
    StatsMemory* inherited = g_current.exchange(nullptr);
    if (inherited == nullptr) return;
    inherited->forget_in_child();
    inherited->older_ = g_inherited;
    g_inherited = inherited;
}
VMA_RENEW_IN_CHILD(forget_segment_in_child);

// ---- one segment ----

void StatsMemory::lay_out(const Settings& settings) {
    std::size_t at = round_up(sizeof(Header), kLine);
    auto section = [&](Section kind, std::size_t block, std::size_t count) {
        const auto s = static_cast<unsigned>(kind);
        offsets_[s] = at;
        strides_[s] = block;
        counts_[s] = static_cast<unsigned>(count);
        at = round_up(at + block * count, kLine);
    };
    sockets_ = std::min(settings.sockets, kMaxSockets);
    section(Section::sockets, round_up(sizeof(SocketBlock), kLine), sockets_);
    section(Section::rings, round_up(sizeof(RingBlock), kLine), kRingBlocks);
    section(Section::pools, sizeof(PoolBlock), kPoolBlocks);
    section(Section::muxes, sizeof(MuxBlock), kMuxBlocks);
    section(Section::groups, sizeof(GroupBlock), kGroupBlocks);
    section(Section::parameters, sizeof(ParameterBlock), settings.parameters.size());
    section(Section::totals, round_up(sizeof(TotalsBlock), kLine), kTotalsCount);
    size_ = round_up(at, static_cast<std::size_t>(sysconf(_SC_PAGESIZE)));
}

void StatsMemory::fill(void* at, const Settings& settings) noexcept {
    auto& header = *static_cast<Header*>(at);
    std::memcpy(header.magic, kMagic, sizeof kMagic);
    header.version = kVersion;
    header.header_size = sizeof(Header);
    header.file_size = size_;
    header.pid = static_cast<std::uint32_t>(os::raw_syscall(SYS_getpid));
    header.uid = static_cast<std::uint32_t>(os::raw_syscall(SYS_geteuid));
    header.started_ns = static_cast<std::uint64_t>(clock::wall().time_since_epoch().count());
    header.life = static_cast<std::uint32_t>(Life::running);
    header.log_level = static_cast<std::int32_t>(log::level());
    header.log_details = log::details();
    try {
        header.start_ticks = start_ticks_of(static_cast<long>(header.pid));
        put_text(header.program, program_name());
    } catch (...) {
        // The file works without the parameters
    }
    put_text(header.library, VMA_VERSION);
    header.pid_namespace = pid_namespace();
    unsigned entries = 0;
    for (unsigned s = 0; s < kMaxSections; s++) {
        if (strides_[s] == 0) continue;
        header.sections[entries++] = {s, static_cast<std::uint32_t>(strides_[s]), counts_[s], 0, offsets_[s]};
    }
    auto* blocks = static_cast<std::byte*>(at) + offsets_[static_cast<unsigned>(Section::parameters)];
    for (std::size_t i = 0; i < settings.parameters.size(); i++)
        std::memcpy(blocks + i * sizeof(ParameterBlock), &settings.parameters[i], sizeof(ParameterBlock));
}

std::unique_ptr<StatsMemory> StatsMemory::create(const Settings& settings, std::string& why) noexcept {
    try {
        std::unique_ptr<StatsMemory> segment(new StatsMemory);
        segment->lay_out(settings);
        if (!settings.directory.empty()) {
            const long pid = os::raw_syscall(SYS_getpid);
            char directory[4096];
            if (!expand_pid(settings.directory, pid, directory, sizeof directory)) {
                why = "the name of the statistics directory is too long";
            } else {
                std::string name = fmt::format("{}{}", kFilePrefix, pid);
                auto made = make_file(directory, name, segment->size_, nullptr,
                                      [&](void* at) { segment->fill(at, settings); });
                if (made) {
                    segment->base_ = static_cast<std::byte*>(*made);
                    segment->directory_ = directory;
                    segment->name_ = std::move(name);
                    return segment;
                }
                why = made.error().what;
            }
        }
        void* memory =
            mmap(nullptr, segment->size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED) return nullptr;
        segment->base_ = static_cast<std::byte*>(memory);
        segment->fill(memory, settings);
        return segment;
    } catch (...) {
        return nullptr;
    }
}

StatsMemory::~StatsMemory() {
    end();
    if (base_ != nullptr) munmap(base_, size_);
}

void StatsMemory::end() noexcept {
    if (ended_ || !is_file()) return;
    ended_ = true;
    store(header().life, static_cast<std::uint32_t>(Life::ended));
    remove_file(directory_, name_);
}

void StatsMemory::sweep() const noexcept {
    if (is_file()) remove_stale_files(directory_);
}

void StatsMemory::resume() noexcept {
    if (!ended_) return;
    ended_ = false;
    try {
        auto made = make_file(directory_, name_, size_, base_, [&](void* at) {
            // Other threads go on counting meanwhile, so a few counts may be lost.
            std::memcpy(at, base_, size_);
            static_cast<Header*>(at)->life = static_cast<std::uint32_t>(Life::running);
        });
        if (!made) log::once(log::Level::info, "no statistics file: {}", made.error().what);
    } catch (...) {
        // no memory, no file
    }
}

void StatsMemory::forget_in_child() noexcept {
    os::raw_syscall(SYS_mmap, base_, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED,
                    -1, 0L);
    ended_ = true;
}

// ---- socket blocks ----

SocketBlock* StatsMemory::take_socket(unsigned spare) noexcept {
    if (in_use_.fetch_add(1, std::memory_order_relaxed) + spare >= sockets_) {
        in_use_.fetch_sub(1, std::memory_order_relaxed);
        return nullptr;
    }
    const unsigned start = next_.fetch_add(1, std::memory_order_relaxed) % sockets_;
    for (unsigned n = 0; n < sockets_; n++) {
        const unsigned i = (start + n) % sockets_;
        const std::uint64_t bit = std::uint64_t{1} << (i % 64);
        auto& word = used_[i / 64];
        if ((word.load(std::memory_order_relaxed) & bit) != 0 ||
            (word.fetch_or(bit, std::memory_order_acquire) & bit) != 0)
            continue;
        SocketBlock& block = socket(i);
        Describe guard(block.sequence);  // a reader must not take half of the old socket for the new one
        auto* words = reinterpret_cast<std::uint64_t*>(&block);
        for (std::size_t w = 1; w < sizeof block / 8; w++) store(words[w], 0);  // all but sequence and state
        store(block.id, id_.fetch_add(1, std::memory_order_relaxed) + 1);
        next_.store(i + 1, std::memory_order_relaxed);
        return &block;
    }
    // Other threads took and gave blocks meanwhile: free ones were always where the search was not.
    in_use_.fetch_sub(1, std::memory_order_relaxed);
    return nullptr;
}

void StatsMemory::give_socket(SocketBlock* block) noexcept {
    const unsigned i = index_of(block);
    {
        Describe guard(block->sequence);
        store(block->state, 0);
    }
    used_[i / 64].fetch_and(~(std::uint64_t{1} << (i % 64)), std::memory_order_release);
    in_use_.fetch_sub(1, std::memory_order_relaxed);
}

unsigned StatsMemory::index_of(const SocketBlock* block) noexcept {
    const auto s = static_cast<unsigned>(Section::sockets);
    return static_cast<unsigned>(
        (reinterpret_cast<const std::byte*>(block) - base_ - static_cast<std::ptrdiff_t>(offsets_[s])) /
        static_cast<std::ptrdiff_t>(strides_[s]));
}

// ---- the process's segment ----

StatsMemory* current() noexcept { return g_current.load(std::memory_order_acquire); }

void start() noexcept {
    if (current() != nullptr) return;
    runtime::install_fork_hooks();
    try {
        const config::Params& p = config::get();
        Settings settings{static_cast<unsigned>(p.stats_fd_num), p.stats_shmem_dir, parameters()};
        std::string why;
        auto segment = StatsMemory::create(settings, why);
        if (!why.empty()) log::once(log::Level::warn, "no statistics file: {}", why);
        g_current.store(segment.release(), std::memory_order_release);
    } catch (...) {
        log::once(log::Level::warn, "no statistics: out of memory");
    }
}

void sweep() noexcept {
    if (StatsMemory* segment = current()) segment->sweep();
}

void end() noexcept {
    if (StatsMemory* segment = current()) segment->end();
}

void resume() noexcept {
    if (StatsMemory* segment = current()) segment->resume();
}

}  // namespace vma::stats
