// SPDX-License-Identifier: BSD-2-Clause
// The options a program set on a listener. An accepted socket has them too, but setting them on its shadow
// one by one would cost more than all the rest of accept(); so each accepted socket shares this list and sets
// them when the shadow is first asked for an option, or becomes the kernel's.
#pragma once

#include <sys/socket.h>

#include <cstddef>
#include <cstring>
#include <vector>

namespace vma::sockets {

class OptionLog {
  public:
    struct Entry {
        int level, name;
        std::vector<unsigned char> value;
    };
    // Later values of an option replace earlier ones. May throw std::bad_alloc.
    void note(int level, int name, const void* value, socklen_t length) {
        const auto* bytes = static_cast<const unsigned char*>(value);
        std::vector<unsigned char> copy(bytes, bytes + length);
        for (Entry& e : entries_)
            if (e.level == level && e.name == name) {
                e.value = std::move(copy);
                return;
            }
        entries_.push_back({level, name, std::move(copy)});
    }
    const std::vector<Entry>& entries() const noexcept { return entries_; }

  private:
    std::vector<Entry> entries_;
};

}  // namespace vma::sockets
