// SPDX-License-Identifier: BSD-2-Clause
// Functions that the kernel offers to programs beyond its helpers (kfuncs).
#pragma once

#include <linux/btf.h>

#include <cstddef>
#include <span>
#include <string_view>

namespace vma::bpf {

// The number that BPF_PSEUDO_KFUNC_CALL wants, from the kernel's description of its types. ENOENT, as a
// negative errno: this kernel has no such function, or does not describe itself here.
long kernel_function(std::string_view name);
// The same, from a description that is at hand (the format BTF).
long function_in(std::span<const char> types, std::string_view name) noexcept;

// Bytes behind the head of a type in such a description.
std::size_t bytes_behind(const btf_type& type) noexcept;

}  // namespace vma::bpf
