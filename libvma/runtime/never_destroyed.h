// SPDX-License-Identifier: BSD-2-Clause
// A static object that is never destroyed, because the library's threads and the program's own atexit
// handlers still use it while static objects are destroyed.
#pragma once

#include <utility>

namespace vma {

// Constructed as T is, at compile time where T allows it.
template <class T>
union NeverDestroyed {
    template <class... Args>
    explicit constexpr NeverDestroyed(Args&&... args) noexcept : object_{std::forward<Args>(args)...} {}
    NeverDestroyed(const NeverDestroyed&) = delete;
    NeverDestroyed& operator=(const NeverDestroyed&) = delete;
    constexpr ~NeverDestroyed() {}

    constexpr T& operator*() noexcept { return object_; }
    constexpr T* operator->() noexcept { return &object_; }

  private:
    T object_;
};

}  // namespace vma
