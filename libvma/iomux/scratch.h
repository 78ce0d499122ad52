// SPDX-License-Identifier: BSD-2-Clause
// An array for the length of a call: on the stack while it is small, on the heap beyond. It is never a VLA,
// because the program chooses the length.
#pragma once

#include <cstddef>
#include <memory>
#include <new>
#include <span>
#include <utility>

namespace vma::iomux {

template <class T, std::size_t Inline>
class Scratch {
  public:
    Scratch() noexcept : data_(reinterpret_cast<T*>(inline_)) {}
    ~Scratch() {
        clear();
        if (data_ != reinterpret_cast<T*>(inline_)) ::operator delete(data_, std::align_val_t(alignof(T)));
    }
    Scratch(const Scratch&) = delete;
    Scratch& operator=(const Scratch&) = delete;

    // Throws std::bad_alloc; the contents then stay unchanged.
    void push_back(T value) {
        if (size_ == capacity_) reserve(capacity_ * 2);
        new (data_ + size_++) T(std::move(value));
    }
    void reserve(std::size_t capacity) {
        if (capacity <= capacity_) return;
        auto* grown = static_cast<T*>(::operator new(capacity * sizeof(T), std::align_val_t(alignof(T))));
        std::uninitialized_move_n(data_, size_, grown);
        std::destroy_n(data_, size_);
        if (data_ != reinterpret_cast<T*>(inline_)) ::operator delete(data_, std::align_val_t(alignof(T)));
        data_ = grown;
        capacity_ = capacity;
    }
    // Value-initialises new elements.
    void resize(std::size_t size) {
        reserve(size);
        while (size_ > size) data_[--size_].~T();
        while (size_ < size) new (data_ + size_++) T();
    }
    void clear() noexcept {
        std::destroy_n(data_, size_);
        size_ = 0;
    }

    T* data() noexcept { return data_; }
    const T* data() const noexcept { return data_; }
    std::size_t size() const noexcept { return size_; }
    bool empty() const noexcept { return size_ == 0; }
    T& operator[](std::size_t i) noexcept { return data_[i]; }
    T& back() noexcept { return data_[size_ - 1]; }
    T* begin() noexcept { return data_; }
    T* end() noexcept { return data_ + size_; }
    const T* begin() const noexcept { return data_; }
    const T* end() const noexcept { return data_ + size_; }

  private:
    alignas(T) std::byte inline_[Inline * sizeof(T)];
    T* data_;
    std::size_t size_ = 0;
    std::size_t capacity_ = Inline;
};

}  // namespace vma::iomux
