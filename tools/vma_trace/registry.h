// SPDX-License-Identifier: BSD-2-Clause
// The traced verbs objects, and their own functions.
//
// The registry finds contexts, QPs, CQs and shared receive queues by address. It finds QPs by context and
// number, too, since a completion tells the number. Looking up takes no lock. Objects appear when the program
// creates them. If the tracer does not see that (a driver's own create function, a software device), they
// appear with their first request. Objects go when the program destroys them, at the latest with their
// context.
//
// A forked child adds and removes nothing, because another thread of the parent may have held the lock. So
// objects that the child opens are not traced.
#pragma once

#include <infiniband/verbs.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>

#include "tools/vma_trace/options.h"
#include "tools/vma_trace/work_queue.h"

namespace vma_trace {

// From keys to objects: open addressing, readers take no lock, writers hold the registry's.
class ObjectMap {
  public:
    void* find(std::uint64_t key) const noexcept {
        for (std::size_t i = slot_of(key);; i = (i + 1) % kSlots) {
            const std::uint64_t there = slots_[i].key.load(std::memory_order_acquire);
            if (there == key) return slots_[i].object.load(std::memory_order_acquire);
            if (there == kFree) return nullptr;
        }
    }
    // False: full.
    bool insert(std::uint64_t key, void* object) noexcept;
    void erase(std::uint64_t key) noexcept;
    // All of them; `visit(key, object)` may erase any.
    template <class Visit>
    void each(Visit&& visit) noexcept {
        for (Slot& slot : slots_)
            if (const std::uint64_t key = slot.key.load(std::memory_order_relaxed); key > kErased)
                visit(key, slot.object.load(std::memory_order_relaxed));
    }

  private:
    static constexpr unsigned kBits = 15;
    static constexpr std::size_t kSlots = std::size_t{1} << kBits;
    static constexpr std::uint64_t kFree = 0, kErased = 1;  // addresses and numbers are larger
    struct Slot {
        std::atomic<std::uint64_t> key{kFree};
        std::atomic<void*> object{nullptr};
    };
    static std::size_t slot_of(std::uint64_t key) noexcept {
        return (key * 0x9E3779B97F4A7C15u) >> (64 - kBits);
    }

    std::array<Slot, kSlots> slots_;
    std::size_t used_ = 0;
};

struct Context {
    ibv_context* context = nullptr;  // nullptr: free
    std::uint32_t index = 0;
    ibv_context_ops calls{};  // as they were
    decltype(verbs_context::create_cq_ex) create_cq_ex = nullptr;
    decltype(verbs_context::create_qp_ex) create_qp_ex = nullptr;
    double device_ticks_per_ns = 0;
    bool time_stamps = false;  // completions can carry the device's time
};

struct Qp {
    Context* context = nullptr;
    std::uint32_t number = 0;
    bool signal_all = false;
    bool extended = false;  // its ibv_wr_ functions are replaced
    bool shared_receives = false;
    bool two_cqs = false;
    WorkQueue* send = nullptr;
    WorkQueue* receive = nullptr;
    ibv_cq* send_cq = nullptr;
    ibv_cq* recv_cq = nullptr;
    ibv_qp_ex calls{};  // as they were
};

struct Cq {
    Context* context = nullptr;
    ibv_cq* cq = nullptr;
    SpinLock lock;  // from asking the device until the completions are counted, so that they stay in order
    bool translated = false;  // created extended for the sake of time stamps; the program does not know
    bool time_stamps = false;
    bool extended = false;  // its poll functions are replaced
    ibv_cq_ex calls{};      // as they were
    Qp* last = nullptr;     // of the completion before
    // Queue pairs that receive here. The completion of a received frame may lack the number of its QP:
    // libmlx5 puts the flow tag of raw packets there. So `receiver` is the only QP of the CQ; nullptr: there
    // are several.
    unsigned receivers = 0;
    Qp* receiver = nullptr;
};

struct Srq {
    Context* context = nullptr;
    WorkQueue* receive = nullptr;
};

class Registry {
  public:
    Options options;

    // Replaces the functions of a context; a second call changes nothing. nullptr: too many contexts.
    Context* add_context(ibv_context* context) noexcept;
    // Restores the functions, and removes the context with its objects. No thread may use them meanwhile.
    void remove_context(ibv_context* context) noexcept;
    Context* context(const ibv_context* context) const noexcept {
        return static_cast<Context*>(map_.find(key_of(context)));
    }

    // The QP, added if it is new. nullptr: its context is not traced, or there is no room.
    Qp* qp(ibv_qp* qp) noexcept {
        auto* known = static_cast<Qp*>(map_.find(key_of(qp)));
        if (known != nullptr && known->number == qp->qp_num) [[likely]]
            return known;
        return add_qp(qp, nullptr, false);
    }
    // With what is known of it from its creation. `capacity` may be nullptr.
    Qp* add_qp(ibv_qp* qp, const ibv_qp_cap* capacity, bool signal_all) noexcept;
    void remove_qp(const ibv_qp* qp) noexcept;
    Qp* find_qp(const Context& context, std::uint32_t number) const noexcept {
        return static_cast<Qp*>(map_.find(key_of(context, number)));
    }

    Cq* cq(ibv_cq* cq) noexcept {
        auto* known = static_cast<Cq*>(map_.find(key_of(cq)));
        return known != nullptr ? known : add_cq(cq);
    }
    Cq* add_cq(ibv_cq* cq) noexcept;
    void remove_cq(const ibv_cq* cq) noexcept;

    Srq* srq(ibv_srq* srq) noexcept {
        auto* known = static_cast<Srq*>(map_.find(key_of(srq)));
        return known != nullptr ? known : add_srq(srq);
    }
    void remove_srq(const ibv_srq* srq) noexcept;

    // A completion that no traced QP claims.
    void count_stray() noexcept { stray_.fetch_add(1, std::memory_order_relaxed); }
    std::uint64_t strays() const noexcept { return stray_.load(std::memory_order_relaxed); }
    // Objects that there was no room for.
    std::uint64_t untraced() const noexcept { return untraced_.load(std::memory_order_relaxed); }

    // For reports: every queue that is kept, then the totals of those that are not. From the first call on
    // queues are kept mapped.
    template <class Visit>
    void each_queue(Visit&& visit) noexcept {
        reporting_.store(true);
        for (std::size_t i = 0; i < queue_count_.load(std::memory_order_acquire); i++)
            if (const WorkQueue* queue = queues_[i].load(std::memory_order_acquire)) visit(*queue);
    }
    const Totals& retired() const noexcept { return retired_totals_; }
    std::uint64_t retired_queues() const noexcept { return retired_queues_; }
    bool traced_anything() const noexcept { return queue_count_.load(std::memory_order_acquire) != 0; }

  private:
    static constexpr std::size_t kMaxContexts = 256;
    static constexpr std::size_t kMaxQueues = 8192;
    static constexpr std::size_t kKeptRetired = 64;  // queues of destroyed QPs that are shown one by one

    // Addresses are multiples of 8. The low bits tell the kinds of object apart: memory that was a QP's may
    // be a context's next.
    static constexpr std::uint64_t kContext = 2, kQp = 3, kCq = 4, kSrq = 5, kKind = 7;
    static constexpr std::uint64_t kNumber = std::uint64_t{1} << 63;
    static std::uint64_t key_of(const ibv_context* context) noexcept {
        return reinterpret_cast<std::uintptr_t>(context) | kContext;
    }
    static std::uint64_t key_of(const ibv_qp* qp) noexcept {
        return reinterpret_cast<std::uintptr_t>(qp) | kQp;
    }
    static std::uint64_t key_of(const ibv_cq* cq) noexcept {
        return reinterpret_cast<std::uintptr_t>(cq) | kCq;
    }
    static std::uint64_t key_of(const ibv_srq* srq) noexcept {
        return reinterpret_cast<std::uintptr_t>(srq) | kSrq;
    }
    static std::uint64_t key_of(const Context& context, std::uint32_t number) noexcept {
        return kNumber | std::uint64_t{context.index} << 32 | number;
    }
    Srq* add_srq(ibv_srq* srq) noexcept;
    Cq* known_cq(const ibv_cq* cq) const noexcept {
        return cq == nullptr ? nullptr : static_cast<Cq*>(map_.find(key_of(cq)));
    }
    // Is this the process that made it? For all that takes mutex_.
    bool at_home() const noexcept { return getpid() == home_; }
    // All with mutex_ held.
    WorkQueue* add_queue(Side side, std::size_t outstanding, const Context& context, const char* kind,
                         std::uint32_t number) noexcept;
    void retire(WorkQueue* queue) noexcept;
    void forget_qp(const ibv_qp* qp, Qp* known) noexcept;
    void forget_objects(const Context& context) noexcept;

    const pid_t home_ = getpid();
    std::mutex mutex_;
    ObjectMap map_;
    std::array<Context, kMaxContexts> contexts_;
    std::array<std::atomic<WorkQueue*>, kMaxQueues> queues_{};
    std::atomic<std::size_t> queue_count_{0};
    std::array<WorkQueue*, kKeptRetired> retired_{};
    std::size_t next_retired_ = 0;
    Totals retired_totals_;
    std::uint64_t retired_queues_ = 0;
    std::atomic<std::uint64_t> stray_{0}, untraced_{0};
    std::atomic<bool> reporting_{false};
};

// The one of this process; never destroyed.
Registry& make_registry() noexcept;
inline constinit std::atomic<Registry*> made_registry{nullptr};
inline Registry& registry() noexcept {
    Registry* const made = made_registry.load(std::memory_order_acquire);
    return made != nullptr ? *made : make_registry();
}

}  // namespace vma_trace
