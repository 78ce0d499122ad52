// SPDX-License-Identifier: BSD-2-Clause
// The receiving half: takes segments to lwIP, keeps what it says is received, and announces the window.
//
// Under the connection's lock.
#pragma once

#include <sys/uio.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "libvma/tcp/bulk_run.h"
#include "libvma/tcp/lwip/types.h"
#include "libvma/tcp/receive/duplicate.h"
#include "libvma/tcp/receive/lent_data.h"
#include "libvma/tcp/receive/reassembly.h"
#include "libvma/tcp/receive/receive_queue.h"
#include "libvma/tcp/timers/time.h"

namespace vma::ring {
struct RxBuffer;
}

namespace vma::tcp {

struct Tcb;

class Receiver {
  public:
    explicit Receiver(Tcb& tcb) noexcept : tcb_(tcb) {}

    // Processes a list of frames, which are taken, and sends what follows from them.
    void input(ring::RxBuffer* list) noexcept;
    // Copies to the program, see Connection::receive(). Opens the window for what was taken.
    std::size_t read(const iovec* iov, std::size_t count, std::size_t length,
                     const ReceiveQueue::How& how) noexcept;
    // ---- the extra API ----
    // Lends at most `most` pieces to the program: bytes; 0: there are none, or they are not of this kind;
    // -ENOBUFS: no memory. `undecided`: those that a callback of the program is to judge.
    // `bytes`: see Connection::lend().
    ssize_t lend(LentData& out, unsigned most, bool undecided, std::size_t bytes) noexcept;
    // From now on data that comes while none waits to be read is undecided: not readable.
    void set_filtered(bool on) noexcept { filtered_ = on; }
    bool undecided() const noexcept { return undecided_.load(std::memory_order_relaxed); }
    // A callback has judged what it was lent. `data` (or nothing) becomes readable, and what follows it.
    void judged(LentData* data) noexcept;
    // All that is undecided becomes readable.
    void decide_all() noexcept;
    // Any thread, without the lock.
    void given_back(std::uint32_t charge) noexcept { returned_.fetch_add(charge, std::memory_order_relaxed); }

    // A segment that acceptance lets pass came too early: lwIP sees it when the gap is filled.
    void keep_early(std::uint32_t seq, const lwip::Piece& p, bool fin) noexcept;
    // Makes the window as large as the program's options allow, and tells the peer if that is worth it.
    void open_window() noexcept;
    void clear() noexcept;
    // Forgets what came out of sequence.
    void clear_early() noexcept;

    // What lwIP tells: data in sequence, whose chain is taken; and the end of the stream.
    void received(lwip::Piece* p) noexcept;
    void peer_finished() noexcept;

    const ReceiveQueue& queue() const noexcept { return queue_; }
    const Reassembly& early() const noexcept { return early_; }
    // A segment that is, or would be, [left, right) has come; what of it lies before RCV.NXT came twice.
    void note_old(std::uint32_t left, std::uint32_t right) noexcept;
    Duplicate& duplicate() noexcept { return duplicate_; }
    // The blocks of a SACK option: what came twice, then what came early. Returns how many.
    std::size_t sack_blocks(SackBlock* out, std::size_t most) const noexcept;
    bool replaying() const noexcept { return replaying_; }
    bool processing() const noexcept { return processing_; }
    // The ring wants its buffers back. May be called without the lock.
    void set_scarce(bool scarce) noexcept { scarce_.store(scarce, std::memory_order_relaxed); }

  private:
    void input_segment(lwip::Piece* p, Time now) noexcept;
    void input_urgent(ring::RxBuffer* frame, Time now) noexcept;
    inline bool take_expected(lwip::Piece* p) noexcept;
    void through_lwip(lwip::Piece* p) noexcept;
    void acknowledged(std::uint32_t bytes, bool handshake) noexcept;
    void trim_to_window(lwip::Piece* p) noexcept;
    std::uint32_t capacity() const noexcept;
    void take_early() noexcept;
    bool tells_duplicates() const noexcept;
    void widen_window() noexcept;
    [[gnu::cold]] void save_memory(lwip::Piece& p) noexcept;
    [[gnu::cold]] std::size_t scarce_room(std::size_t room) const noexcept;
    std::size_t lent() noexcept;
    void show_readable() noexcept;
    void make_readable() noexcept;  // all that is queued

    Tcb& tcb_;
    ReceiveQueue queue_;       // in sequence
    Reassembly early_;         // out of it
    Duplicate duplicate_;      // what the peer is to hear of that came twice
    bool replaying_ = false;   // lwIP is given the peer's FIN again
    bool fin_room_ = false;    // the window was made one larger for the peer's FIN
    bool processing_ = false;  // a received segment is in lwIP
    bool starved_ = false;     // for want of memory the window was closed over what the peer has sent
    BulkRun bulk_;             // of long frames
    std::atomic<bool> scarce_{false};
    bool filtered_ = false;                   // a callback of the program sees data first
    std::atomic<bool> undecided_{false};      // it has yet to see what the queue has, or sees it now
    std::size_t lent_ = 0;                    // of the window, to the program
    std::atomic<std::uint32_t> returned_{0};  // of that
};

}  // namespace vma::tcp
