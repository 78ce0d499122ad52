// SPDX-License-Identifier: BSD-2-Clause
// What the kernel needs to know of a program's types (BTF) to fill in the offsets of its own structures
// (CO-RE), and to call the program's functions.
#pragma once

#include <linux/bpf.h>
#include <linux/btf.h>

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace vma::verbs::xdp {

// The sections .BTF and .BTF.ext of an object that clang made. The object must stay.
class SteerTypes {
  public:
    // False: the sections are malformed.
    bool read(std::span<const char> btf, std::span<const char> ext, std::string_view program_section);
    // The types for BPF_BTF_LOAD.
    std::span<const char> types() const noexcept { return types_; }
    // Adds the program's functions and its relocations to a BPF_PROG_LOAD, which must not outlive this. `fd`:
    // of the loaded types.
    void describe(bpf_attr& load, int fd) const noexcept;

  private:
    struct Records {
        const char* first = nullptr;
        std::uint32_t count = 0, size = 0;  // size: bytes of one
    };
    bool lay_out_sections(const btf_header& header) noexcept;
    std::string_view text(std::uint32_t offset) const noexcept;
    bool find(std::span<const char> infos, std::string_view section, Records& out) const noexcept;

    std::vector<char> types_;
    std::size_t texts_ = 0;  // where they begin in types_
    std::vector<bpf_func_info> functions_;
    Records relocations_;
};

}  // namespace vma::verbs::xdp
