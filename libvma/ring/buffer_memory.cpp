// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/ring/buffer_memory.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include "libvma/runtime/log.h"

namespace vma::ring {

Result<std::uint8_t*> map_buffer_memory(std::size_t& length, bool huge, bool warn) {
    constexpr std::size_t kHugePage = 2u << 20;
    const std::size_t rounded = (length + kHugePage - 1) & ~(kHugePage - 1);
    void* memory = MAP_FAILED;
    if (huge)
        memory =
            mmap(nullptr, rounded, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);
    if (memory == MAP_FAILED && huge && warn)
        log::once(log::Level::warn,
                  "not enough huge pages for {} MiB of buffers, ordinary pages are used: reserve {} more "
                  "(vm.nr_hugepages), or "
                  "set VMA_MEM_ALLOC_TYPE=1",
                  rounded >> 20, rounded / kHugePage);
    if (memory == MAP_FAILED)
        memory = mmap(nullptr, rounded, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return fail(errno, fmt::format("mmap of {} KiB for buffers: {}", rounded / 1024, strerror(errno)));
    if (huge) madvise(memory, rounded, MADV_HUGEPAGE);
    madvise(memory, rounded, MADV_DONTFORK);
    length = rounded;
    return static_cast<std::uint8_t*>(memory);
}

}  // namespace vma::ring
