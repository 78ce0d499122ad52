// SPDX-License-Identifier: BSD-2-Clause
// The memory of a BPF map that user space may map (BPF_F_MMAPABLE, ring buffers).
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <utility>

namespace vma::bpf {

// A forked child has it no more.
class MapMemory {
  public:
    MapMemory() = default;
    MapMemory(MapMemory&& other) noexcept
        : memory_(std::exchange(other.memory_, nullptr)), length_(other.length_) {}
    MapMemory& operator=(MapMemory&& other) noexcept {
        std::swap(memory_, other.memory_);
        std::swap(length_, other.length_);
        return *this;
    }
    ~MapMemory() {
        if (memory_ != nullptr) munmap(memory_, length_);
    }
    // False: errno says why. `write`: else it is only read. Once.
    bool map(int fd, std::size_t length, bool write = true, std::size_t offset = 0) noexcept {
        void* memory = mmap(nullptr, length, write ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, fd,
                            static_cast<off_t>(offset));
        if (memory == MAP_FAILED) return false;
        madvise(memory, length, MADV_DONTFORK);
        memory_ = memory;
        length_ = length;
        return true;
    }
    template <class T>
    T* as() const noexcept {
        return static_cast<T*>(memory_);
    }

  private:
    void* memory_ = nullptr;
    std::size_t length_ = 0;
};

// All of an array map, as one T.
template <class T>
class MappedArray {
  public:
    bool map(int fd) noexcept { return memory_.map(fd, sizeof(T)); }
    T& operator*() const noexcept { return *memory_.as<T>(); }

  private:
    MapMemory memory_;
};

}  // namespace vma::bpf
