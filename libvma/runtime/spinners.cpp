// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/runtime/spinners.h"

#include <errno.h>
#include <sys/ipc.h>
#include <sys/shm.h>

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

constexpr key_t kKey = 0x766d6100;                     // of the segment, with the user's number
constexpr clock::Nsec kPreempted{50'000};              // longer than anything but another thread's turn
constexpr std::chrono::milliseconds kContended{20};    // after that
constexpr std::chrono::milliseconds kFullHolds{20};    // a thread without an entry asks for one again
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
    clock::Ticks full_until;   // there was no entry
};
constinit thread_local Me t_me;

void renew() noexcept {
    t_me.entry = nullptr;
    t_me.owner = 0;
    internal::t_waits = false;
}
VMA_RENEW_IN_CHILD(renew);

void sweep_now_and_then(SpinnerTable& table) noexcept {
    const std::uint64_t now = clock::ticks();
    std::uint64_t before = g_swept.load(std::memory_order_relaxed);
    if (now - before >= clock::to_ticks(kSweepEvery).count() &&
        g_swept.compare_exchange_strong(before, now, std::memory_order_relaxed))
        table.sweep();
}

// Null: there is no entry to be had.
Known* enter(SpinnerTable& table, Me& me) noexcept {
    if (me.entry != nullptr) return &g_known[me.number];
    if (clock::Ticks::now() < me.full_until) return nullptr;
    if (me.owner == 0)
        me.owner = static_cast<std::uint64_t>(os::raw_syscall(SYS_getpid)) << 32 |
                   static_cast<std::uint32_t>(os::raw_syscall(SYS_gettid));
    me.entry = table.claim(me.owner, me.number);
    if (me.entry == nullptr) {
        // Full: hundreds of threads wait, or some have died.
        sweep_now_and_then(table);
        me.full_until = clock::Ticks::now() + clock::to_ticks(kFullHolds);
        return nullptr;
    }
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

// Memory that nobody can shorten, and no file: a limit of files' sizes or a full file system ends no program.
// Another user may have a segment of the key; then there is no table.
void open() noexcept {
    if (g_table.load(std::memory_order_relaxed) != nullptr) return;
    const auto user = static_cast<uid_t>(os::raw_syscall(SYS_geteuid));
    const long id = os::raw_syscall(SYS_shmget, kKey ^ user, sizeof(SpinnerTable), IPC_CREAT | 0600);
    if (id < 0) return;
    const long at = os::raw_syscall(SYS_shmat, id, nullptr, 0);
    if (at < 0 && at > -4096) return;
    auto* table = reinterpret_cast<SpinnerTable*>(at);  // zeroes are an empty table
    // Of what is attached, since the key may have got another segment meanwhile.
    shmid_ds segment{};
    SpinnerTable* none = nullptr;
    if (os::raw_syscall(SYS_shmctl, id, IPC_STAT, &segment) != 0 || segment.shm_perm.uid != user ||
        segment.shm_perm.cuid != user || (segment.shm_perm.mode & 077) != 0 ||
        segment.shm_segsz < sizeof(SpinnerTable) || !g_table.compare_exchange_strong(none, table))
        os::raw_syscall(SYS_shmdt, at);
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
            sweep_now_and_then(*table);
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
