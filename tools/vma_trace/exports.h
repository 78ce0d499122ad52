// SPDX-License-Identifier: BSD-2-Clause
// The functions of libibverbs that the library stands in front of, and where the real ones are.
#pragma once

namespace vma_trace {

struct Export {
    const char* name;
    const char* version;  // the symbol version that the replacement has; other versions stay as they are
    void* ours;
    void* real;  // found when first needed, or when the program looked it up itself
};

// The row of this name, or nullptr. Cheap for names that do not begin with ibv_.
Export* find_export(const char* name) noexcept;

}  // namespace vma_trace
