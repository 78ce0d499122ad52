// SPDX-License-Identifier: BSD-2-Clause
// What the AF_XDP devices have in common: the XSKs of a netdev's queues, and sending over the first of them.
//
// The caller serialises calls on the send side. Frames are sent on the first queue; on the others the device
// only receives.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <vector>

#include "libvma/verbs/lazy_kick.h"
#include "libvma/verbs/send_slots.h"
#include "libvma/verbs/software_device.h"
#include "libvma/verbs/xdp/copy_rings.h"
#include "libvma/verbs/xdp/descriptors.h"
#include "libvma/verbs/xdp/shared_pool.h"
#include "libvma/verbs/xdp/super_frames.h"
#include "libvma/verbs/xdp/xsk.h"

namespace vma::verbs::xdp {

class XdpSender : public SoftwareDevice {
  public:
    // The descriptor is known once the queues are bound.
    Result<ibv_comp_channel*> create_comp_channel() final { return fill_channel(-1); }
    void flush(ibv_qp* qp) noexcept final;
    bool kick(ibv_qp*) noexcept final;
    void kick_again(ibv_qp*) noexcept final { submit_and_kick(); }
    void gather(ibv_qp*, bool on) noexcept final;
    bool mark(ibv_qp*, std::uint64_t wr_id) noexcept final;
    unsigned tx_held(const ibv_qp*) const noexcept final { return held_.load(std::memory_order_relaxed); }
    std::uint64_t tx_held_since(const ibv_qp*) const noexcept final {
        return held_since_.load(std::memory_order_relaxed);
    }
    void consume_events(ibv_comp_channel*) noexcept final;
    std::uint64_t rx_device_drops() noexcept final;
    std::uint64_t lock_waits() const noexcept final { return pool_waits_.load(std::memory_order_relaxed); }
    bool failed() const noexcept final { return gone_.load(std::memory_order_acquire); }
    void on_failure(std::function<void()> call) final { on_gone_ = std::move(call); }

  protected:
    static constexpr std::uint32_t kMaxSendSge = 17;  // MAX_SKB_FRAGS
    // Receives for each queue, to begin with: the ring asks for more as sockets come.
    static constexpr std::uint32_t kSmallDepth = 128;

    XdpSender() noexcept;
    // Of create_qp(), when the queues are bound. `grows`: there may be more of them later, for watch().
    Result<void> open_channel(bool grows);
    Result<void> watch(Xsk& queue) noexcept;
    static int req_notify_cq(ibv_cq* cq, int solicited_only);
    // Of the constructor: TSO by a packet socket, and super-frames of datagrams.
    void open_super_frames(const std::string& netdev, bool datagrams);

    static int post_send(ibv_qp* qp, ibv_send_wr* wr, ibv_send_wr** bad);
    int poll_send(int count, ibv_wc* wc) noexcept;
    // Has the netdev been removed, or moved to another network namespace? Its XSKs never work again, though
    // it comes back. Then the device has failed.
    bool is_gone() noexcept;

    InternalFd epoll_;                // channel of several queues
    std::uint8_t* memory_ = nullptr;  // the umem
    std::vector<std::unique_ptr<Xsk>> queues_;
    CopyRings* copies_ = nullptr;  // null: the XSKs receive
    SharedPool* pool_ = nullptr;   // of several devices on the same queues; null: there is one
    unsigned slot_ = 0;            // this device's number there
    std::atomic<std::uint64_t> pool_waits_{0};
    SendSlots slots_;
    ChunksAway sent_;      // numbers: places in slots_
    bool scatter_ = true;  // a frame may have several descriptors

  private:
    int send_one(const ibv_send_wr& wr) noexcept;
    int send_super(const ibv_send_wr& wr) noexcept;
    void submit_and_kick() noexcept;
    int kick_tx() noexcept;
    void find_run(std::uint32_t first, DatagramRun& run, std::span<iovec> frames) noexcept;
    bool send_runs() noexcept;
    void submit() noexcept;
    void leave_kick() noexcept;
    void publish_held() noexcept;
    void reap() noexcept;

    SuperFrames super_;
    std::function<void()> on_gone_;
    std::atomic<bool> gone_{false};
    bool stuck_ = false;             // unsent descriptors after an error that waiting does not clear
    bool backlog_ = false;           // the kernel left submitted descriptors in the TX ring
    std::uint32_t unsubmitted_ = 0;  // TX descriptors written and not yet visible to the kernel
    std::atomic<std::uint64_t> kick_ended_{0};  // ticks, of kick()
    LazyKick lazy_;
    std::atomic<unsigned> held_{0};
    std::atomic<std::uint64_t> held_since_{0};
};

}  // namespace vma::verbs::xdp
