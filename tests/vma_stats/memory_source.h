// SPDX-License-Identifier: BSD-2-Clause
// A statistics file in memory.
#pragma once

#include <algorithm>
#include <cstring>
#include <functional>
#include <vector>

#include "tools/vma_stats/reader.h"

class MemorySource : public vma_stats::Source {
  public:
    explicit MemorySource(std::vector<std::byte> bytes) : bytes_(std::move(bytes)) {}

    std::uint64_t size() const override { return claimed_size != 0 ? claimed_size : bytes_.size(); }
    std::int64_t read(std::uint64_t offset, std::span<std::byte> to) override {
        reads++;
        if (on_read) on_read(*this);
        if (fails) {
            errno = EIO;
            return -1;
        }
        if (offset >= bytes_.size()) return 0;
        const std::size_t count = std::min<std::size_t>(to.size(), bytes_.size() - offset);
        if (count != 0) std::memcpy(to.data(), bytes_.data() + offset, count);
        return static_cast<std::int64_t>(count);
    }
    template <class T>
    void poke(std::size_t offset, T value) {
        std::memcpy(bytes_.data() + offset, &value, sizeof value);
    }

    std::uint64_t claimed_size = 0;  // what size() says, when it is not the truth
    bool fails = false;
    int reads = 0;
    std::function<void(MemorySource&)> on_read;

  private:
    std::vector<std::byte> bytes_;
};
