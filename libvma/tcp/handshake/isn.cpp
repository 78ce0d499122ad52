// SPDX-License-Identifier: BSD-2-Clause
// The hash, the process's key, and the numbers made of them.
#include "libvma/tcp/handshake/isn.h"

#include <errno.h>
#include <sys/auxv.h>

#include <atomic>
#include <bit>
#include <cstring>
#include <mutex>
#include <new>

#include "libvma/os/raw_syscall.h"
#include "libvma/runtime/clock.h"
#include "libvma/runtime/fork_renewal.h"
#include "libvma/runtime/lock.h"

namespace vma::tcp {
namespace {

constexpr Nsec kClockPeriod{64};

struct SipState {
    std::uint64_t v0, v1, v2, v3;

    void round() noexcept {
        v0 += v1;
        v2 += v3;
        v1 = std::rotl(v1, 13) ^ v0;
        v3 = std::rotl(v3, 16) ^ v2;
        v0 = std::rotl(v0, 32);
        v2 += v1;
        v0 += v3;
        v1 = std::rotl(v1, 17) ^ v2;
        v3 = std::rotl(v3, 21) ^ v0;
        v2 = std::rotl(v2, 32);
    }
    void absorb(std::uint64_t word) noexcept {
        v3 ^= word;
        round();
        round();
        v0 ^= word;
    }
};

// The hash is defined on little-endian words; on another machine it would be another hash, as good as this
// one.
std::uint64_t load(const std::byte* at, std::size_t bytes) noexcept {
    std::uint64_t word = 0;
    std::memcpy(&word, at, bytes);
    return word;
}

// What each number is for goes into the hash: nobody who sees one learns the others.
enum class Purpose : std::uint32_t { sequence = 1, timestamp = 2, random = 3 };

struct IsnInput {
    Purpose purpose;
    std::uint32_t local_addr, remote_addr;
    std::uint16_t local_port, remote_port;
};
static_assert(sizeof(IsnInput) == 16, "no padding that would be hashed");

struct ProcessKey {
    std::atomic<bool> ready{false};
    Lock lock;
    SecretKey key{};
    std::atomic<std::uint64_t> drawn{0};
};
constinit ProcessKey process_key{};

constinit std::atomic<SequenceSource> sequence_source{nullptr};
constinit std::atomic<OffsetSource> offset_source{nullptr};

SecretKey draw_key() noexcept {
    SecretKey key;
    std::size_t have = 0;
    while (have < sizeof key) {
        const long got =
            os::raw_syscall(SYS_getrandom, reinterpret_cast<char*>(key.data()) + have, sizeof key - have, 0);
        if (got == -EINTR) continue;
        if (got <= 0) break;
        have += static_cast<std::size_t>(got);
    }
    if (have == sizeof key) return key;
    // A sandbox that forbids getrandom(). The kernel gave the process 16 random bytes when it started; they
    // are the stack protector's too, so only their hash is used, with the time as what differs after a fork.
    SecretKey seed{0x76'6d'61'2d'74'63'70'31, clock::monotonic().time_since_epoch().count()};
    std::array<std::byte, 16> start{};
    if (const auto* bytes = reinterpret_cast<const std::byte*>(getauxval(AT_RANDOM)))
        std::memcpy(start.data(), bytes, 16);
    key[0] = siphash(seed, start);
    seed[0] ^= clock::Ticks::now().count();
    key[1] = siphash(seed, start);
    return key;
}

const SecretKey& own_key() noexcept {
    if (!process_key.ready.load(std::memory_order_acquire)) {
        const std::lock_guard guard(process_key.lock);
        if (!process_key.ready.load(std::memory_order_relaxed)) {
            process_key.key = draw_key();
            process_key.ready.store(true, std::memory_order_release);
        }
    }
    return process_key.key;
}

std::uint64_t hash(const SecretKey& key, const IsnInput& input) noexcept {
    return siphash(key, std::as_bytes(std::span(&input, 1)));
}

}  // namespace

std::uint64_t siphash(const SecretKey& key, std::span<const std::byte> bytes) noexcept {
    SipState s{key[0] ^ 0x736f6d6570736575, key[1] ^ 0x646f72616e646f6d, key[0] ^ 0x6c7967656e657261,
               key[1] ^ 0x7465646279746573};
    const std::size_t whole = bytes.size() & ~std::size_t{7};
    for (std::size_t i = 0; i < whole; i += 8) s.absorb(load(bytes.data() + i, 8));
    std::uint64_t last = static_cast<std::uint64_t>(bytes.size()) << 56;
    if (whole != bytes.size()) last |= load(bytes.data() + whole, bytes.size() - whole);
    s.absorb(last);
    s.v2 ^= 0xff;
    for (int i = 0; i < 4; i++) s.round();
    return s.v0 ^ s.v1 ^ s.v2 ^ s.v3;
}

std::uint32_t initial_sequence(const SecretKey& key, const net::Endpoints& ends, Time now) noexcept {
    const IsnInput input{Purpose::sequence, ends.local.address.v4(), ends.remote.address.v4(),
                         ends.local.port, ends.remote.port};
    return static_cast<std::uint32_t>(hash(key, input)) +
           static_cast<std::uint32_t>(now.time_since_epoch() / kClockPeriod);
}

std::uint32_t timestamp_offset(const SecretKey& key, const net::Endpoints& ends) noexcept {
    return static_cast<std::uint32_t>(
        hash(key, {Purpose::timestamp, ends.local.address.v4(), ends.remote.address.v4(), 0, 0}));
}

std::uint32_t initial_sequence(const net::Endpoints& ends, Time now) noexcept {
    if (const auto source = sequence_source.load(std::memory_order_relaxed)) return source(ends, now);
    return initial_sequence(own_key(), ends, now);
}

std::uint32_t timestamp_offset(const net::Endpoints& ends) noexcept {
    if (const auto source = offset_source.load(std::memory_order_relaxed)) return source(ends);
    return timestamp_offset(own_key(), ends);
}

std::uint64_t keyed_hash(std::span<const std::byte> bytes) noexcept { return siphash(own_key(), bytes); }

void set_sources(SequenceSource sequence, OffsetSource offset) noexcept {
    sequence_source.store(sequence, std::memory_order_relaxed);
    offset_source.store(offset, std::memory_order_relaxed);
}

std::uint64_t random_number() noexcept {
    const SecretKey& key = own_key();
    const std::uint64_t n = process_key.drawn.fetch_add(1, std::memory_order_relaxed);
    return hash(key,
                {Purpose::random, static_cast<std::uint32_t>(n), static_cast<std::uint32_t>(n >> 32), 0, 0});
}

namespace {
// A forked child draws a key of its own: its numbers must tell nothing about those of its parent.
void rekey_in_child() noexcept {
    new (&process_key.lock) Lock;  // a thread of the parent's may have held it
    process_key.drawn.store(0, std::memory_order_relaxed);
    process_key.key = draw_key();
    process_key.ready.store(true, std::memory_order_release);
}
VMA_RENEW_IN_CHILD(rekey_in_child);
}  // namespace

}  // namespace vma::tcp
