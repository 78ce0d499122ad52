// SPDX-License-Identifier: BSD-2-Clause
// A verbs device without a kernel: requests are written down, completions are what a test says. With the
// extended functions: ibv_create_cq_ex() with time stamps, ibv_create_qp_ex() with ibv_wr_ functions.
#pragma once

#include <infiniband/verbs.h>

#include <cerrno>
#include <cstring>
#include <deque>
#include <memory>
#include <vector>

namespace vma_trace_test {

class FakeDevice {
    verbs_context verbs_{};  // first, so that the device is found by its context

  public:
    struct Entry {
        ibv_wc wc{};
        std::uint64_t time = 0;
    };

    explicit FakeDevice(bool time_stamps = false) : time_stamps_(time_stamps) {
        std::strcpy(device_.name, "fake0");
        verbs_.sz = sizeof verbs_;
        verbs_.query_device_ex = query_device_ex;
        verbs_.create_cq_ex = create_cq_ex;
        verbs_.create_qp_ex = create_qp_ex;
        ibv_context& context = verbs_.context;
        context.device = &device_;
        context.abi_compat = __VERBS_ABI_IS_EXTENDED;
        context.ops.post_send = post_send;
        context.ops.post_recv = post_recv;
        context.ops.post_srq_recv = post_srq_recv;
        context.ops.poll_cq = poll_cq;
    }
    FakeDevice(const FakeDevice&) = delete;

    ibv_context* context() { return &verbs_.context; }
    static FakeDevice& of(ibv_context* context) {
        return *reinterpret_cast<FakeDevice*>(reinterpret_cast<char*>(context) -
                                              offsetof(verbs_context, context));
    }

    ibv_cq* make_cq() {
        cqs_.push_back(std::make_unique<ibv_cq_ex>());
        cqs_.back()->context = context();
        return ibv_cq_ex_to_cq(cqs_.back().get());
    }
    ibv_qp* make_qp(ibv_cq* send_cq, ibv_cq* recv_cq, std::uint32_t number, ibv_srq* srq = nullptr) {
        qps_.push_back(std::make_unique<ibv_qp_ex>());
        ibv_qp& qp = qps_.back()->qp_base;
        qp.context = context();
        qp.send_cq = send_cq;
        qp.recv_cq = recv_cq;
        qp.qp_num = number;
        qp.srq = srq;
        qp.qp_type = IBV_QPT_RC;
        return &qp;
    }

    // What the next polls find, of any CQ.
    void complete(std::uint64_t wr_id, std::uint32_t qp_number, ibv_wc_opcode opcode,
                  ibv_wc_status status = IBV_WC_SUCCESS, std::uint32_t bytes = 0, std::uint64_t time = 0) {
        Entry entry;
        entry.wc.wr_id = wr_id;
        entry.wc.qp_num = qp_number;
        entry.wc.opcode = opcode;
        entry.wc.status = status;
        entry.wc.byte_len = bytes;
        entry.time = time;
        entries.push_back(entry);
    }

    std::deque<Entry> entries;
    std::vector<std::uint64_t> posted;     // wr_id of accepted requests
    std::size_t accept = ~std::size_t{0};  // more than these in one call are refused
    int complete_error = 0;                // of ibv_wr_complete()
    std::uint64_t last_wc_flags = 0;       // that a CQ was created with
    bool refuse_cq_ex = false;

  private:
    template <class Wr>
    int take(Wr* list, Wr** bad) {
        std::size_t n = 0;
        for (; list != nullptr; list = list->next) {
            if (n++ == accept) return *bad = list, ENOMEM;
            posted.push_back(list->wr_id);
        }
        return 0;
    }
    static int post_send(ibv_qp* qp, ibv_send_wr* list, ibv_send_wr** bad) {
        return of(qp->context).take(list, bad);
    }
    static int post_recv(ibv_qp* qp, ibv_recv_wr* list, ibv_recv_wr** bad) {
        return of(qp->context).take(list, bad);
    }
    static int post_srq_recv(ibv_srq* srq, ibv_recv_wr* list, ibv_recv_wr** bad) {
        return of(srq->context).take(list, bad);
    }
    static int poll_cq(ibv_cq* cq, int wanted, ibv_wc* out) {
        auto& entries = of(cq->context).entries;
        int n = 0;
        for (; n < wanted && !entries.empty(); n++, entries.pop_front()) out[n] = entries.front().wc;
        return n;
    }
    static int query_device_ex(ibv_context* context, const ibv_query_device_ex_input*,
                               ibv_device_attr_ex* attr, std::size_t) {
        if (of(context).time_stamps_) {
            attr->completion_timestamp_mask = ~std::uint64_t{0};
            attr->hca_core_clock = 500'000;  // kHz: two nanoseconds a tick
        }
        return 0;
    }

    // The extended CQ: stands at entries.front() between start and end.
    static Entry& now(ibv_cq_ex* cq) { return of(cq->context).entries.front(); }
    static void show(ibv_cq_ex* cq) {
        cq->wr_id = now(cq).wc.wr_id;
        cq->status = now(cq).wc.status;
    }
    static int start_poll(ibv_cq_ex* cq, ibv_poll_cq_attr*) {
        if (of(cq->context).entries.empty()) return ENOENT;
        show(cq);
        return 0;
    }
    static int next_poll(ibv_cq_ex* cq) {
        if (of(cq->context).entries.size() < 2) return ENOENT;
        of(cq->context).entries.pop_front();
        show(cq);
        return 0;
    }
    static void end_poll(ibv_cq_ex* cq) { of(cq->context).entries.pop_front(); }
    static ibv_cq_ex* create_cq_ex(ibv_context* context, ibv_cq_init_attr_ex* attr) {
        FakeDevice& self = of(context);
        if (self.refuse_cq_ex ||
            (!self.time_stamps_ && (attr->wc_flags & IBV_WC_EX_WITH_COMPLETION_TIMESTAMP) != 0))
            return errno = EOPNOTSUPP, nullptr;
        self.last_wc_flags = attr->wc_flags;
        auto* cq = reinterpret_cast<ibv_cq_ex*>(self.make_cq());
        cq->cq_context = attr->cq_context;
        cq->start_poll = start_poll;
        cq->next_poll = next_poll;
        cq->end_poll = end_poll;
        cq->read_opcode = [](ibv_cq_ex* c) { return now(c).wc.opcode; };
        cq->read_vendor_err = [](ibv_cq_ex* c) { return now(c).wc.vendor_err; };
        cq->read_wc_flags = [](ibv_cq_ex* c) { return now(c).wc.wc_flags; };
        if (attr->wc_flags & IBV_WC_EX_WITH_BYTE_LEN)
            cq->read_byte_len = [](ibv_cq_ex* c) { return now(c).wc.byte_len; };
        if (attr->wc_flags & IBV_WC_EX_WITH_QP_NUM)
            cq->read_qp_num = [](ibv_cq_ex* c) { return now(c).wc.qp_num; };
        if (attr->wc_flags & IBV_WC_EX_WITH_IMM)
            cq->read_imm_data = [](ibv_cq_ex* c) { return now(c).wc.imm_data; };
        if (attr->wc_flags & IBV_WC_EX_WITH_SRC_QP)
            cq->read_src_qp = [](ibv_cq_ex* c) { return now(c).wc.src_qp; };
        if (attr->wc_flags & IBV_WC_EX_WITH_SLID)
            cq->read_slid = [](ibv_cq_ex* c) { return std::uint32_t{now(c).wc.slid}; };
        if (attr->wc_flags & IBV_WC_EX_WITH_SL) cq->read_sl = [](ibv_cq_ex* c) { return now(c).wc.sl; };
        if (attr->wc_flags & IBV_WC_EX_WITH_DLID_PATH_BITS)
            cq->read_dlid_path_bits = [](ibv_cq_ex* c) { return now(c).wc.dlid_path_bits; };
        if (attr->wc_flags & IBV_WC_EX_WITH_COMPLETION_TIMESTAMP)
            cq->read_completion_ts = [](ibv_cq_ex* c) { return now(c).time; };
        return cq;
    }
    static ibv_qp* create_qp_ex(ibv_context* context, ibv_qp_init_attr_ex* attr) {
        FakeDevice& self = of(context);
        ibv_qp* qp = self.make_qp(attr->send_cq, attr->recv_cq, 0x500);
        ibv_qp_ex& extended = *self.qps_.back();
        extended.wr_start = [](ibv_qp_ex*) {};
        extended.wr_send = [](ibv_qp_ex* q) { of(q->qp_base.context).begun_.push_back(q->wr_id); };
        extended.wr_send_tso = [](ibv_qp_ex* q, void*, std::uint16_t, std::uint16_t) {
            of(q->qp_base.context).begun_.push_back(q->wr_id);
        };
        extended.wr_rdma_write = [](ibv_qp_ex* q, std::uint32_t, std::uint64_t) {
            of(q->qp_base.context).begun_.push_back(q->wr_id);
        };
        extended.wr_set_sge = [](ibv_qp_ex*, std::uint32_t, std::uint64_t, std::uint32_t) {};
        extended.wr_set_sge_list = [](ibv_qp_ex*, std::size_t, const ibv_sge*) {};
        extended.wr_set_inline_data = [](ibv_qp_ex*, void*, std::size_t) {};
        extended.wr_set_inline_data_list = [](ibv_qp_ex*, std::size_t, const ibv_data_buf*) {};
        extended.wr_complete = [](ibv_qp_ex* q) {
            FakeDevice& device = of(q->qp_base.context);
            if (device.complete_error == 0)
                device.posted.insert(device.posted.end(), device.begun_.begin(), device.begun_.end());
            device.begun_.clear();
            return device.complete_error;
        };
        extended.wr_abort = [](ibv_qp_ex* q) { of(q->qp_base.context).begun_.clear(); };
        return qp;
    }

    ibv_device device_{};
    bool time_stamps_;
    std::vector<std::unique_ptr<ibv_cq_ex>> cqs_;
    std::vector<std::unique_ptr<ibv_qp_ex>> qps_;
    std::vector<std::uint64_t> begun_;
};

}  // namespace vma_trace_test
