// SPDX-License-Identifier: BSD-2-Clause
// See registry.h.
#include "tools/vma_trace/registry.h"

#include <algorithm>
#include <new>
#include <utility>

#include "tools/vma_trace/hooks.h"

namespace vma_trace {
namespace {

const char* kind_of(ibv_qp_type type) noexcept {
    switch (type) {
        case IBV_QPT_RC:
            return "RC";
        case IBV_QPT_UC:
            return "UC";
        case IBV_QPT_UD:
            return "UD";
        case IBV_QPT_RAW_PACKET:
            return "RAW";
        case IBV_QPT_XRC_SEND:
        case IBV_QPT_XRC_RECV:
            return "XRC";
        case IBV_QPT_DRIVER:
            return "driver";
    }
    return "QP";
}

}  // namespace

Registry& make_registry() noexcept {
    // Other threads outlive exit().
    alignas(Registry) static std::byte memory[sizeof(Registry)];
    static Registry* const one = new (memory) Registry;
    made_registry.store(one, std::memory_order_release);
    return *one;
}

bool ObjectMap::insert(std::uint64_t key, void* object) noexcept {
    // Some slots stay free, since a search ends at one.
    if (used_ >= kSlots - kSlots / 8) return false;
    for (std::size_t i = slot_of(key);; i = (i + 1) % kSlots) {
        const std::uint64_t there = slots_[i].key.load(std::memory_order_relaxed);
        if (there != kFree && there != kErased && there != key) continue;
        if (there != key) used_++;
        slots_[i].object.store(object, std::memory_order_release);
        slots_[i].key.store(key, std::memory_order_release);
        return true;
    }
}

void ObjectMap::erase(std::uint64_t key) noexcept {
    for (std::size_t i = slot_of(key);; i = (i + 1) % kSlots) {
        const std::uint64_t there = slots_[i].key.load(std::memory_order_relaxed);
        if (there == kFree) return;
        if (there != key) continue;
        used_--;
        slots_[i].key.store(kErased, std::memory_order_release);
        // Erased slots in front of a free one are free.
        if (slots_[(i + 1) % kSlots].key.load(std::memory_order_relaxed) == kFree)
            for (; slots_[i].key.load(std::memory_order_relaxed) == kErased; i = (i + kSlots - 1) % kSlots)
                slots_[i].key.store(kFree, std::memory_order_release);
        return;
    }
}

Context* Registry::add_context(ibv_context* context) noexcept {
    if (!at_home()) return nullptr;
    const std::lock_guard lock(mutex_);
    auto* known = static_cast<Context*>(map_.find(key_of(context)));
    if (known != nullptr && is_hooked(context->ops)) return known;
    if (known == nullptr) {
        const auto free = std::ranges::find(contexts_, nullptr, &Context::context);
        if (free == contexts_.end() || !map_.insert(key_of(context), &*free)) {
            untraced_.fetch_add(1, std::memory_order_relaxed);
            return nullptr;
        }
        known = &*free;
        known->index = static_cast<std::uint32_t>(free - contexts_.begin()) + 1;
    } else {
        forget_objects(*known);  // closed without our knowledge
    }
    known->context = context;
    known->calls = context->ops;
    known->create_cq_ex = nullptr;
    known->create_qp_ex = nullptr;
    known->device_ticks_per_ns = 0;
    known->time_stamps = false;
    if (verbs_context* extended = verbs_get_ctx_op(context, query_device_ex)) {
        ibv_device_attr_ex attr{};
        if (extended->query_device_ex(context, nullptr, &attr, sizeof attr) == 0) {
            known->time_stamps = attr.completion_timestamp_mask != 0;
            known->device_ticks_per_ns = static_cast<double>(attr.hca_core_clock) / 1e6;  // from kHz
        }
    }
    install(*known);
    return known;
}

void Registry::remove_context(ibv_context* context) noexcept {
    auto* known = this->context(context);
    if (known == nullptr) return;
    uninstall(*known);
    if (!at_home()) return;
    const std::lock_guard lock(mutex_);
    forget_objects(*known);
    map_.erase(key_of(context));
    known->context = nullptr;
}

void Registry::forget_objects(const Context& context) noexcept {
    map_.each([&](std::uint64_t key, void* object) {
        if ((key & kNumber) != 0) return;  // goes with its QP
        const std::uint64_t kind = key & kKind;
        if (kind == kQp) {
            auto* qp = static_cast<Qp*>(object);
            if (qp->context == &context) forget_qp(reinterpret_cast<const ibv_qp*>(key & ~kKind), qp);
        } else if (kind == kCq) {
            auto* cq = static_cast<Cq*>(object);
            if (cq->context != &context) return;
            map_.erase(key);
            delete cq;
        } else if (kind == kSrq) {
            auto* srq = static_cast<Srq*>(object);
            if (srq->context != &context) return;
            map_.erase(key);
            retire(srq->receive);
            delete srq;
        }
    });
}

WorkQueue* Registry::add_queue(Side side, std::size_t outstanding, const Context& context, const char* kind,
                               std::uint32_t number) noexcept {
    const std::size_t count = queue_count_.load(std::memory_order_relaxed);
    std::size_t at = 0;
    while (at < count && queues_[at].load(std::memory_order_relaxed) != nullptr) at++;
    if (at == kMaxQueues) return nullptr;
    WorkQueue* queue = WorkQueue::create(side, outstanding, options.records).release();
    if (queue == nullptr) return nullptr;
    if (context.context->device != nullptr)
        vma::stats::put_text(queue->device, vma::stats::text_of(context.context->device->name));
    vma::stats::put_text(queue->kind, kind);
    queue->number = number;
    queue->device_ticks_per_ns = context.device_ticks_per_ns;
    queues_[at].store(queue, std::memory_order_release);
    if (at == count) queue_count_.store(count + 1, std::memory_order_release);
    return queue;
}

void Registry::retire(WorkQueue* queue) noexcept {
    if (queue == nullptr) return;
    // A queue that never had a request is not worth a line.
    if (load(queue->totals().posted) == 0 && load(queue->totals().unmatched) == 0) {
        for (auto& slot : queues_)
            if (slot.load(std::memory_order_relaxed) == queue) slot.store(nullptr, std::memory_order_release);
        if (!reporting_.load()) WorkQueue::Deleter()(queue);
        return;
    }
    queue->forget_outstanding();
    WorkQueue* oldest = std::exchange(retired_[next_retired_++ % kKeptRetired], queue);
    if (oldest == nullptr || reporting_.load()) return;
    for (auto& slot : queues_)
        if (slot.load(std::memory_order_relaxed) == oldest) slot.store(nullptr, std::memory_order_release);
    retired_totals_.merge(oldest->totals());
    retired_queues_++;
    WorkQueue::Deleter()(oldest);
}

Qp* Registry::add_qp(ibv_qp* qp, const ibv_qp_cap* capacity, bool signal_all) noexcept {
    if (!at_home()) return nullptr;
    // The shared queue and the CQ first: adding them takes the lock as well.
    Srq* shared = qp->srq != nullptr ? srq(qp->srq) : nullptr;
    if (qp->recv_cq != nullptr) cq(qp->recv_cq);
    const std::lock_guard lock(mutex_);
    auto* known = static_cast<Qp*>(map_.find(key_of(qp)));
    if (known != nullptr && known->number == qp->qp_num && capacity == nullptr) return known;
    if (known != nullptr) forget_qp(qp, known);  // destroyed without our knowledge
    auto* context = static_cast<Context*>(map_.find(key_of(qp->context)));
    if (context == nullptr) return nullptr;

    auto* added = new (std::nothrow) Qp;
    if (added != nullptr) {
        const auto room = [&](std::uint32_t entries) -> std::size_t {
            return capacity != nullptr ? entries : options.outstanding;
        };
        const char* kind = kind_of(qp->qp_type);
        added->context = context;
        added->number = qp->qp_num;
        added->signal_all = signal_all;
        added->send_cq = qp->send_cq;
        added->recv_cq = qp->recv_cq;
        added->two_cqs = qp->send_cq != qp->recv_cq;
        added->send = add_queue(Side::send, room(capacity != nullptr ? capacity->max_send_wr : 0), *context,
                                kind, qp->qp_num);
        added->shared_receives = shared != nullptr;
        added->receive = shared != nullptr
                             ? shared->receive
                             : add_queue(Side::receive, room(capacity != nullptr ? capacity->max_recv_wr : 0),
                                         *context, kind, qp->qp_num);
        if (added->send != nullptr && added->receive != nullptr && map_.insert(key_of(qp), added)) {
            if (map_.insert(key_of(*context, qp->qp_num), added)) {
                if (Cq* polled = known_cq(qp->recv_cq)) {
                    const std::lock_guard polling(polled->lock);
                    polled->receiver = polled->receivers++ == 0 ? added : nullptr;
                }
                return added;
            }
            map_.erase(key_of(qp));
        }
        if (added->send != nullptr) retire(added->send);
        if (added->receive != nullptr && shared == nullptr) retire(added->receive);
        delete added;
    }
    untraced_.fetch_add(1, std::memory_order_relaxed);
    return nullptr;
}

void Registry::forget_qp(const ibv_qp* qp, Qp* known) noexcept {
    map_.erase(key_of(qp));
    if (map_.find(key_of(*known->context, known->number)) == known)
        map_.erase(key_of(*known->context, known->number));
    // A thread that polls one of the QP's CQs may have found the QP a moment ago. A thread that takes the
    // CQ's lock later does not find it.
    for (const ibv_cq* cq : {known->send_cq, known->recv_cq}) {
        Cq* polled = known_cq(cq);
        if (polled == nullptr) continue;
        const std::lock_guard lock(polled->lock);
        if (polled->last == known) polled->last = nullptr;
        if (polled->receiver == known) polled->receiver = nullptr;
    }
    if (Cq* polled = known_cq(known->recv_cq)) {
        const std::lock_guard lock(polled->lock);
        if (polled->receivers != 0) polled->receivers--;
    }
    retire(known->send);
    if (!known->shared_receives) retire(known->receive);
    delete known;
}

void Registry::remove_qp(const ibv_qp* qp) noexcept {
    if (!at_home()) return;
    const std::lock_guard lock(mutex_);
    if (auto* known = static_cast<Qp*>(map_.find(key_of(qp)))) forget_qp(qp, known);
}

Cq* Registry::add_cq(ibv_cq* cq) noexcept {
    if (!at_home()) return nullptr;
    const std::lock_guard lock(mutex_);
    if (auto* known = static_cast<Cq*>(map_.find(key_of(cq)))) return known;
    auto* context = static_cast<Context*>(map_.find(key_of(cq->context)));
    if (context == nullptr) return nullptr;
    auto* added = new (std::nothrow) Cq;
    if (added == nullptr || !map_.insert(key_of(cq), added)) {
        delete added;
        untraced_.fetch_add(1, std::memory_order_relaxed);
        return nullptr;
    }
    added->context = context;
    added->cq = cq;
    return added;
}

void Registry::remove_cq(const ibv_cq* cq) noexcept {
    if (!at_home()) return;
    const std::lock_guard lock(mutex_);
    auto* known = static_cast<Cq*>(map_.find(key_of(cq)));
    if (known == nullptr) return;
    map_.erase(key_of(cq));
    delete known;
}

Srq* Registry::add_srq(ibv_srq* srq) noexcept {
    if (!at_home()) return nullptr;
    const std::lock_guard lock(mutex_);
    if (auto* known = static_cast<Srq*>(map_.find(key_of(srq)))) return known;
    auto* context = static_cast<Context*>(map_.find(key_of(srq->context)));
    if (context == nullptr) return nullptr;
    auto* added = new (std::nothrow) Srq;
    if (added != nullptr) {
        added->context = context;
        added->receive = add_queue(Side::receive, options.outstanding, *context, "SRQ", srq->handle);
    }
    if (added == nullptr || added->receive == nullptr || !map_.insert(key_of(srq), added)) {
        if (added != nullptr) retire(added->receive);
        delete added;
        untraced_.fetch_add(1, std::memory_order_relaxed);
        return nullptr;
    }
    return added;
}

void Registry::remove_srq(const ibv_srq* srq) noexcept {
    if (!at_home()) return;
    const std::lock_guard lock(mutex_);
    auto* known = static_cast<Srq*>(map_.find(key_of(srq)));
    if (known == nullptr) return;
    map_.erase(key_of(srq));
    retire(known->receive);
    delete known;
}

}  // namespace vma_trace
