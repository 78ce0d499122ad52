// SPDX-License-Identifier: BSD-2-Clause
// What the bytes of a connection are, so that lost, doubled and mixed ones are always found.
//
// A stream is a sequence of 8-byte words; each is made of its index and a key, and tells its index to who
// knows the key. A piece of the stream of 15 bytes or more therefore says itself where it belongs (find()),
// also when several threads read from one connection and nobody knows who was first. Shorter pieces are
// counted by their bytes; together they have to fill the gaps that the long ones leave (SocketCounters).
//
// Several threads that write to one connection write whole words: who wrote, and how many before (Records).
#pragma once

#include <stdint.h>
#include <string.h>

#include <atomic>
#include <map>
#include <string>
#include <vector>

namespace random_program {

struct Stream {
    static constexpr uint64_t kStep = 0x9e3779b97f4a7c15, kInverse = 0xf1de83e19937733d;
    uint64_t key = 0;

    uint64_t word(uint64_t index) const { return (index + 1) * kStep + key; }
    uint64_t index(uint64_t word) const { return (word - key) * kInverse - 1; }
    uint8_t byte(uint64_t at) const { return static_cast<uint8_t>(word(at / 8) >> (at % 8 * 8)); }
    void fill(uint8_t* out, long length, uint64_t at) const {
        for (long i = 0; i < length; i++) out[i] = byte(at + static_cast<uint64_t>(i));
    }
    // -1: all right, else the first byte that is wrong.
    long wrong(const uint8_t* in, long length, uint64_t at) const {
        for (long i = 0; i < length; i++)
            if (in[i] != byte(at + static_cast<uint64_t>(i))) return i;
        return -1;
    }
    // Where `length` bytes, 15 or more, begin, and how many of them follow one another there; -1 when they
    // are no piece of the stream.
    long find(const uint8_t* in, long length, long& run) const {
        for (unsigned skip = 0; skip < 8; skip++) {
            uint64_t w;
            memcpy(&w, in + skip, sizeof w);
            const uint64_t i = index(w);
            if (i > 1u << 30 || i * 8 < skip) continue;
            run = wrong(in, length, i * 8 - skip);
            if (run < 0) run = length;
            if (run >= 15) return static_cast<long>(i * 8 - skip);
        }
        return -1;
    }
    // All of it one piece.
    bool has(const uint8_t* in, long length) const {
        long run;
        return find(in, length, run) >= 0 && run == length;
    }
};

// What a thread has read of a stream that others read, too. In shared memory.
struct SocketCounters {
    static constexpr uint32_t kPieces = 4096;
    uint32_t count;
    bool wrong;
    struct Piece {
        uint64_t at;
        uint64_t length;
    } pieces[kPieces];
    uint64_t short_bytes[256];

    void reset() {
        count = 0;
        wrong = false;
        memset(short_bytes, 0, sizeof short_bytes);
    }
    // What one call gave. In a call that blocks the kernel may let other readers in between, so it need not
    // be one piece. Then the bytes beside a seam are counted by their value alone: the last one before it may
    // happen to be the one that belongs before the next piece in the stream, and the first ones behind it may
    // continue the piece before.
    void add(const Stream& stream, const uint8_t* in, long length, bool one_piece) {
        constexpr long kSeam = 8;
        while (length > 0) {
            long run = 1, at = -1;
            if (length >= 15 && count < kPieces) at = stream.find(in, length, run);
            if (one_piece && length >= 15 && count < kPieces && (at < 0 || run < length)) wrong = true;
            const long front = one_piece ? 0 : kSeam;
            if (at >= 0 && run < length) run -= kSeam;
            if (at >= 0 && run > front) {
                pieces[count++] = {static_cast<uint64_t>(at + front), static_cast<uint64_t>(run - front)};
                for (long i = 0; i < front; i++) short_bytes[in[i]]++;
            } else {
                run = 1;
                short_bytes[in[0]]++;
            }
            in += run;
            length -= run;
        }
    }
};

// "" when the tallies together are the stream's bytes from `from` to `to`, each once.
inline std::string coverage(const Stream& stream, const std::vector<const SocketCounters*>& tallies,
                            uint64_t from, uint64_t to) {
    std::map<uint64_t, uint64_t> pieces;
    std::vector<long> missing(256, 0);
    for (const SocketCounters* tally : tallies) {
        if (tally->wrong) return "bytes that are not of the stream, or out of order";
        for (uint32_t i = 0; i < tally->count; i++)
            if (!pieces.emplace(tally->pieces[i].at, tally->pieces[i].length).second) return "bytes twice";
        for (int b = 0; b < 256; b++)
            missing[static_cast<size_t>(b)] -= static_cast<long>(tally->short_bytes[b]);
    }
    uint64_t at = from;
    auto gap = [&](uint64_t end) {
        for (; at < end; at++) missing[stream.byte(at)]++;
    };
    for (const auto& [begin, length] : pieces) {
        if (begin < at) return "bytes twice";
        gap(begin);
        at = begin + length;
    }
    if (at > to) return "bytes beyond the stream's end";
    gap(to);
    for (long m : missing)
        if (m != 0) return "bytes are lost or mixed";
    return "";
}

// Words of several writers in one stream.
struct Records {
    static constexpr int kWriters = 128;
    static uint64_t word(int writer, uint64_t serial) {
        return (static_cast<uint64_t>(writer) << 32 | (serial & 0xffffffff)) * Stream::kStep + 0x5bd1e995;
    }
    uint64_t next[kWriters] = {}, total = 0;
    uint8_t part[8];
    unsigned have = 0;
    std::string fault;

    void add(const uint8_t* in, long length) {
        total += static_cast<uint64_t>(length);
        for (long i = 0; i < length; i++) {
            part[have++] = in[i];
            if (have < 8) continue;
            have = 0;
            uint64_t w;
            memcpy(&w, part, sizeof w);
            w = (w - 0x5bd1e995) * Stream::kInverse;
            const uint64_t writer = w >> 32, serial = w & 0xffffffff;
            if (!fault.empty()) continue;
            if (writer >= kWriters)
                fault = "mixed bytes";
            else if (serial != next[writer]++)
                fault = "writer " + std::to_string(writer) + " wrote " + std::to_string(next[writer] - 1) +
                        ", came " + std::to_string(serial);
        }
    }
};

inline uint32_t hash_of(const uint8_t* in, long length) {  // FNV-1a
    uint32_t h = 2166136261u;
    for (long i = 0; i < length; i++) h = (h ^ in[i]) * 16777619u;
    return h;
}

}  // namespace random_program
