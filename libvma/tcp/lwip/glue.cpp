// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/tcp/lwip/glue.h"

#include <sys/random.h>

#include <atomic>
#include <cstdlib>

#include "libvma/runtime/log.h"
#include "libvma/tcp/lwip/piece.h"
#include "libvma/tcp/timers/time.h"
#include "lwip/ip.h"
#include "lwip/netif.h"
#include "lwip/sys.h"

namespace vma::tcp::lwip {

namespace {

// Outside of any Entry nothing is sent. These are what a call of lwIP without one finds.
constinit const Parameters kNoParameters = {.mss = 536,
                                            .rcv_scale = 0,
                                            .wnd = 65535,
                                            .snd_buf = 65535,
                                            .wnd_update_threshold = 16384,
                                            .ooseq_bytes = 65535,
                                            .timestamp_offset = 0};

constinit __thread Entry* t_entry = nullptr;

constinit std::atomic<std::uint64_t> g_failed_assertions{0};
constinit std::atomic<bool> g_abort{false};

// lwIP asks for a network interface here and there and looks whether its address is a broadcast address; we
// know before.
constinit netif g_netif{};

}  // namespace

struct Access {
    static tcp_pcb*& pcb(Entry& entry) noexcept { return entry.pcb_; }
    static const Hooks& hooks(const Entry& entry) noexcept { return *entry.hooks_; }
    static void* connection(const Entry& entry) noexcept { return entry.connection_; }
    static Entry* outer(const Entry& entry) noexcept { return entry.outer_; }
};

// A signal handler may enter at any instruction of this. It finds t_entry set before anything of the thread's
// state is changed and until all of it is as before, so it always saves and restores what is there.
Entry::Entry(tcp_pcb* pcb, const Hooks& hooks, void* connection, const Parameters& parameters) noexcept
    : outer_(t_entry), pcb_(pcb), hooks_(&hooks), connection_(connection), now_(Clock::now()) {
    t_entry = this;
    std::atomic_signal_fence(std::memory_order_seq_cst);
    if (outer_ != nullptr) save();
    vma_lwip_parameters = &parameters;
    tcp_ticks = milliseconds(now_);
    if (pcb == nullptr) return;
    switch (pcb->state) {
        case CLOSED:
            if (pcb->local_port != 0) tcp_bound_pcbs = pcb;
            break;
        case LISTEN:
            tcp_listen_pcbs.pcbs = pcb;
            break;
        case TIME_WAIT:
            tcp_tw_pcbs = pcb;
            break;
        default:
            tcp_active_pcbs = pcb;
            break;
    }
}

Entry::~Entry() {
    if (outer_ != nullptr) {
        restore();
    } else {
        tcp_bound_pcbs = nullptr;
        tcp_listen_pcbs.pcbs = nullptr;
        tcp_active_pcbs = nullptr;
        tcp_tw_pcbs = nullptr;
        vma_lwip_parameters = &kNoParameters;
    }
    std::atomic_signal_fence(std::memory_order_seq_cst);
    t_entry = outer_;
}

void Entry::save() noexcept {
    saved_.bound = tcp_bound_pcbs;
    saved_.listening = tcp_listen_pcbs.listen_pcbs;
    saved_.active = tcp_active_pcbs;
    saved_.time_wait = tcp_tw_pcbs;
    saved_.parameters = vma_lwip_parameters;
    saved_.ip = ip_data;
    saved_.ticks = tcp_ticks;
    saved_.active_changed = tcp_active_pcbs_changed;
    vma_lwip_save_input(&saved_.input);
    tcp_bound_pcbs = nullptr;
    tcp_listen_pcbs.pcbs = nullptr;
    tcp_active_pcbs = nullptr;
    tcp_tw_pcbs = nullptr;
    tcp_input_pcb = nullptr;
}

void Entry::restore() noexcept {
    vma_lwip_restore_input(&saved_.input);
    tcp_bound_pcbs = saved_.bound;
    tcp_listen_pcbs.listen_pcbs = saved_.listening;
    tcp_active_pcbs = saved_.active;
    tcp_tw_pcbs = saved_.time_wait;
    vma_lwip_parameters = saved_.parameters;
    ip_data = saved_.ip;
    tcp_ticks = saved_.ticks;
    tcp_active_pcbs_changed = saved_.active_changed;
}

tcp_pcb* Entry::created() const noexcept {
    return pcb_ != nullptr && pcb_->state == LISTEN ? tcp_active_pcbs : nullptr;
}

void Entry::input(Piece* segment, in_addr_t from, in_addr_t to) noexcept {
    ip_data.current_netif = &g_netif;
    ip_data.current_input_netif = &g_netif;
    ip_data.current_iphdr_src = {from};
    ip_data.current_iphdr_dest = {to};
    tcp_input(Piece::raw(segment), &g_netif);
}

std::uint64_t failed_assertions() noexcept { return g_failed_assertions.load(std::memory_order_relaxed); }
void abort_on_assertion(bool yes) noexcept { g_abort.store(yes, std::memory_order_relaxed); }

}  // namespace vma::tcp::lwip

// What lwIP calls, and what the files of it would have defined that we do not compile.
using vma::tcp::lwip::Access;
using vma::tcp::lwip::Entry;

extern "C" {

__thread const struct vma_lwip_parameters* vma_lwip_parameters = &vma::tcp::lwip::kNoParameters;
__thread ip_globals ip_data;

void vma_lwip_assertion_failed(const char* message, int line) {
    vma::tcp::lwip::g_failed_assertions.fetch_add(1, std::memory_order_relaxed);
    vma::log::once(vma::log::Level::error, "lwIP: assertion failed in line {}: {}", line, message);
    if (vma::tcp::lwip::g_abort.load(std::memory_order_relaxed)) std::abort();
}

// From memp_free(): the Entry's owner learns that its PCB is gone.
void vma_lwip_freed(void* pcb) {
    for (Entry* entry = vma::tcp::lwip::t_entry; entry != nullptr; entry = Access::outer(*entry))
        if (Access::pcb(*entry) == pcb) Access::pcb(*entry) = nullptr;
}

err_t vma_lwip_output(tcp_pcb* pcb) {
    const Entry* entry = vma::tcp::lwip::t_entry;
    if (entry == nullptr) return ERR_RTE;
    if (tcp_input_pcb == pcb) return ERR_OK;
    return Access::hooks(*entry).transmit(Access::connection(*entry), pcb);
}

err_t ip4_output_if(pbuf* p, const ip4_addr_t* from, const ip4_addr_t* to, u8_t ttl, u8_t tos, u8_t, netif*) {
    const Entry* entry = vma::tcp::lwip::t_entry;
    if (entry == nullptr) return ERR_RTE;
    return Access::hooks(*entry).output(Access::connection(*entry), p, *from, *to, ttl, tos);
}

std::uint32_t vma_lwip_isn(const ip4_addr_t* local, std::uint16_t local_port, const ip4_addr_t* remote,
                           std::uint16_t remote_port) {
    if (const Entry* entry = vma::tcp::lwip::t_entry)
        return Access::hooks(*entry).isn(Access::connection(*entry), *local, local_port, *remote,
                                         remote_port);
    std::uint32_t random = 0;
    if (getrandom(&random, sizeof random, GRND_NONBLOCK) != sizeof random)
        random = static_cast<std::uint32_t>(vma::tcp::Clock::now().time_since_epoch().count());
    return random;
}

std::int8_t vma_lwip_inpacket(tcp_pcb* pcb, tcp_hdr* header, std::uint16_t optlen, std::uint16_t opt1len,
                              std::uint8_t* opt2, pbuf* p) {
    const Entry* entry = vma::tcp::lwip::t_entry;
    if (entry == nullptr || Access::hooks(*entry).inpacket == nullptr) return ERR_OK;
    return Access::hooks(*entry).inpacket(Access::connection(*entry), pcb, header, optlen, opt1len, opt2, p);
}

// Read for the timestamps option only.
u32_t sys_now(void) {
    return vma::tcp::milliseconds(vma::tcp::Clock::now()) + vma_lwip_parameters->timestamp_offset;
}

netif* ip4_route(const ip4_addr_t*) { return &vma::tcp::lwip::g_netif; }
netif* netif_get_by_index(u8_t) { return &vma::tcp::lwip::g_netif; }

// Our timer wheel knows.
void tcp_timer_needed(void) {}
}
