// SPDX-License-Identifier: BSD-2-Clause
// SocketXtreme: the program polls a ring and gets packets and events of all its sockets (sockets/extreme.h).
#include <cstring>

#include "libvma/api/buffer_table.h"
#include "libvma/api/calls.h"
#include "libvma/sockets/extreme.h"
#include "libvma/sockets/verdicts.h"

namespace vma::api {
namespace {

using sockets::ExtraSocket;
using sockets::ExtremeMember;
using sockets::ExtremeRing;
using sockets::Held;
using Next = ExtremeMember::Next;

constexpr unsigned kStreamPieces = 44;       // in one packet of a stream
constexpr std::size_t kStreamBytes = 65535;  // vma_packet_desc_t::total_len has 16 bits

// The completions of one call.
class Completions {
  public:
    Completions(vma_completion_t* at, unsigned room) noexcept : at_(at), room_(room) {}
    ~Completions() {
        if (reserved_) BufferTable::instance().unreserve();
    }
    Completions(const Completions&) = delete;
    Completions& operator=(const Completions&) = delete;

    unsigned count() const noexcept { return count_; }
    bool full() const noexcept { return count_ == room_ || bad_memory_; }
    bool bad_memory() const noexcept { return bad_memory_; }
    // Can the next one be written?
    bool writable() noexcept {
        bad_memory_ = !sockets::UserMemory::writable(at_ + count_, sizeof *at_);
        return !bad_memory_;
    }
    bool reserve() noexcept { return reserved_ || (reserved_ = BufferTable::instance().reserve()); }
    vma_completion_t& add(const ExtremeMember& member, std::uint64_t events) noexcept {
        vma_completion_t& c = at_[count_++];
        std::memset(&c, 0, sizeof c);
        c.events = events;
        c.user_data = member.user_data();
        c.listen_fd = -1;
        return c;
    }
    void add_packet(const ExtremeMember& member, Held& packet) noexcept {
        vma_completion_t& c = add(member, VMA_SOCKETXTREME_PACKET);
        const net::Endpoint from = packet.source();
        c.src = net::ipv4_name(from.address.v4(), from.port);
        BufferTable::instance().insert(packet, c.packet, reserved_);
    }

  private:
    vma_completion_t* const at_;
    const unsigned room_;
    unsigned count_ = 0;
    bool bad_memory_ = false;
    bool reserved_ = false;
};

// What one member has to say, as far as there is room.
class Turn {
  public:
    Turn(ExtremeMember& member, Completions& out) noexcept
        : member_(member), socket_(*member.socket().extra()), out_(out) {}

    Next run() noexcept {
        if (!member_.socket().has_fds()) return Next::idle;
        const bool stream = socket_.stream();
        Next next = Next::idle;
        if (stream) next = events(false);
        if (stream && next == Next::idle) next = connections();
        if (next == Next::idle)
            next = packets(
                [&](Held& packet) { return socket_.take_ready(packet, kStreamPieces, kStreamBytes); });
        if (next == Next::idle) next = of_kernel();
        if (stream && next == Next::idle) next = events(true);
        member_.socket().socket_counters().polled(packets_);
        return next;
    }

  private:
    bool room() noexcept { return !out_.full() && out_.writable(); }

    Next events(bool drained) noexcept {
        if (!room()) return Next::more;
        if (const std::uint32_t events = member_.take_events(drained)) out_.add(member_, events);
        return Next::idle;
    }

    Next connections() noexcept {
        for (;;) {
            if (!room()) return Next::more;
            sockaddr_in from{};
            const int child = socket_.accept_ready(from);
            if (child == -EAGAIN || child == -EINVAL) return Next::idle;
            if (child < 0) return Next::later;  // no descriptor, no memory: it waits in its queue
            vma_completion_t& c = out_.add(member_, VMA_SOCKETXTREME_NEW_CONNECTION_ACCEPTED);
            c.user_data = static_cast<std::uint64_t>(child);
            c.src = from;
            c.listen_fd = member_.fd();
        }
    }

    template <class Take>
    Next packets(Take&& take) noexcept {
        for (;;) {
            if (!room()) return Next::more;
            if (!out_.reserve()) return Next::later;
            Held packet;
            const ssize_t n = take(packet);
            if (n == -ENOBUFS) return Next::later;
            if (n < 0) return Next::idle;
            out_.add_packet(member_, packet);
            packets_++;
        }
    }

    // Datagrams of the kernel's socket become packets. Of a stream the program hears, and makes the calls.
    Next of_kernel() noexcept {
        const std::uint32_t events = member_.take_kernel_events();
        if (events == 0) return Next::idle;
        if (!room()) {
            member_.kernel_woken(events);
            return Next::more;
        }
        const bool datagrams = !socket_.stream() && member_.socket().offloaded();
        const std::uint32_t told = datagrams ? events & ~EPOLLIN : events;
        if (told != 0) out_.add(member_, told);
        if (!datagrams || (events & EPOLLIN) == 0) return Next::idle;
        const Next next =
            packets([&](Held& packet) { return socket_.take_from_kernel(member_.fd(), packet); });
        if (next != Next::idle) member_.kernel_woken(EPOLLIN);
        return next;
    }

    ExtremeMember& member_;
    ExtraSocket& socket_;
    Completions& out_;
    unsigned packets_ = 0;
};

// Completions, or -errno.
int poll_once(int ring_fd, vma_completion_t* completions, unsigned count) noexcept {
    preload::NotCancelled inside;
    ExtremeRing* const ring = ExtremeRing::of_channel(ring_fd);
    if (ring == nullptr) return -EBADFD;
    ring->progress();
    Completions out(completions, count);
    while (!out.full()) {
        ExtremeMember* const member = ring->claim();
        if (member == nullptr) break;
        const Next next = Turn(*member, out).run();
        member->finished(next);
    }
    return out.count() == 0 && out.bad_memory() ? -EFAULT : static_cast<int>(out.count());
}

// Runs `call` for a program that polls rings.
template <class F>
int for_poller(F&& call) noexcept {
    if (!ExtremeMember::wanted()) return answer(-EOPNOTSUPP);
    preload::NotCancelled inside;
    return answer(call(BufferTable::instance()));
}

}  // namespace

// Callbacks of the program may throw, so it is not noexcept.
int socketxtreme_poll(int ring_fd, vma_completion_t* completions, unsigned count, int) {
    if (!ExtremeMember::wanted()) return answer(-EOPNOTSUPP);
    if (completions == nullptr || count == 0) return answer(-EINVAL);
    const int before = errno;
    for (preload::Asking asking;;) {
        const int result = poll_once(ring_fd, completions, count);
        if (result != 0 || !sockets::Verdicts::due_first()) return answer(result);
        if (!asking.run(before)) return 0;
    }
}

int socketxtreme_free_vma_packets(vma_packet_desc_t* packets, int count) noexcept {
    return for_poller([&](BufferTable& table) {
        if (packets == nullptr || count < 0) return -EINVAL;
        if (!sockets::UserMemory::readable(packets, static_cast<std::size_t>(count) * sizeof *packets))
            return -EFAULT;
        int error = 0;
        for (int i = 0; i < count; i++)
            if (table.free_packet(packets[i].buff_lst) < 0) error = -EINVAL;
        return error;
    });
}

int socketxtreme_ref_vma_buff(vma_buff_t* buffer) noexcept {
    return for_poller([&](BufferTable& table) { return table.ref(buffer); });
}

int socketxtreme_free_vma_buff(vma_buff_t* buffer) noexcept {
    return for_poller([&](BufferTable& table) { return table.unref(buffer); });
}

}  // namespace vma::api
