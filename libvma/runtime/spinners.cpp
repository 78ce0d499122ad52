// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/runtime/spinners.h"

#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "libvma/os/raw_syscall.h"
#include "libvma/runtime/fork_renewal.h"
#include "libvma/runtime/spin.h"

namespace vma {

SpinnerTable::Entry* SpinnerTable::claim(std::uint64_t owner, std::size_t hint) noexcept {
    for (std::size_t i = 0; i < kEntries; i++) {
        const std::size_t at = (hint + i) % kEntries;
        Entry& entry = entries_[at];
        std::uint64_t free = 0;
        if (entry.owner.load(std::memory_order_relaxed) != 0 ||
            // Acquire: what the process knows by the entry's number is handed over with it (see release()).
            !entry.owner.compare_exchange_strong(free, owner, std::memory_order_acquire,
                                                 std::memory_order_relaxed))
            continue;
        std::uint32_t used = used_.load(std::memory_order_relaxed);
        while (used <= at && !used_.compare_exchange_weak(used, static_cast<std::uint32_t>(at) + 1,
                                                          std::memory_order_relaxed)) {
        }
        return &entry;
    }
    return nullptr;
}

void SpinnerTable::release(Entry& entry, std::uint64_t owner) noexcept {
    entry.since.store(0, std::memory_order_relaxed);
    entry.owner.compare_exchange_strong(owner, 0, std::memory_order_release, std::memory_order_relaxed);
}

SpinAdvice SpinnerTable::advice(const Entry& mine, clock::Ticks now,
                                const cpu_set_t& allowed) const noexcept {
    const unsigned processors = std::max(1, CPU_COUNT(&allowed));
    const std::uint64_t began = mine.since.load(std::memory_order_relaxed);
    const std::uint64_t fresh = clock::to_ticks(kFresh).count(), busy = clock::to_ticks(kBusySleeper).count();
    unsigned later = 0, others = 0;
    const std::size_t used = std::min<std::size_t>(used_.load(std::memory_order_relaxed), kEntries);
    for (std::size_t i = 0; i < used; i++) {
        const Entry& entry = entries_[i];
        if (&entry == &mine || entry.owner.load(std::memory_order_relaxed) == 0) continue;
        const std::uint64_t since = entry.since.load(std::memory_order_relaxed);
        const std::uint32_t cpu = entry.cpu.load(std::memory_order_relaxed);
        if (since == 0 || cpu >= CPU_SETSIZE || !CPU_ISSET(cpu, &allowed)) continue;
        // Another processor's counter may be a little ahead.
        const std::uint64_t beat = std::min(entry.beat.load(std::memory_order_relaxed), now.count());
        const bool asleep = since == kAsleep;
        if (now.count() - beat >= (asleep ? busy : fresh)) continue;
        others++;
        if (!asleep && since > began) later++;
    }
    if (others >= kTurns * processors && later >= processors) return SpinAdvice::sleep;
    return others >= processors ? SpinAdvice::yield : SpinAdvice::go_on;
}

void SpinnerTable::sweep() noexcept {
    const std::size_t used = std::min<std::size_t>(used_.load(std::memory_order_relaxed), kEntries);
    for (std::size_t i = 0; i < used; i++) {
        const std::uint64_t owner = entries_[i].owner.load(std::memory_order_relaxed);
        if (owner != 0 && os::raw_syscall(SYS_tgkill, owner >> 32, owner & 0xffffffffu, 0) == -ESRCH)
            release(entries_[i], owner);
    }
}

namespace spinners {
namespace {

constexpr clock::Nsec kPreempted{50'000};              // longer than anything but another thread's turn
constexpr std::chrono::milliseconds kContended{20};    // after that
constexpr std::chrono::milliseconds kSweepEvery{100};  // while the table is crowded
// A program may change its processors at any time. What is known of them is asked again after a while, and
// soon where others seem to need them.
constexpr std::chrono::milliseconds kAffinityHolds{1000}, kAffinityDoubtful{50};

constinit std::atomic<SpinnerTable*> g_table{nullptr};
constinit std::atomic<std::uint64_t> g_swept{0};  // ticks

// What a thread knows while it has an entry, by the entry's number. Thread-local storage is scarce in a
// library that a program may open with dlopen().
struct Known {
    std::uint64_t owner = 0;       // whose knowledge it is
    clock::Ticks last;             // look
    clock::Ticks contended_until;  // its processor was taken away
    clock::Ticks asked;            // for `allowed`
    Turns turns;
    cpu_set_t allowed{};
};
constinit Known g_known[SpinnerTable::kEntries];

struct Me {
    SpinnerTable::Entry* entry = nullptr;
    std::uint64_t owner = 0;
    std::uint32_t number = 0;  // of the entry, or of the one before
};
constinit thread_local Me t_me;

void renew() noexcept {
    t_me.entry = nullptr;
    t_me.owner = 0;
    internal::t_waits = false;
}
VMA_RENEW_IN_CHILD(renew);

// Null: there is no entry to be had.
Known* enter(SpinnerTable& table, Me& me) noexcept {
    if (me.entry != nullptr) return &g_known[me.number];
    if (me.owner == 0)
        me.owner = static_cast<std::uint64_t>(os::raw_syscall(SYS_getpid)) << 32 |
                   static_cast<std::uint32_t>(os::raw_syscall(SYS_gettid));
    me.entry = table.claim(me.owner, me.number);
    if (me.entry == nullptr) {
        table.sweep();
        me.entry = table.claim(me.owner, me.number);
    }
    if (me.entry == nullptr) return nullptr;
    me.number = static_cast<std::uint32_t>(table.index_of(*me.entry));
    internal::t_waits = true;
    Known& known = g_known[me.number];
    if (known.owner != me.owner) known = {.owner = me.owner};
    return &known;
}

void beat(SpinnerTable::Entry& entry, clock::Ticks now) noexcept {
    entry.beat.store(now.count(), std::memory_order_relaxed);
    const int cpu = sched_getcpu();
    entry.cpu.store(cpu < 0 ? 0 : static_cast<std::uint32_t>(cpu), std::memory_order_relaxed);
}

void ask_processors(Known& known, clock::Ticks now) noexcept {
    known.asked = now;
    if (os::raw_syscall(SYS_sched_getaffinity, 0, sizeof known.allowed, &known.allowed) > 0) return;
    CPU_ZERO(&known.allowed);
    CPU_SET(0, &known.allowed);
}

SpinAdvice advice(const SpinnerTable& table, const SpinnerTable::Entry& mine, Known& known,
                  clock::Ticks now) noexcept {
    if (known.asked == clock::Ticks() || now - known.asked >= clock::to_ticks(kAffinityHolds))
        ask_processors(known, now);
    const SpinAdvice first = table.advice(mine, now, known.allowed);
    if (first == SpinAdvice::go_on || now - known.asked < clock::to_ticks(kAffinityDoubtful)) return first;
    ask_processors(known, now);
    return table.advice(mine, now, known.allowed);
}

}  // namespace

void open() noexcept {
    if (g_table.load(std::memory_order_relaxed) != nullptr) return;
    char path[64];
    *fmt::format_to_n(path, sizeof path - 1, "/dev/shm/vma_spinners.{}", os::raw_syscall(SYS_geteuid)).out =
        0;
    const long fd =
        os::raw_syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0) return;
    struct stat file;
    void* memory = MAP_FAILED;
    if (fstat(static_cast<int>(fd), &file) == 0 && S_ISREG(file.st_mode) &&
        file.st_uid == static_cast<uid_t>(os::raw_syscall(SYS_geteuid)) && (file.st_mode & 077) == 0 &&
        (file.st_size == static_cast<off_t>(sizeof(SpinnerTable)) ||
         os::raw_syscall(SYS_ftruncate, fd, sizeof(SpinnerTable)) == 0))
        memory =
            mmap(nullptr, sizeof(SpinnerTable), PROT_READ | PROT_WRITE, MAP_SHARED, static_cast<int>(fd), 0);
    os::raw_syscall(SYS_close, fd);
    if (memory == MAP_FAILED) return;
    auto* table = static_cast<SpinnerTable*>(memory);  // zeroes are an empty table
    SpinnerTable* none = nullptr;
    if (!g_table.compare_exchange_strong(none, table)) munmap(memory, sizeof(SpinnerTable));
}

bool look(std::uint64_t round) noexcept {
    SpinnerTable* const table = g_table.load(std::memory_order_acquire);
    Me& me = t_me;
    Known* const known = table != nullptr ? enter(*table, me) : nullptr;
    if (known == nullptr) {
        spin_wait(round);
        return true;
    }
    const clock::Ticks now = clock::Ticks::now();
    const std::uint64_t since = me.entry->since.load(std::memory_order_relaxed);
    if (since == 0 || since == SpinnerTable::kAsleep)
        me.entry->since.store(now.count(), std::memory_order_relaxed);
    else if (now - known->last >= clock::to_ticks(kPreempted))
        known->contended_until = now + clock::to_ticks(kContended);
    beat(*me.entry, now);
    switch (advice(*table, *me.entry, *known, now)) {
        case SpinAdvice::sleep:
            return false;
        case SpinAdvice::yield:
            if (now.count() - g_swept.load(std::memory_order_relaxed) >=
                clock::to_ticks(kSweepEvery).count()) {
                g_swept.store(now.count(), std::memory_order_relaxed);
                table->sweep();
            }
            if (known->turns.long_at(now)) return false;
            internal::t_look_mask = kLookOften - 1;
            yield_core();
            known->last = clock::Ticks::now();
            known->turns.gave(now, known->last);
            return !known->turns.long_at(known->last);
        case SpinAdvice::go_on:
            internal::t_look_mask = kLookEvery - 1;
            if (now < known->contended_until)
                spin_wait(round);
            else
                cpu_relax();
            break;
    }
    known->last = clock::Ticks::now();
    return true;
}

void sleeps() noexcept {
    SpinnerTable* const table = g_table.load(std::memory_order_acquire);
    if (table == nullptr || enter(*table, t_me) == nullptr) return;
    beat(*t_me.entry, clock::Ticks::now());
    t_me.entry->since.store(SpinnerTable::kAsleep, std::memory_order_relaxed);
}

void internal::leave() noexcept {
    t_waits = false;
    if (t_me.entry != nullptr)
        if (SpinnerTable* const table = g_table.load(std::memory_order_acquire))
            table->release(*t_me.entry, t_me.owner);
    t_me.entry = nullptr;
}

}  // namespace spinners
}  // namespace vma
