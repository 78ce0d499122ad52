// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/verbs/xdp/steer_btf.h"

#include <cstring>

#include "libvma/bpf/kernel_functions.h"

namespace vma::verbs::xdp {
namespace {

// Of .BTF.ext (the kernel's Documentation/bpf/btf.rst).
struct ExtHeader {
    std::uint16_t magic;
    std::uint8_t version, flags;
    std::uint32_t length;
    std::uint32_t functions_at, functions_length, lines_at, lines_length, relocations_at, relocations_length;
};

using vma::bpf::bytes_behind;

}  // namespace

bool SteerTypes::read(std::span<const char> btf, std::span<const char> ext,
                      std::string_view program_section) {
    if (btf.size() < sizeof(btf_header) || ext.size() < sizeof(ExtHeader)) return false;
    types_.assign(btf.begin(), btf.end());
    btf_header header;
    std::memcpy(&header, btf.data(), sizeof header);
    texts_ = std::size_t{header.hdr_len} + header.str_off;
    if (texts_ + header.str_len != btf.size() || !lay_out_sections(header)) return false;
    ExtHeader parts;
    std::memcpy(&parts, ext.data(), sizeof parts);
    const auto part = [&](std::uint32_t at, std::uint32_t length) {
        const std::size_t from = std::size_t{parts.length} + at;
        return from + length <= ext.size() ? ext.subspan(from, length) : std::span<const char>();
    };
    Records functions;
    if (!find(part(parts.functions_at, parts.functions_length), program_section, functions) ||
        functions.size < sizeof(bpf_func_info))
        return false;
    for (std::size_t i = 0; i < functions.count; i++) {
        bpf_func_info function;
        std::memcpy(&function, functions.first + i * functions.size, sizeof function);
        function.insn_off /= sizeof(bpf_insn);  // the object counts bytes
        functions_.push_back(function);
    }
    // Without a structure of the kernel's there is nothing to relocate.
    if (!find(part(parts.relocations_at, parts.relocations_length), program_section, relocations_))
        relocations_ = {};
    return true;
}

// clang leaves the sizes of sections and the places of their variables open. The kernel wants some: the
// program uses none of them.
bool SteerTypes::lay_out_sections(const btf_header& header) noexcept {
    std::size_t at = std::size_t{header.hdr_len} + header.type_off;
    const std::size_t end = at + header.type_len;
    if (end > types_.size()) return false;
    while (at + sizeof(btf_type) <= end) {
        auto& type = *reinterpret_cast<btf_type*>(types_.data() + at);
        at += sizeof type + bytes_behind(type);
        if (at > end) return false;
        if (BTF_INFO_KIND(type.info) != BTF_KIND_DATASEC) continue;
        type.size = 0;
        auto* variables = reinterpret_cast<btf_var_secinfo*>(&type + 1);
        for (std::size_t i = 0; i < BTF_INFO_VLEN(type.info); i++) {
            variables[i].offset = type.size;
            type.size += variables[i].size;
        }
    }
    return at == end;
}

std::string_view SteerTypes::text(std::uint32_t offset) const noexcept {
    const std::size_t at = texts_ + offset;
    if (at >= types_.size()) return {};
    return {types_.data() + at, strnlen(types_.data() + at, types_.size() - at)};
}

// Records of `section` in a part of .BTF.ext: the size of a record, then for each section its name, how many
// there are, and these.
bool SteerTypes::find(std::span<const char> infos, std::string_view section, Records& out) const noexcept {
    if (infos.size() < sizeof out.size) return false;
    std::memcpy(&out.size, infos.data(), sizeof out.size);
    for (std::size_t at = sizeof out.size; at + 8 <= infos.size();) {
        std::uint32_t name;
        std::memcpy(&name, infos.data() + at, sizeof name);
        std::memcpy(&out.count, infos.data() + at + 4, sizeof out.count);
        out.first = infos.data() + at + 8;
        const std::size_t length = std::size_t{out.count} * out.size;
        at += 8 + length;
        if (at > infos.size()) return false;
        if (text(name) == section) return true;
    }
    return false;
}

void SteerTypes::describe(bpf_attr& load, int fd) const noexcept {
    load.prog_btf_fd = static_cast<std::uint32_t>(fd);
    load.func_info = reinterpret_cast<std::uintptr_t>(functions_.data());
    load.func_info_cnt = static_cast<std::uint32_t>(functions_.size());
    load.func_info_rec_size = sizeof(bpf_func_info);
    if (relocations_.count == 0) return;
    load.core_relos = reinterpret_cast<std::uintptr_t>(relocations_.first);
    load.core_relo_cnt = relocations_.count;
    load.core_relo_rec_size = relocations_.size;
}

}  // namespace vma::verbs::xdp
