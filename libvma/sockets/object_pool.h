// SPDX-License-Identifier: BSD-2-Clause
// Memory of descriptor objects of one class. It is never given back to the allocator while the process lives:
// fd_object.h says why. So an object that is done goes on a list, whose link lies behind the reference count
// that late readers may still look at.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstring>
#include <new>

#include "libvma/runtime/lock.h"
#include "libvma/sockets/fd_object.h"

namespace vma::sockets {

// T derives from FdObject first, so that the count lies at the same place in every object and in free memory.
template <class T>
class ObjectPool {
  public:
    // Memory for one object; null when there is none, or in a signal handler that interrupted this function.
    void* take() noexcept {
        if (lock_.owned_by_me()) return nullptr;
        lock_.lock();
        // Others only add to the list, so the first one stays where it is until its successor is read.
        Free* f = first_.load(std::memory_order_acquire);
        while (f != nullptr && !first_.compare_exchange_weak(f, f->next, std::memory_order_acquire)) {
        }
        lock_.unlock();
        if (f != nullptr) return reinterpret_cast<char*>(f) - kLinkOffset;
        void* memory = ::operator new (sizeof(T), std::align_val_t{alignof(T)}, std::nothrow);
        if (memory != nullptr) std::memset(memory, 0, sizeof(T));
        return memory;
    }
    // The object at `memory` has been destroyed. Any thread, also in signal handlers.
    void give(void* memory) noexcept {
        auto* f = reinterpret_cast<Free*>(static_cast<char*>(memory) + kLinkOffset);
        f->next = first_.load(std::memory_order_relaxed);
        while (!first_.compare_exchange_weak(f->next, f, std::memory_order_release)) {
        }
    }
    // In a forked child: another thread of the parent may have been inside take().
    void reset_in_child() noexcept { new (&lock_) Lock; }

  private:
    struct Free {
        Free* next;
    };
    static constexpr std::size_t kLinkOffset = (sizeof(FdObject) + 15) & ~std::size_t{15};
    Lock lock_;
    std::atomic<Free*> first_{nullptr};
};

}  // namespace vma::sockets
