// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/tcp/receive/reassembly.h"

#include <algorithm>
#include <cstring>

#include "libvma/tcp/lwip/memory.h"
#include "libvma/tcp/lwip/piece.h"
#include "libvma/tcp/sequence.h"

namespace vma::tcp {

using lwip::Piece;

namespace {

constexpr std::size_t kFirstRuns =
    256;  // bytes of the array when it begins; it doubles up to the pool's largest block

}  // namespace

// A place in a chain that only moves forward.
struct Reassembly::Reader {
    const Piece* piece;
    std::uint32_t at = 0;      // in it
    std::uint32_t passed = 0;  // of the whole chain

    void skip_to(std::uint32_t position) noexcept {
        while (piece != nullptr && passed < position) {
            const std::uint32_t n = std::min<std::uint32_t>(position - passed, piece->size() - at);
            passed += n;
            at += n;
            if (at == piece->size()) piece = piece->next(), at = 0;
        }
    }
    void copy_to(Piece& block, std::uint32_t bytes) noexcept {
        while (piece != nullptr && bytes != 0) {
            const std::uint32_t n = std::min<std::uint32_t>(bytes, piece->size() - at);
            block.append(piece->data() + at, n);
            bytes -= n;
            passed += n;
            at += n;
            if (at == piece->size()) piece = piece->next(), at = 0;
        }
    }
};

// The first run that ends at `seq` or behind it.
std::size_t Reassembly::find(std::uint32_t seq) noexcept {
    std::size_t low = 0, high = count_;
    // Nearly all comes at an end.
    if (count_ != 0 && seq_before(runs_[count_ - 1].right, seq)) return steps_++, count_;
    if (count_ != 0 && !seq_before(runs_[0].right, seq)) return steps_++, 0;
    while (low < high) {
        const std::size_t middle = (low + high) / 2;
        steps_++;
        if (seq_before(runs_[middle].right, seq))
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

bool Reassembly::fits(std::size_t more_memory, std::size_t more_bytes, std::uint32_t window) const noexcept {
    return held_ + more_memory - (bytes_ + more_bytes) <= std::size_t{window} / 8 * 5;
}

bool Reassembly::insert(std::size_t at, std::uint32_t seq, std::uint32_t window) noexcept {
    if (count_ == kMaxRuns && !drop_last(seq)) return false;
    if (count_ == capacity_) {
        const std::size_t before = array_bytes_, size = before == 0 ? kFirstRuns : 2 * before;
        while (!fits(size - before, 0, window))
            if (!drop_last(seq)) return false;
        auto* more = static_cast<Run*>(lwip::allocate(size));
        if (more == nullptr) return false;
        if (count_ != 0) std::memcpy(more, runs_, count_ * sizeof(Run));
        lwip::deallocate(runs_, before);
        runs_ = more;
        array_bytes_ = size;
        capacity_ = std::min(size / sizeof(Run), kMaxRuns);
        held_ += size - before;
    }
    std::memmove(runs_ + at + 1, runs_ + at, (count_ - at) * sizeof(Run));
    runs_[at] = {seq, seq, nullptr, nullptr};
    count_++;
    return true;
}

void Reassembly::erase(std::size_t at, std::size_t how_many) noexcept {
    if (how_many == 0) return;
    std::memmove(runs_ + at, runs_ + at + how_many, (count_ - at - how_many) * sizeof(Run));
    count_ -= how_many;
}

// Forgets the last run, if it lies behind the number `behind`.
bool Reassembly::drop_last(std::uint32_t behind) noexcept {
    if (count_ == 0 || !seq_before(behind, runs_[count_ - 1].left)) return false;
    const Run run = runs_[--count_];
    bytes_ -= run.right - run.left;
    for (Piece* p = run.first; p != nullptr;) {
        Piece* next = p->next();
        held_ -= p->cost();
        p->free();
        p = next;
        steps_++;
    }
    const auto* end = std::remove_if(recent_, recent_ + recent_count_,
                                     [&](const SackBlock& b) { return !seq_before(b.left, run.left); });
    recent_count_ = static_cast<std::size_t>(end - recent_);
    return true;
}

// Appends the next `bytes` bytes to the run. False: not all, for want of memory.
bool Reassembly::fill(Run& run, Reader& from, std::uint32_t bytes, std::uint32_t window) noexcept {
    while (bytes != 0) {
        std::uint32_t room = run.last != nullptr ? run.last->room() : 0;
        if (room == 0) {
            // The longer the run, the more is likely to follow.
            const std::uint32_t grown = std::min((run.right - run.left) / 2, window / 4);
            Piece* block = Piece::block(std::min(std::max(bytes, grown), Piece::kLargest));
            if (block == nullptr) return false;
            room = block->room();
            const std::size_t cost = block->cost();
            while (!fits(cost, std::min(bytes, room), window)) {
                if (drop_last(run.right + bytes)) continue;
                block->free();
                return false;
            }
            held_ += cost;
            if (run.last != nullptr)
                run.last->set_next(block);
            else
                run.first = block;
            run.last = block;
        }
        const std::uint32_t n = std::min(room, bytes);
        from.copy_to(*run.last, n);
        run.right += n;
        bytes_ += n;
        bytes -= n;
        steps_++;
    }
    return true;
}

bool Reassembly::keep(std::uint32_t seq, const Piece* chain, std::uint32_t length,
                      std::uint32_t window) noexcept {
    const std::uint32_t end = seq + length;
    const std::size_t at = find(seq);
    if ((at == count_ || seq_before(seq, runs_[at].left)) && !insert(at, seq, window)) return false;
    Run& run = runs_[at];
    Reader reader{chain};
    bool whole = true;
    std::size_t joined = 0;
    for (;;) {
        const Run* next = at + 1 + joined < count_ ? &runs_[at + 1 + joined] : nullptr;
        const std::uint32_t stop = next != nullptr && seq_before(next->left, end) ? next->left : end;
        if (seq_before(run.right, stop)) {
            reader.skip_to(run.right - seq);
            whole = fill(run, reader, stop - run.right, window);
            if (!whole) break;
        }
        if (next == nullptr || run.right != next->left) break;
        run.last->set_next(next->first);
        run.last = next->last;
        run.right = next->right;
        joined++;
        steps_++;
    }
    erase(at + 1, joined);
    if (run.left == run.right) {
        erase(at, 1);
        return false;
    }
    report({run.left, reported_end(run)});
    return whole;
}

void Reassembly::keep_fin(std::uint32_t seq) noexcept {
    if (!fin_) fin_at_ = seq;
    fin_ = true;
    const std::size_t at = find(fin_at_);
    const bool behind_data = at != count_ && runs_[at].right == fin_at_;
    report({behind_data ? runs_[at].left : fin_at_, fin_at_ + 1});
}

SackBlock Reassembly::known(std::uint32_t left, std::uint32_t right) noexcept {
    for (std::size_t i = find(left); i < count_ && seq_before(runs_[i].left, right); i++)
        if (const std::uint32_t end = reported_end(runs_[i]); seq_before(left, end))
            return {seq_max(left, runs_[i].left), seq_min(right, end)};
    const bool fin = fin_ && !seq_before(fin_at_, left) && seq_before(fin_at_, right);
    return fin ? SackBlock{fin_at_, fin_at_ + 1} : SackBlock{};
}

void Reassembly::report(SackBlock block) noexcept {
    SackBlock now[kMaxBlocks];
    std::size_t n = 0;
    now[n++] = block;
    for (std::size_t i = 0; i < recent_count_ && n < kMaxBlocks; i++) {
        const SackBlock& b = recent_[i];
        if (seq_before(b.right, block.left) || seq_before(block.right, b.left)) now[n++] = b;
    }
    std::copy_n(now, n, recent_);
    recent_count_ = n;
}

std::size_t Reassembly::blocks(SackBlock* out, std::size_t most) const noexcept {
    const std::size_t n = std::min(most, recent_count_);
    std::copy_n(recent_, n, out);
    return n;
}

Piece* Reassembly::take(std::uint32_t next, std::uint32_t& bytes, SackBlock& twice) noexcept {
    bytes = 0;
    twice = {};
    Piece* chain = nullptr;
    std::size_t gone = 0;
    for (; gone < count_ && !seq_before(next, runs_[gone].left) && chain == nullptr; gone++) {
        Run& run = runs_[gone];
        bytes_ -= run.right - run.left;
        std::uint32_t old = std::min(next - run.left, run.right - run.left);
        if (gone == 0) twice = {run.left, run.left + old};
        bytes = run.right - run.left - old;
        chain = run.first;
        while (chain != nullptr && old >= chain->size()) {
            Piece* rest = chain->next();
            old -= chain->size();
            held_ -= chain->cost();
            chain->free();
            chain = rest;
            steps_++;
        }
        if (chain != nullptr) chain->remove(old);
    }
    for (const Piece* p = chain; p != nullptr; p = p->next()) held_ -= p->cost(), steps_++;
    erase(0, gone);
    std::size_t n = 0;
    const std::uint32_t reached = next + bytes;
    for (std::size_t i = 0; i < recent_count_; i++)
        if (seq_before(reached, recent_[i].right)) recent_[n++] = recent_[i];
    recent_count_ = n;
    if (count_ == 0) release();
    return chain;
}

void Reassembly::clear() noexcept {
    release();
    fin_ = false;
    recent_count_ = 0;
}

void Reassembly::release() noexcept {
    for (std::size_t i = 0; i < count_; i++) {
        for (Piece* p = runs_[i].first; p != nullptr;) {
            Piece* next = p->next();
            p->free();
            p = next;
        }
    }
    lwip::deallocate(runs_, array_bytes_);
    runs_ = nullptr;
    count_ = capacity_ = array_bytes_ = 0;
    bytes_ = held_ = 0;
}

}  // namespace vma::tcp
