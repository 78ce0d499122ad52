// SPDX-License-Identifier: BSD-2-Clause
// The functions of a context: ibv_post_send(), ibv_post_recv(), ibv_post_srq_recv() and ibv_poll_cq(), and
// the functions that create extended objects.
//
// A request gets its time before the device has it, so that a completion can never be earlier. The hook holds
// the lock of a queue while the device takes the request, so that the tracer's ring has the device's order.
#include <cerrno>

#include "libvma/runtime/clock.h"
#include "tools/vma_trace/hooks.h"

namespace vma_trace {
namespace {

using vma::clock::ticks;

std::uint32_t bytes_sent(const ibv_send_wr& wr) noexcept {
    std::uint32_t bytes = wr.opcode == IBV_WR_TSO ? wr.tso.hdr_sz : 0;
    for (int i = 0; i < wr.num_sge; i++) bytes += wr.sg_list[i].length;
    return bytes;
}

// How many requests come before `bad`.
template <class Wr>
std::size_t accepted(const Wr* first, const Wr* bad) noexcept {
    std::size_t n = 0;
    for (; first != nullptr && first != bad; first = first->next) n++;
    return n;
}

int post_send(ibv_qp* qp, ibv_send_wr* list, ibv_send_wr** bad) {
    Qp* traced = registry().qp(qp);
    if (traced == nullptr) {
        Context* context = registry().context(qp->context);
        return context != nullptr ? context->calls.post_send(qp, list, bad) : EINVAL;
    }
    WorkQueue& queue = *traced->send;
    const std::lock_guard lock(queue.post_lock);
    const auto signalled = [&](const ibv_send_wr& wr) {
        return traced->signal_all || (wr.send_flags & IBV_SEND_SIGNALED) != 0;
    };
    if (list != nullptr && list->next == nullptr) [[likely]] {
        queue.post(list->wr_id, bytes_sent(*list), static_cast<std::uint8_t>(list->opcode), signalled(*list),
                   ticks());
    } else {
        for (const ibv_send_wr* wr = list; wr != nullptr; wr = wr->next)
            queue.prepare(wr->wr_id, bytes_sent(*wr), static_cast<std::uint8_t>(wr->opcode), signalled(*wr));
        queue.publish(ticks());
    }
    const int error = traced->context->calls.post_send(qp, list, bad);
    if (error != 0) queue.retract(bad != nullptr ? accepted(list, *bad) : 0);
    return error;
}

int post_to(WorkQueue& queue, ibv_recv_wr* list, ibv_recv_wr** bad, auto&& post) {
    const std::lock_guard lock(queue.post_lock);
    if (list != nullptr && list->next == nullptr) {
        queue.post(list->wr_id, 0, kReceived, true, ticks());
    } else {
        for (const ibv_recv_wr* wr = list; wr != nullptr; wr = wr->next)
            queue.prepare(wr->wr_id, 0, kReceived, true);
        queue.publish(ticks());
    }
    const int error = post();
    if (error != 0) queue.retract(bad != nullptr ? accepted(list, *bad) : 0);
    return error;
}

int post_recv(ibv_qp* qp, ibv_recv_wr* list, ibv_recv_wr** bad) {
    Qp* traced = registry().qp(qp);
    Context* context = traced != nullptr ? traced->context : registry().context(qp->context);
    if (context == nullptr) return EINVAL;
    if (traced == nullptr || traced->shared_receives) return context->calls.post_recv(qp, list, bad);
    return post_to(*traced->receive, list, bad, [&] { return context->calls.post_recv(qp, list, bad); });
}

int post_srq_recv(ibv_srq* srq, ibv_recv_wr* list, ibv_recv_wr** bad) {
    Context* context = registry().context(srq->context);
    if (context == nullptr) return EINVAL;
    Srq* traced = registry().srq(srq);
    if (traced == nullptr) return context->calls.post_srq_recv(srq, list, bad);
    return post_to(*traced->receive, list, bad, [&] { return context->calls.post_srq_recv(srq, list, bad); });
}

// One completion of an extended CQ in the form of the others. Fields of a failed one are undefined, so they
// stay 0.
ibv_wc classic(ibv_cq_ex& cq) noexcept {
    ibv_wc wc{};
    wc.wr_id = cq.wr_id;
    wc.status = cq.status;
    wc.qp_num = ibv_wc_read_qp_num(&cq);
    if (wc.status != IBV_WC_SUCCESS) {
        wc.vendor_err = ibv_wc_read_vendor_err(&cq);
        return wc;
    }
    wc.opcode = ibv_wc_read_opcode(&cq);
    wc.byte_len = ibv_wc_read_byte_len(&cq);
    wc.wc_flags = ibv_wc_read_wc_flags(&cq);
    if ((wc.opcode & IBV_WC_RECV) == 0) return wc;
    if ((wc.wc_flags & (IBV_WC_WITH_IMM | IBV_WC_WITH_INV)) != 0) wc.imm_data = ibv_wc_read_imm_data(&cq);
    wc.src_qp = ibv_wc_read_src_qp(&cq);
    wc.slid = static_cast<std::uint16_t>(ibv_wc_read_slid(&cq));
    wc.sl = ibv_wc_read_sl(&cq);
    wc.dlid_path_bits = ibv_wc_read_dlid_path_bits(&cq);
    return wc;
}

// ibv_poll_cq() of a CQ that create_cq() made an extended one.
[[gnu::noinline]] int poll_translated(Cq& traced, int wanted, ibv_wc* out) noexcept {
    auto& cq = *reinterpret_cast<ibv_cq_ex*>(traced.cq);
    if (wanted <= 0) return 0;
    const std::lock_guard lock(traced.lock);
    ibv_poll_cq_attr attr{};
    int error = traced.calls.start_poll(&cq, &attr);
    if (error != 0) return error == ENOENT ? 0 : -1;
    const std::uint64_t now = ticks();
    int n = 0;
    do {
        const ibv_wc& wc = out[n++] = classic(cq);
        const bool good = wc.status == IBV_WC_SUCCESS;
        take_completion(traced, wc.qp_num, wc.opcode,
                        {wc.wr_id, wc.byte_len, static_cast<std::uint8_t>(wc.status), good,
                         good ? ibv_wc_read_completion_ts(&cq) : 0},
                        now);
    } while (n < wanted && (error = traced.calls.next_poll(&cq)) == 0);
    traced.calls.end_poll(&cq);
    return n;
}

// A completion without hardware time. Nearly always it is of the same QP as the one before.
inline void take(Cq& cq, const ibv_wc& wc, std::uint64_t now) noexcept {
    const Qp* const qp = cq.last;
    if (qp != nullptr && qp->number == wc.qp_num && wc.status == IBV_WC_SUCCESS) [[likely]] {
        const bool received = (wc.opcode & IBV_WC_RECV) != 0;
        if (!received || qp->recv_cq == cq.cq) [[likely]]
            if ((received ? qp->receive : qp->send)->complete_oldest(wc.wr_id, wc.byte_len, now)) return;
    }
    // The opcode of a failed one is undefined.
    take_completion(cq, wc.qp_num, wc.status == IBV_WC_SUCCESS ? wc.opcode : IBV_WC_SEND,
                    {wc.wr_id, wc.byte_len, static_cast<std::uint8_t>(wc.status), false, 0}, now);
}

int poll_cq(ibv_cq* cq, int wanted, ibv_wc* out) {
    Cq* traced = registry().cq(cq);
    if (traced == nullptr) {
        Context* context = registry().context(cq->context);
        return context != nullptr ? context->calls.poll_cq(cq, wanted, out) : -1;
    }
    if (traced->translated) return poll_translated(*traced, wanted, out);
    const std::lock_guard lock(traced->lock);
    const int n = traced->context->calls.poll_cq(cq, wanted, out);
    if (n <= 0) return n;
    const std::uint64_t now = ticks();
    for (int i = 0; i < n; i++) take(*traced, out[i], now);
    return n;
}

ibv_qp* create_qp_ex(ibv_context* context, ibv_qp_init_attr_ex* attr) {
    Context* known = registry().context(context);
    ibv_qp* qp = known != nullptr ? known->create_qp_ex(context, attr) : nullptr;
    if (qp != nullptr) registry().add_qp(qp, &attr->cap, attr->sq_sig_all != 0);
    return qp;
}

ibv_cq_ex* create_cq_ex(ibv_context* context, ibv_cq_init_attr_ex* attr) {
    Context* known = registry().context(context);
    if (known == nullptr) return nullptr;
    // What we need to know of a completion, as far as the device has it.
    const auto wanted = attr->wc_flags;
    const auto needed = wanted | IBV_WC_EX_WITH_BYTE_LEN | IBV_WC_EX_WITH_QP_NUM;
    const bool time = known->time_stamps && registry().options.hardware_time;
    ibv_cq_ex* cq = nullptr;
    for (const auto flags : {time ? needed | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP : needed, needed, wanted}) {
        attr->wc_flags = flags;
        cq = known->create_cq_ex(context, attr);
        if (cq == nullptr) continue;
        if (Cq* added = registry().add_cq(ibv_cq_ex_to_cq(cq)))
            added->time_stamps = (flags & IBV_WC_EX_WITH_COMPLETION_TIMESTAMP) != 0;
        install(*cq);
        break;
    }
    attr->wc_flags = wanted;
    return cq;
}

}  // namespace

void install(Context& context) noexcept {
    ibv_context_ops& ops = context.context->ops;
    if (ops.post_send != nullptr) ops.post_send = post_send;
    if (ops.post_recv != nullptr) ops.post_recv = post_recv;
    if (ops.post_srq_recv != nullptr) ops.post_srq_recv = post_srq_recv;
    if (ops.poll_cq != nullptr) ops.poll_cq = poll_cq;
    if (verbs_context* extended = verbs_get_ctx_op(context.context, create_cq_ex)) {
        context.create_cq_ex = extended->create_cq_ex;
        extended->create_cq_ex = create_cq_ex;
    }
    if (verbs_context* extended = verbs_get_ctx_op(context.context, create_qp_ex)) {
        context.create_qp_ex = extended->create_qp_ex;
        extended->create_qp_ex = create_qp_ex;
    }
}

void uninstall(Context& context) noexcept {
    ibv_context_ops& ops = context.context->ops;
    if (ops.post_send == post_send) ops.post_send = context.calls.post_send;
    if (ops.post_recv == post_recv) ops.post_recv = context.calls.post_recv;
    if (ops.post_srq_recv == post_srq_recv) ops.post_srq_recv = context.calls.post_srq_recv;
    if (ops.poll_cq == poll_cq) ops.poll_cq = context.calls.poll_cq;
    if (verbs_context* extended = verbs_get_ctx_op(context.context, create_cq_ex))
        if (extended->create_cq_ex == create_cq_ex) extended->create_cq_ex = context.create_cq_ex;
    if (verbs_context* extended = verbs_get_ctx_op(context.context, create_qp_ex))
        if (extended->create_qp_ex == create_qp_ex) extended->create_qp_ex = context.create_qp_ex;
}

bool is_hooked(const ibv_context_ops& ops) noexcept {
    return ops.post_send == post_send || ops.poll_cq == poll_cq;
}

ibv_cq* create_cq(CreateCq create, ibv_context* context, int entries, void* cq_context,
                  ibv_comp_channel* channel, int vector) {
    Context* known = registry().context(context);
    if (known != nullptr && known->time_stamps && known->create_cq_ex != nullptr &&
        registry().options.hardware_time && entries > 0 && vector >= 0) {
        ibv_cq_init_attr_ex attr{};
        attr.cqe = static_cast<std::uint32_t>(entries);
        attr.cq_context = cq_context;
        attr.channel = channel;
        attr.comp_vector = static_cast<std::uint32_t>(vector);
        attr.wc_flags = unsigned{IBV_WC_STANDARD_FLAGS} | unsigned{IBV_WC_EX_WITH_COMPLETION_TIMESTAMP};
        if (ibv_cq_ex* cq = known->create_cq_ex(context, &attr)) {
            if (Cq* added = registry().add_cq(ibv_cq_ex_to_cq(cq))) {
                added->calls = *cq;
                added->translated = true;
            }
            return ibv_cq_ex_to_cq(cq);
        }
    }
    ibv_cq* cq = create(context, entries, cq_context, channel, vector);
    if (cq != nullptr) registry().add_cq(cq);
    return cq;
}

void take_completion(Cq& cq, std::uint32_t qp_number, ibv_wc_opcode opcode, const Completion& completion,
                     std::uint64_t now) noexcept {
    const bool received = completion.status == IBV_WC_SUCCESS && (opcode & IBV_WC_RECV) != 0;
    Qp* qp = cq.last;
    if (qp == nullptr || qp->number != qp_number) qp = registry().find_qp(*cq.context, qp_number);
    if (qp == nullptr || (received && qp->recv_cq != cq.cq)) {
        qp = received ? cq.receiver : nullptr;
        if (qp == nullptr) return registry().count_stray();
    } else {
        cq.last = qp;
    }
    if (completion.status == IBV_WC_SUCCESS) {
        (received ? qp->receive : qp->send)->complete(completion, now);
    } else if (qp->two_cqs) {
        (cq.cq == qp->send_cq ? qp->send : qp->receive)->complete(completion, now);
    } else if (!qp->send->complete(completion, now, false)) {
        // A failed completion does not tell its direction, only its number.
        qp->receive->complete(completion, now);
    }
}

}  // namespace vma_trace
