// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/tcp/lwip/memory.h"

#include <errno.h>
#include <pthread.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <new>

#include "libvma/runtime/fork_renewal.h"
#include "libvma/runtime/lock.h"
#include "libvma/runtime/region.h"
#include "libvma/runtime/runtime.h"
#include "libvma/tcp/lwip/lwip.h"

namespace vma::tcp::lwip {

namespace {

// A segment is 40 bytes, a control segment with its pbuf 100 to 160, a PCB about 300.
constexpr std::array<std::uint16_t, 13> kSizes = {32,  48,  64,   96,   128,  192,          256,
                                                  320, 512, 1024, 2048, 3072, kLargestBlock};
constexpr std::size_t kClasses = kSizes.size();
constexpr std::size_t kStep = 16;

// The class of a size, by size in steps of 16.
constexpr auto kClassOf = [] {
    std::array<std::uint8_t, kLargestBlock / kStep + 1> table{};
    for (std::size_t step = 0, index = 0; step < table.size(); ++step) {
        while (kSizes[index] < step * kStep) ++index;
        table[step] = static_cast<std::uint8_t>(index);
    }
    return table;
}();
constexpr std::size_t class_of(std::size_t size) noexcept { return kClassOf[(size + kStep - 1) / kStep]; }

// How many free blocks of a class a thread keeps at most; half of them change hands at a time.
constexpr auto kKeep = [] {
    std::array<std::uint32_t, kClasses> table{};
    for (std::size_t index = 0; index < kClasses; ++index)
        table[index] = std::clamp<std::uint32_t>(16384 / kSizes[index], 8, 64);
    return table;
}();

struct Block {
    Block* next;
};

// For all threads.
constexpr std::size_t kMapping = std::size_t{256} << 10;
struct Shared {
    Lock lock;
    std::array<Block*, kClasses> free{};
    std::byte* cursor = nullptr;  // what is left of the last mapping
    std::byte* end = nullptr;
};
constinit Shared g_shared;
constinit std::atomic<std::int64_t> g_used{0};
constinit std::atomic<std::size_t> g_mapped{0};

constexpr std::int64_t kNoBound = INT64_MAX;
struct Bounds {
    std::atomic<std::int64_t> low{kNoBound}, pressure{kNoBound}, high{kNoBound};
    std::atomic<std::uint64_t> pressures{0};
};
constinit Bounds g_bounds;

// Threads that use memory at the same time may leave the level of either; the next of them corrects it.
void use(std::int64_t bytes) noexcept {
    const std::int64_t all = g_used.fetch_add(bytes, std::memory_order_relaxed) + bytes;
    const MemoryLevel before = memory_level();
    MemoryLevel level = std::min(before, MemoryLevel::pressure);
    if (all > g_bounds.high.load(std::memory_order_relaxed))
        level = MemoryLevel::over;
    else if (all > g_bounds.pressure.load(std::memory_order_relaxed))
        level = MemoryLevel::pressure;
    else if (all <= g_bounds.low.load(std::memory_order_relaxed))
        level = MemoryLevel::none;
    if (__builtin_expect(level == before, 1)) return;
    internal::g_level.store(level, std::memory_order_relaxed);
    if (before == MemoryLevel::none) g_bounds.pressures.fetch_add(1, std::memory_order_relaxed);
}

// The calling thread's. A signal handler may interrupt it anywhere and come here itself: it then finds
// `busy`, leaves the lists alone and uses the shared ones, or `returned`.
struct Cache {
    std::array<Block*, kClasses> free{};
    std::array<std::uint32_t, kClasses> count{};
    std::array<std::atomic<Block*>, kClasses> returned{};
    std::int64_t used = 0;  // not yet in g_used
    bool busy = false;
    bool registered = false;  // flush_at_exit() will run for this thread
};
constinit __thread Cache t_cache{};

class Busy {
  public:
    Busy() noexcept : was_(t_cache.busy) {
        t_cache.busy = true;
        std::atomic_signal_fence(std::memory_order_seq_cst);
    }
    ~Busy() {
        std::atomic_signal_fence(std::memory_order_seq_cst);
        t_cache.busy = was_;
    }
    Busy(const Busy&) = delete;
    Busy& operator=(const Busy&) = delete;
    bool nested() const noexcept { return was_; }

  private:
    bool was_;
};

constexpr std::int64_t kCountStep = 4096;
void count(std::int64_t bytes) noexcept {
    Cache& cache = t_cache;
    cache.used += bytes;
    if (cache.used < kCountStep && cache.used > -kCountStep) return;
    use(cache.used);
    cache.used = 0;
}

// A block of the class from the shared list or a mapping, and up to `more` others for `list`. Under the lock.
Block* take_locked(std::size_t index, Block** list, std::uint32_t more, std::uint32_t* taken) noexcept {
    Block* first = nullptr;
    for (std::uint32_t i = 0; i <= more; ++i) {
        Block* block = g_shared.free[index];
        if (block != nullptr) {
            g_shared.free[index] = block->next;
        } else {
            const std::size_t size = kSizes[index];
            if (static_cast<std::size_t>(g_shared.end - g_shared.cursor) < size) {
                if (i != 0) break;  // a new mapping for a spare block would be too much
                const int before = errno;
                void* map =
                    mmap(nullptr, kMapping, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
                if (map == MAP_FAILED) {
                    errno = before;
                    return nullptr;
                }
                g_shared.cursor = static_cast<std::byte*>(map);
                g_shared.end = g_shared.cursor + kMapping;
                g_mapped.fetch_add(kMapping, std::memory_order_relaxed);
            }
            block = reinterpret_cast<Block*>(g_shared.cursor);
            g_shared.cursor += size;
        }
        if (i == 0) {
            first = block;
        } else {
            block->next = *list;
            *list = block;
            ++*taken;
        }
    }
    return first;
}

// The child's only thread is the one that forked; another may have held the lock, with the lists half
// changed.
// What the parent's connections have is not the child's to count.
void forget_in_child() noexcept {
    new (&g_shared) Shared();
    g_used = t_cache.used = 0;
    internal::g_level = MemoryLevel::none;
}
VMA_RENEW_IN_CHILD(forget_in_child);

void flush_at_exit(void*) noexcept {
    runtime::Region region;
    t_cache.registered = false;
    flush_thread_cache();
}

// Sees to it that this thread's blocks come back when it ends. A key, not a thread_local with a destructor:
// registering that one calls malloc().
void register_thread() noexcept {
    static std::atomic<int> state{0};  // 1: being made, 2: there
    static pthread_key_t key;
    int unmade = 0;
    if (state.load(std::memory_order_acquire) != 2) {
        if (!state.compare_exchange_strong(unmade, 1)) return;  // the next refill registers this thread
        runtime::install_fork_hooks();
        if (pthread_key_create(&key, &flush_at_exit) != 0) return;
        state.store(2, std::memory_order_release);
    }
    if (pthread_setspecific(key, &t_cache) == 0) t_cache.registered = true;
}

Block* refill(std::size_t index) noexcept {
    Cache& cache = t_cache;
    if (!cache.registered) register_thread();
    if (Block* block = cache.returned[index].exchange(nullptr, std::memory_order_relaxed)) {
        cache.free[index] = block->next;
        for (const Block* other = block->next; other != nullptr; other = other->next) ++cache.count[index];
        return block;
    }
    const std::lock_guard guard(g_shared.lock);
    Block* block = take_locked(index, &cache.free[index], kKeep[index] / 2, &cache.count[index]);
    return block;
}

// Gives the first `many` blocks of the thread's list to all.
void spill(std::size_t index, std::uint32_t many) noexcept {
    Cache& cache = t_cache;
    if (many == 0) return;
    Block* const first = cache.free[index];
    Block* last = first;
    for (std::uint32_t i = 1; i < many; ++i) last = last->next;
    cache.free[index] = last->next;
    cache.count[index] -= many;
    const std::lock_guard guard(g_shared.lock);
    last->next = g_shared.free[index];
    g_shared.free[index] = first;
}

// From a signal handler that interrupted this thread in here.
void* allocate_nested(std::size_t index) noexcept {
    if (g_shared.lock.owned_by_me()) return nullptr;
    std::uint32_t taken = 0;
    const std::lock_guard guard(g_shared.lock);
    Block* block = take_locked(index, nullptr, 0, &taken);
    return block;
}
void deallocate_nested(Block* block, std::size_t index) noexcept {
    std::atomic<Block*>& returned = t_cache.returned[index];
    block->next = returned.load(std::memory_order_relaxed);
    while (!returned.compare_exchange_weak(block->next, block, std::memory_order_relaxed)) {
    }
}

}  // namespace

void* allocate(std::size_t size) noexcept {
    if (!kPooled || size > kLargestBlock) {
        const int before = errno;
        void* block = std::malloc(size);
        if (block == nullptr) {
            errno = before;
            return nullptr;
        }
        use(static_cast<std::int64_t>(size));
        g_mapped.fetch_add(size, std::memory_order_relaxed);
        return block;
    }
    const std::size_t index = class_of(size);
    const Busy busy;
    if (busy.nested()) {
        void* block = allocate_nested(index);
        if (block != nullptr) use(kSizes[index]);
        return block;
    }
    Cache& cache = t_cache;
    Block* block = cache.free[index];
    if (block != nullptr) {
        cache.free[index] = block->next;
        --cache.count[index];
    } else {
        block = refill(index);
        if (block == nullptr) return nullptr;
    }
    count(kSizes[index]);
    return block;
}

void deallocate(void* memory, std::size_t size) noexcept {
    if (memory == nullptr) return;
    if (!kPooled || size > kLargestBlock) {
        use(-static_cast<std::int64_t>(size));
        g_mapped.fetch_sub(size, std::memory_order_relaxed);
        std::free(memory);
        return;
    }
    const std::size_t index = class_of(size);
    auto* block = static_cast<Block*>(memory);
    const Busy busy;
    if (busy.nested()) {
        deallocate_nested(block, index);
        use(-std::int64_t{kSizes[index]});
        return;
    }
    Cache& cache = t_cache;
    if (!cache.registered) register_thread();
    block->next = cache.free[index];
    cache.free[index] = block;
    if (++cache.count[index] > kKeep[index]) spill(index, kKeep[index] / 2);
    count(-static_cast<std::int64_t>(kSizes[index]));
}

MemoryUse memory_use() noexcept {
    const std::int64_t used = g_used.load(std::memory_order_relaxed) + t_cache.used;
    return {static_cast<std::size_t>(std::max<std::int64_t>(used, 0)),
            g_mapped.load(std::memory_order_relaxed)};
}

void set_bounds(std::size_t low, std::size_t pressure, std::size_t high) noexcept {
    g_bounds.low = static_cast<std::int64_t>(low);
    g_bounds.pressure = static_cast<std::int64_t>(pressure);
    g_bounds.high = static_cast<std::int64_t>(high);
    use(0);
}
std::size_t memory_bound() noexcept {
    return static_cast<std::size_t>(g_bounds.high.load(std::memory_order_relaxed));
}
std::uint64_t memory_pressures() noexcept { return g_bounds.pressures.load(std::memory_order_relaxed); }

void count_used(std::int64_t bytes) noexcept { use(bytes); }
void count_mapped(std::int64_t bytes) noexcept {
    g_mapped.fetch_add(static_cast<std::size_t>(bytes), std::memory_order_relaxed);
}

void flush_thread_cache() noexcept {
    const Busy busy;
    if (busy.nested()) return;
    Cache& cache = t_cache;
    for (std::size_t index = 0; index < kClasses; ++index) {
        if (Block* block = cache.returned[index].exchange(nullptr, std::memory_order_relaxed)) {
            while (block != nullptr) {
                Block* const next = block->next;
                block->next = cache.free[index];
                cache.free[index] = block;
                ++cache.count[index];
                block = next;
            }
        }
        spill(index, cache.count[index]);
    }
    use(cache.used);
    cache.used = 0;
}

}  // namespace vma::tcp::lwip

// What lwIP's mem.c and memp.c would be.
namespace {

// In front of each block of mem_malloc(), whose size mem_free() is not told.
struct alignas(16) Header {
    std::size_t size;
};
static_assert(sizeof(Header) == vma::tcp::lwip::kHeaderBytes);

constexpr std::size_t size_of(memp_t type) noexcept {
    switch (type) {
        case MEMP_TCP_PCB:
            return sizeof(tcp_pcb);
        case MEMP_TCP_PCB_LISTEN:
            return sizeof(tcp_pcb_listen);
        case MEMP_TCP_SEG:
            return sizeof(tcp_seg);
        case MEMP_PBUF:
            return sizeof(pbuf);
        default:
            return LWIP_MEM_ALIGN_SIZE(sizeof(pbuf)) + LWIP_MEM_ALIGN_SIZE(PBUF_POOL_BUFSIZE);
    }
}

}  // namespace

std::size_t vma::tcp::lwip::room_of(const void* memory) noexcept {
    const std::size_t size = (static_cast<const Header*>(memory) - 1)->size;
    const bool pooled = kPooled && size <= kLargestBlock;
    return (pooled ? kSizes[class_of(size)] : size) - sizeof(Header);
}

extern "C" {

void* memp_malloc(memp_t type) { return vma::tcp::lwip::allocate(size_of(type)); }

void vma_lwip_freed(void* pcb);
void memp_free(memp_t type, void* memory) {
    if (type == MEMP_TCP_PCB || type == MEMP_TCP_PCB_LISTEN) vma_lwip_freed(memory);
    vma::tcp::lwip::deallocate(memory, size_of(type));
}

void* mem_malloc(mem_size_t size) {
    auto* header = static_cast<Header*>(vma::tcp::lwip::allocate(sizeof(Header) + size));
    if (header == nullptr) return nullptr;
    header->size = sizeof(Header) + size;
    return header + 1;
}

void mem_free(void* memory) {
    if (memory == nullptr) return;
    Header* const header = static_cast<Header*>(memory) - 1;
    vma::tcp::lwip::deallocate(header, header->size);
}

// A pbuf that becomes shorter keeps its block.
void* mem_trim(void* memory, mem_size_t) { return memory; }
}
