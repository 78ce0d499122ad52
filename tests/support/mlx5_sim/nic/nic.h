// SPDX-License-Identifier: BSD-2-Clause
// A ConnectX adapter made of software, as seen from its queues: it reads work requests and writes completions
// in the memory that the process shares with it, in the adapter's own formats (infiniband/mlx5dv.h), and
// moves frames to and from a wire.
//
// It knows nothing of system calls: uverbs.h answers the kernel's ABI and calls the control functions here;
// whoever has a wire connects it. Nothing happens by itself: step() looks at every doorbell once and does
// what is due, so a test decides when, and a thread that calls step() makes it live. All functions may be
// called from any thread (one lock).
//
// A doorbell register is memory here, so of two doorbells between two steps only the later is seen. Therefore
// one that is seen makes step() look at every queue of its page. A queue whose record moved while its page
// was silent is not executed, as on hardware; if that lasts a second of the adapter's clock, or until the QP
// goes, it is a violation.
//
// It is strict: what real hardware would punish, silently or not, is a violation, which is counted and
// described, and, where the adapter would do so, also completes with an error. See take_violations().
#pragma once

#include <infiniband/mlx5dv.h>
#include <netinet/in.h>

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace mlx5_sim {

using Frame = std::vector<std::uint8_t>;

// RAW_PACKET: init is enough for receiving, rts for sending. send_error cannot be asked for: a request
// failed, the send side flushes, the receive side goes on (IBV_QPS_SQE). A failed receive is `error`, but
// what the send side has it still sends.
enum class QpState { reset, init, rtr, rts, error, send_error };

struct CqAttr {
    std::uint32_t cqn = 0;
    void* buffer = nullptr;       // entries * cqe_size bytes
    std::uint32_t entries = 0;    // a power of two
    std::uint32_t cqe_size = 64;  // 64 or 128
    void* doorbell_record =
        nullptr;  // two big-endian words: consumer index, arming (which create_cq() marks as unwritten)
    // A completion event for the channel; empty: there is none. Called with the adapter's lock held, so that
    // none comes after destroy_cq() returned: it must not call the adapter, nor wait for somebody who does.
    std::function<void()> event;
    std::uint32_t first = 0;       // position of the first completion, as after so many; for tests of wraps
    std::function<void()> failed;  // the queue overran and is dead (IBV_EVENT_CQ_ERR); called as `event` is
};

// A RAW_PACKET QP. Its two halves have a buffer each.
struct QpAttr {
    std::uint32_t qpn = 0;
    std::uint32_t user_index = 0;     // what completions carry in srqn_uidx
    void* send_buffer = nullptr;      // send_entries * 64 bytes
    std::uint32_t send_entries = 0;   // basic blocks, a power of two
    void* recv_buffer = nullptr;      // recv_entries << recv_shift bytes
    std::uint32_t recv_entries = 0;   // a power of two
    std::uint32_t recv_shift = 4;     // log2 of a receive request's size
    void* doorbell_record = nullptr;  // two big-endian words: receive counter, send counter
    std::uint32_t send_cqn = 0, recv_cqn = 0;
    std::uint32_t uar = 0;  // index of the UAR page that rings this QP
};

// A flow rule. Fields whose mask is 0 match everything; all in network byte order.
struct Match {
    std::array<std::uint8_t, 6> dst_mac{}, dst_mac_mask{}, src_mac{}, src_mac_mask{};
    std::uint16_t vlan = 0,
                  vlan_mask = 0;  // TCI; matches frames with an 802.1Q tag only, if the mask is not 0
    std::uint16_t ether_type = 0, ether_type_mask = 0;
    std::uint32_t src_ip = 0, src_ip_mask = 0, dst_ip = 0, dst_ip_mask = 0;  // IPv4 only
    std::uint8_t protocol = 0, protocol_mask = 0;
    std::uint16_t src_port = 0, src_port_mask = 0, dst_port = 0, dst_port_mask = 0;  // never of fragments

    bool operator==(const Match&) const = default;
};
struct Rule {
    Match match;
    // Lower wins; of several with the same priority that which was made first. But rules with an equal match
    // are one entry of the driver's table: each of their QPs gets a copy. Multicast: all that match get a
    // copy.
    std::uint16_t priority = 0;
    std::uint32_t tag = 0;    // 0: none
    bool sniffs_all = false;  // IBV_FLOW_ATTR_ALL_DEFAULT
    std::uint32_t qpn = 0;
};

// Things an owner of a card sees rarely; a test orders them.
struct Faults {
    std::uint32_t fail_sends =
        0;  // so many of the next send requests complete with `send_syndrome`; the send side fails
    std::uint8_t send_syndrome = MLX5_CQE_SYNDROME_LOCAL_PROT_ERR;
    std::uint32_t fail_receives = 0;  // the same for arriving frames; the QP goes to error
    std::uint8_t receive_syndrome = MLX5_CQE_SYNDROME_LOCAL_LENGTH_ERR;
    std::uint32_t extra_events = 0;  // completion events without a completion, one with each step()
    std::uint32_t lost_events = 0;   // so many of the next events do not come, although their completions do
};

struct NicCounters {
    std::uint64_t sent = 0, received = 0;          // frames
    std::uint64_t not_steered = 0;                 // arriving frames that no rule took
    std::uint64_t no_receive = 0;                  // dropped: nothing was posted
    std::uint64_t doorbells = 0, blue_flames = 0;  // send doorbells of 8 bytes, and of more
    std::uint64_t doorbell_records =
        0;  // send queues found by their record alone, without a doorbell (never on hardware)
    std::uint64_t send_completions = 0;  // asked for by a request
    std::uint64_t gathered = 0;          // data segments of sends that were fetched by their address
    std::uint64_t events = 0, violations = 0;
    std::uint64_t stale_arms = 0;  // armed again before the last event was read: the adapter ignores that
};

// What the adapter demands of send requests.
struct Limits {
    std::uint32_t min_inline =
        0;  // header bytes that must be inline (what libmlx5 was told as eth_min_inline)
    std::uint32_t max_frame = 9216;  // bytes from the destination address to the end of the payload
    std::uint32_t max_tso = 262144;  // payload bytes of a large send
};

class Nic {
  public:
    explicit Nic(std::uint32_t uar_page_bytes = 4096);
    ~Nic();
    Nic(const Nic&) = delete;
    Nic& operator=(const Nic&) = delete;

    // ---- control plane; the memory stays the caller's ----
    // One memory region: requests may name [address, address + length) with this lkey.
    void add_region(std::uint32_t lkey, std::uint64_t address, std::uint64_t length);
    void remove_region(std::uint32_t lkey);
    // A doorbell page, mapped for the model (the process may have it mapped elsewhere).
    // One page may have several indices: the registers of all its adapter pages (4096 bytes) ring the QPs of
    // all of them.
    void add_uar(std::uint32_t index, void* page);
    void remove_uar(std::uint32_t index);
    void create_cq(const CqAttr& attr);
    void destroy_cq(std::uint32_t cqn);
    // Holds events back until `count` completions or the first is `period_usec` old. With either 0: at once.
    void moderate_cq(std::uint32_t cqn, std::uint16_t count, std::uint16_t period_usec);
    void create_qp(const QpAttr& attr);
    void modify_qp(std::uint32_t qpn,
                   QpState state);  // to error: everything posted is flushed; to reset: queues are forgotten
    QpState qp_state(std::uint32_t qpn) const;
    // The QP goes to error and completes nothing any more, until it was reset.
    void silence_qp(std::uint32_t qpn);
    void destroy_qp(std::uint32_t qpn);
    std::uint64_t create_rule(const Rule& rule);  // a handle
    void destroy_rule(std::uint64_t handle);

    // ---- the wire ----
    // A frame arrives. True: a rule took it (also if it was then dropped). False: it is the kernel's.
    bool receive(std::span<const std::uint8_t> frame);
    // Would receive() answer true?
    bool steered(std::span<const std::uint8_t> frame) const;
    // Gets each frame that is sent, checksums completed, large sends cut up, padded to 60 bytes. Called
    // inside step(), without the lock.
    void on_transmit(std::function<void(Frame)> transmit);
    // Calls after each change of the rules with all of them, for a wire that filters itself; at once with
    // those there are. The calls come in the order of the changes, in the thread that changes, before
    // create_rule() or destroy_rule() returns.
    void on_rules(std::function<void(const std::vector<Rule>&)> changed);

    // ---- time ----
    // One look at every doorbell. True if there was anything to do.
    bool step();
    // The adapter's clock, in nanoseconds times `mhz` / 1000, as time stamps in completions have it. Default:
    // CLOCK_MONOTONIC.
    void set_clock(std::function<std::uint64_t()> ticks, std::uint32_t mhz = 1000);

    // ---- for tests ----
    void set_limits(const Limits& limits);
    // A BlueFlame copy is what is executed, as on hardware; one that differs from the request in the queue is
    // a violation. Off by default, since a thread that steps can catch a copy half-way; for tests that post
    // and step in one thread.
    void check_blue_flames(bool on);
    void set_faults(const Faults& faults);
    NicCounters counters() const;
    // Descriptions of violations since the last call (the first thousand). With MLX5_SIM_STRICT=abort in the
    // environment the first one ends the process, with MLX5_SIM_STRICT=print they go to the standard error
    // output.
    std::vector<std::string> take_violations();

    struct State;  // of nic_state.h, for the adapter's own parts

  private:
    std::unique_ptr<State> state_;
};

}  // namespace mlx5_sim
