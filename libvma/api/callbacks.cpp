// SPDX-License-Identifier: BSD-2-Clause
// Calls the program's receive callbacks, outside of the library (sockets/verdicts.h).
//
// A callback may do anything: call the library, close its socket, fork, throw, jump out. So all that a
// running one needs lies in memory of its own, and its packet has an id already. What a callback that never
// returned has left is cleared away when its thread comes here again: the callback's caller is no frame of
// its stack then.
#include <unwind.h>

#include <memory>
#include <new>
#include <utility>

#include "libvma/api/calls.h"
#include "libvma/api/packet_table.h"
#include "libvma/runtime/region.h"
#include "libvma/sockets/extra_socket.h"
#include "libvma/sockets/verdicts.h"
#include "mellanox/vma_extra.h"

namespace vma::api {
namespace {

using sockets::Callback;
using sockets::ExtraSocket;
using sockets::Filter;
using sockets::Held;
using sockets::Verdicts;

constexpr unsigned kMostPackets = 256;  // packets before the interrupted call goes on
constexpr unsigned kPieces = 16;

// In the memory of its filter.
struct Judgement : sockets::Judging {
    Filter* filter = nullptr;  // with a reference to its socket
    void* packet = nullptr;
    const void* frame = nullptr;  // its caller's canonical frame address
    std::uint64_t serial = 0;     // 0: it has ended
    std::size_t count = 0;
    iovec pieces[kPieces];
    sockaddr_in source, destination;
    vma_info_t info;
};

// The last serial of the thread, which alone looks at what it has given one.
constinit thread_local std::uint64_t t_serial = 0;

sockaddr_in name_of(const net::Endpoint& endpoint) noexcept {
    return net::ipv4_name(endpoint.address.v4(), endpoint.port);
}

void describe(Judgement& j, const Held& packet, const ExtraSocket::Ready& ready) noexcept {
    j.count = std::min(packet.iovecs(j.pieces, kPieces), kPieces);
    j.source = name_of(packet.source());
    j.destination = name_of(packet.destination());
    j.info = {};
    j.info.struct_sz = sizeof j.info;
    j.info.src = &j.source;
    j.info.dst = &j.destination;
    j.info.payload_sz = packet.bytes();
    j.info.socket_ready_pkt_count = ready.packets;
    j.info.socket_ready_byte_count = ready.bytes;
    const auto software = packet.arrived().time_since_epoch().count();
    j.info.sw_timestamp = clock::to_timespec(clock::Nsec(static_cast<std::uint64_t>(software)));
    j.info.hw_timestamp = clock::to_timespec(packet.arrived_at_device().time_since_epoch());
}

void end_claim(Filter& filter) noexcept {
    sockets::Socket& socket = filter.socket();
    Verdicts::done(filter);
    socket.unref();
}

// The next packet to judge; null: there is none.
Judgement* begin(Callback& callback, const void* frame) noexcept {
    while (Filter* filter = Verdicts::claim(callback)) {
        ExtraSocket& socket = *filter->socket().extra();
        Held packet;
        ExtraSocket::Ready ready;
        if (socket.next_undecided(packet, ready)) {
            auto* const j = static_cast<Judgement*>(&filter->room());
            describe(*j, packet, ready);
            j->packet = PacketTable::instance().insert(packet);
            if (j->packet != nullptr) {
                j->info.packet_id = j->packet;
                j->filter = filter;
                j->frame = frame;
                j->serial = ++t_serial;
                j->socket = &filter->socket();
                j->outer = Verdicts::running();
                Verdicts::set_running(j);
                return j;
            }
        }
        // Without memory nobody judges it.
        if (packet) socket.apply_verdict(&packet), socket.decide_all();
        end_claim(*filter);
    }
    return nullptr;
}

// `verdict` about the innermost callback of this thread.
void end(Judgement* j, int verdict) noexcept {
    using Judged = stats::SocketCounters::Judged;
    Verdicts::set_running(j->outer);
    Filter& filter = *j->filter;
    ExtraSocket& socket = *filter.socket().extra();
    stats::SocketCounters& counters = filter.socket().socket_counters();
    if (verdict == VMA_PACKET_HOLD) {
        counters.judged(Judged::held);
        socket.apply_verdict(nullptr);
    } else {
        Held packet;
        PacketTable::instance().take(j->packet, packet, [](const void*) { return true; });
        if (verdict == VMA_PACKET_DROP || !packet) {
            counters.judged(Judged::dropped);
            packet.release();
            socket.apply_verdict(nullptr);
        } else {
            counters.judged(Judged::received);
            socket.apply_verdict(&packet);
        }
    }
    j->serial = 0;
    end_claim(filter);
}

// Is the function that called the callback still among the callers of this thread? Where that cannot be told
// (code without unwind tables), it is.
bool still_runs(const Judgement& j) noexcept {
    struct Search {
        const void* wanted;
        bool found = false;
    } search{j.frame};
    const auto look = [](_Unwind_Context* frame, void* about) {
        auto& search = *static_cast<Search*>(about);
        if (reinterpret_cast<const void*>(_Unwind_GetCFA(frame)) != search.wanted) return _URC_NO_REASON;
        search.found = true;
        return _URC_NORMAL_STOP;
    };
    const _Unwind_Reason_Code end = _Unwind_Backtrace(look, &search);
    return search.found || end != _URC_END_OF_STACK;
}

// `frame`: of the caller, which no earlier one can have.
void forget_abandoned(const void* frame) noexcept {
    while (auto* j = static_cast<Judgement*>(Verdicts::running())) {
        if (j->frame != frame && still_runs(*j)) return;
        end(j, VMA_PACKET_DROP);
    }
}

// Ends the judgement with the verdict, or without one when the callback throws or its thread ends.
class Ending {
  public:
    explicit Ending(Judgement* j) noexcept : j_(j), serial_(j->serial) {}
    ~Ending() noexcept(false) {
        runtime::Region region;
        // Not in a child that the callback has forked, and not twice.
        if (Verdicts::running() == j_ && j_->serial == serial_) end(j_, verdict);
    }
    Ending(const Ending&) = delete;
    Ending& operator=(const Ending&) = delete;
    int verdict = VMA_PACKET_DROP;

  private:
    Judgement* const j_;
    const std::uint64_t serial_;
};

[[gnu::noinline]] void run_callbacks() {
    const void* const frame = __builtin_dwarf_cfa();
    if (Verdicts::running() != nullptr) {
        runtime::Region region;
        forget_abandoned(frame);
    }
    for (unsigned i = 0; i < kMostPackets; i++) {
        Callback callback;
        Judgement* j;
        {
            runtime::Region region;
            j = begin(callback, frame);
        }
        if (j == nullptr) return;
        Ending ending(j);
        ending.verdict = callback.function(callback.fd, j->count, j->pieces, &j->info, callback.context);
    }
}

}  // namespace

int register_recv_callback(int fd, vma_recv_callback_t callback, void* context) noexcept {
    return on_socket(fd, [&](ExtraSocket& socket) {
        if (!socket.serves_extra()) return -EINVAL;
        Filter* filter = socket.make_filter();
        if (filter == nullptr) return -ENOMEM;
        std::unique_ptr<sockets::Judging> room(new (std::nothrow) Judgement);
        if (room == nullptr) return -ENOMEM;
        filter->give_room(std::move(room));
        Verdicts::set_runner(&run_callbacks);
        filter->set({reinterpret_cast<Callback::Function>(callback), context, fd});
        socket.filter_changed(callback != nullptr);
        return 0;
    });
}

}  // namespace vma::api
