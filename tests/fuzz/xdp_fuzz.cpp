// SPDX-License-Identifier: BSD-2-Clause
// The rings of an AF_XDP socket as a faulty driver may leave them: addresses and lengths of any value, chunks
// twice or chunks that were never given away, more entries than the ring has. However wrong they are, no byte
// outside the umem is touched, each chunk comes back once at most, no frame is longer than its chunk, and
// each poll ends.
//
// Input: options, then operations of a byte and their arguments.
#include <set>
#include <vector>

#include "libvma/verbs/send_slots.h"
#include "libvma/verbs/xdp/descriptors.h"
#include "libvma/verbs/xdp/xsk.h"
#include "tests/fuzz/input.h"

using namespace vma::verbs;
using namespace vma::verbs::xdp;

namespace {

constexpr std::uint32_t kChunks = 32, kEntries = 16;

// A ring whose other side is the input.
template <class Entry>
struct Shared {
    Shared() {
        ring.use(&memory,
                 {offsetof(Memory, producer), offsetof(Memory, consumer), offsetof(Memory, entries),
                  offsetof(Memory, flags)},
                 kEntries);
    }
    struct Memory {
        std::uint32_t producer = 0, consumer = 0, flags = 0;
        alignas(8) Entry entries[kEntries]{};
    } memory;
    XskRing<Entry> ring;
    void put(const Entry& entry) { memory.entries[memory.producer++ % kEntries] = entry; }
};

class Run {
  public:
    Run(const std::uint8_t* data, std::size_t size)
        : in(data, size), chunk(in.take<std::uint8_t>() & 1 ? 4096 : 2048), umem(kChunks * chunk) {
        receives.start(umem.data(), umem.size(), chunk);
        sent.resize(umem.size(), chunk);
        slots.resize(kEntries);
    }

    void run() {
        for (int i = 0; i < 300 && !in.rest().empty(); i++) operation(in.take<std::uint8_t>());
    }

  private:
    std::uint64_t address(std::uint8_t op) {
        if (op & 128) return in.take<std::uint64_t>();
        const auto which = in.take<std::uint8_t>();
        return which % kChunks * chunk + (op & 64 ? in.take<std::uint16_t>() % chunk : kHeadroom);
    }

    void operation(std::uint8_t op) {
        switch (op % 8) {
            case 0: {  // a receive is posted
                const std::uint64_t id = in.take<std::uint8_t>() % kChunks;
                if (away.contains(id)) break;
                receives.posted(id * chunk, id);
                away.insert(id);
                break;
            }
            case 1:
            case 2: {
                const std::uint64_t at = address(op);
                const std::uint32_t length =
                    op & 8 ? in.take<std::uint32_t>() : in.take<std::uint16_t>() % chunk;
                rx.put({at, length, op & 16 ? in.take<std::uint32_t>() : 0});
                break;
            }
            case 3:
                rx.memory.producer = in.take<std::uint32_t>();
                break;
            case 4:
                poll();
                break;
            case 5: {  // a request of some chunks
                const unsigned pieces = 1 + (op >> 3) % 4;
                if (slots.full()) break;
                ibv_send_wr wr{};
                wr.wr_id = ++last_sent;
                wr.num_sge = static_cast<int>(pieces);
                wr.send_flags = op & 128 ? 0 : IBV_SEND_SIGNALED;
                std::vector<std::uint64_t> chunks;
                for (std::uint64_t c = 0; c < kChunks && chunks.size() < pieces; c++)
                    if (!in_flight.contains(c)) chunks.push_back(c);
                if (chunks.size() < pieces) break;
                for (const std::uint64_t c : chunks)
                    sent.give(c * chunk + 64, slots.next()), in_flight.insert(c);
                slots.add(wr);
                break;
            }
            case 6:
                if (op & 8)
                    completion.memory.producer = in.take<std::uint32_t>();
                else
                    completion.put(address(op));
                break;
            default:
                reap();
        }
    }

    void poll() {
        const std::uint32_t ready = rx.ring.available();
        FUZZ_CHECK(ready <= kEntries);
        for (std::uint32_t i = 0; i < ready; i++) {
            ibv_wc wc{};
            if (!receives.take(rx.ring.front(i), 1, wc)) continue;
            FUZZ_CHECK(away.erase(wc.wr_id) == 1);
            FUZZ_CHECK(wc.byte_len <= chunk - kHeadroom);
        }
        rx.ring.release(ready);
    }
    void reap() {
        const std::uint32_t ready = completion.ring.available();
        FUZZ_CHECK(ready <= kEntries);
        for (std::uint32_t i = 0; i < ready; i++) {
            const std::uint64_t at = completion.ring.front(i), slot = sent.take(at);
            if (slot == ChunksAway::kNone) continue;
            FUZZ_CHECK(in_flight.erase(at / chunk) == 1);
            slots.piece_done(static_cast<std::uint32_t>(slot));
        }
        completion.ring.release(ready);
        ibv_wc wc[4];
        const int n = slots.poll(4, wc, 1);
        for (int i = 0; i < n; i++) {
            FUZZ_CHECK(wc[i].wr_id > last_done && wc[i].wr_id <= last_sent);
            last_done = wc[i].wr_id;
        }
    }

    fuzz::Input in;
    const std::uint32_t chunk;
    std::vector<std::uint8_t> umem;
    Shared<xdp_desc> rx;
    Shared<std::uint64_t> completion;
    Receives receives;
    ChunksAway sent;
    SendSlots slots;
    std::set<std::uint64_t> away, in_flight;
    std::uint64_t last_sent = 0, last_done = 0;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    Run(data, size).run();
    return 0;
}
