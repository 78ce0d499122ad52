// SPDX-License-Identifier: BSD-2-Clause
// The functions of extended objects: ibv_wr_start() to ibv_wr_complete() of a QP, ibv_start_poll() to
// ibv_end_poll() of a CQ.
//
// They are pointers in the objects themselves. The requests between start and complete belong together: they
// get one time and become visible together.
#include <cerrno>

#include "libvma/runtime/clock.h"
#include "tools/vma_trace/hooks.h"

namespace vma_trace {
namespace {

using vma::clock::ticks;

// The functions are installed only after the QP was added, and it stays while it is used.
Qp& known(ibv_qp_ex* qp) noexcept { return *registry().qp(&qp->qp_base); }

// Stands in for a function that begins a request with this opcode.
template <auto Member, ibv_wr_opcode Opcode, class... Arguments>
void request(ibv_qp_ex* qp, Arguments... arguments) {
    Qp& traced = known(qp);
    traced.send->prepare(qp->wr_id, 0, Opcode, traced.signal_all || (qp->wr_flags & IBV_SEND_SIGNALED) != 0);
    if constexpr (Opcode == IBV_WR_TSO)
        traced.send->add_bytes(
            [](void*, std::uint16_t header, std::uint16_t) { return header; }(arguments...));
    (traced.calls.*Member)(qp, arguments...);
}

// Puts it there, if the device has such a function.
template <auto Member, ibv_wr_opcode Opcode, class... Arguments>
void replace_request(ibv_qp_ex& qp, void (*)(ibv_qp_ex*, Arguments...)) noexcept {
    if (qp.*Member != nullptr) qp.*Member = request<Member, Opcode, Arguments...>;
}
template <auto Member, ibv_wr_opcode Opcode>
void replace_request(ibv_qp_ex& qp) noexcept {
    replace_request<Member, Opcode>(qp, qp.*Member);
}

void wr_set_sge(ibv_qp_ex* qp, std::uint32_t lkey, std::uint64_t addr, std::uint32_t length) {
    Qp& traced = known(qp);
    traced.send->add_bytes(length);
    traced.calls.wr_set_sge(qp, lkey, addr, length);
}

void wr_set_sge_list(ibv_qp_ex* qp, std::size_t count, const ibv_sge* list) {
    Qp& traced = known(qp);
    for (std::size_t i = 0; i < count; i++) traced.send->add_bytes(list[i].length);
    traced.calls.wr_set_sge_list(qp, count, list);
}

void wr_set_inline_data(ibv_qp_ex* qp, void* addr, std::size_t length) {
    Qp& traced = known(qp);
    traced.send->add_bytes(static_cast<std::uint32_t>(length));
    traced.calls.wr_set_inline_data(qp, addr, length);
}

void wr_set_inline_data_list(ibv_qp_ex* qp, std::size_t count, const ibv_data_buf* list) {
    Qp& traced = known(qp);
    for (std::size_t i = 0; i < count; i++)
        traced.send->add_bytes(static_cast<std::uint32_t>(list[i].length));
    traced.calls.wr_set_inline_data_list(qp, count, list);
}

void wr_start(ibv_qp_ex* qp) {
    Qp& traced = known(qp);
    traced.send->post_lock.lock();
    traced.send->discard();
    traced.calls.wr_start(qp);
}

int wr_complete(ibv_qp_ex* qp) {
    Qp& traced = known(qp);
    traced.send->publish(ticks());
    const int error = traced.calls.wr_complete(qp);
    if (error != 0) traced.send->retract(0);
    traced.send->post_lock.unlock();
    return error;
}

void wr_abort(ibv_qp_ex* qp) {
    Qp& traced = known(qp);
    traced.send->discard();
    traced.calls.wr_abort(qp);
    traced.send->post_lock.unlock();
}

Cq& known(ibv_cq_ex* cq) noexcept { return *registry().cq(ibv_cq_ex_to_cq(cq)); }

// The completion that the CQ stands at.
void take_current(Cq& traced, ibv_cq_ex* cq, std::uint64_t now) noexcept {
    if (cq->read_qp_num == nullptr || cq->read_byte_len == nullptr) return registry().count_stray();
    const bool good = cq->status == IBV_WC_SUCCESS;
    const bool time = good && traced.time_stamps && cq->read_completion_ts != nullptr;
    take_completion(traced, ibv_wc_read_qp_num(cq), good ? ibv_wc_read_opcode(cq) : IBV_WC_SEND,
                    {cq->wr_id, good ? ibv_wc_read_byte_len(cq) : 0, static_cast<std::uint8_t>(cq->status),
                     time, time ? ibv_wc_read_completion_ts(cq) : 0},
                    now);
}

int start_poll(ibv_cq_ex* cq, ibv_poll_cq_attr* attr) {
    Cq& traced = known(cq);
    traced.lock.lock();
    const int error = traced.calls.start_poll(cq, attr);
    if (error != 0)
        traced.lock.unlock();  // there is no ibv_end_poll() then
    else
        take_current(traced, cq, ticks());
    return error;
}

int next_poll(ibv_cq_ex* cq) {
    Cq& traced = known(cq);
    const int error = traced.calls.next_poll(cq);
    if (error == 0) take_current(traced, cq, ticks());
    return error;
}

void end_poll(ibv_cq_ex* cq) {
    Cq& traced = known(cq);
    traced.calls.end_poll(cq);
    traced.lock.unlock();
}

}  // namespace

void install(ibv_qp_ex& qp) noexcept {
    Qp* traced = registry().qp(&qp.qp_base);
    if (traced == nullptr || traced->extended || qp.wr_start == nullptr || qp.wr_start == wr_start) return;
    traced->calls = qp;
    traced->extended = true;
    replace_request<&ibv_qp_ex::wr_send, IBV_WR_SEND>(qp);
    replace_request<&ibv_qp_ex::wr_send_imm, IBV_WR_SEND_WITH_IMM>(qp);
    replace_request<&ibv_qp_ex::wr_send_inv, IBV_WR_SEND_WITH_INV>(qp);
    replace_request<&ibv_qp_ex::wr_send_tso, IBV_WR_TSO>(qp);
    replace_request<&ibv_qp_ex::wr_rdma_read, IBV_WR_RDMA_READ>(qp);
    replace_request<&ibv_qp_ex::wr_rdma_write, IBV_WR_RDMA_WRITE>(qp);
    replace_request<&ibv_qp_ex::wr_rdma_write_imm, IBV_WR_RDMA_WRITE_WITH_IMM>(qp);
    replace_request<&ibv_qp_ex::wr_atomic_cmp_swp, IBV_WR_ATOMIC_CMP_AND_SWP>(qp);
    replace_request<&ibv_qp_ex::wr_atomic_fetch_add, IBV_WR_ATOMIC_FETCH_AND_ADD>(qp);
    replace_request<&ibv_qp_ex::wr_bind_mw, IBV_WR_BIND_MW>(qp);
    replace_request<&ibv_qp_ex::wr_local_inv, IBV_WR_LOCAL_INV>(qp);
    replace_request<&ibv_qp_ex::wr_atomic_write, IBV_WR_ATOMIC_WRITE>(qp);
    if (qp.wr_set_sge != nullptr) qp.wr_set_sge = wr_set_sge;
    if (qp.wr_set_sge_list != nullptr) qp.wr_set_sge_list = wr_set_sge_list;
    if (qp.wr_set_inline_data != nullptr) qp.wr_set_inline_data = wr_set_inline_data;
    if (qp.wr_set_inline_data_list != nullptr) qp.wr_set_inline_data_list = wr_set_inline_data_list;
    qp.wr_complete = wr_complete;
    qp.wr_abort = wr_abort;
    qp.wr_start = wr_start;
}

void install(ibv_cq_ex& cq) noexcept {
    Cq* traced = registry().cq(ibv_cq_ex_to_cq(&cq));
    if (traced == nullptr || traced->extended || cq.start_poll == nullptr) return;
    traced->calls = cq;
    traced->extended = true;
    cq.start_poll = start_poll;
    cq.next_poll = next_poll;
    cq.end_poll = end_poll;
}

}  // namespace vma_trace
