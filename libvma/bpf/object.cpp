// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/bpf/object.h"

#include <errno.h>

#include <algorithm>
#include <cstring>

#include "libvma/os/raw_syscall.h"

namespace vma::bpf {
namespace {

constexpr std::uint8_t kCall = BPF_JMP | BPF_CALL;

// The number of a map or function by its name, or -1.
int number_of(const MapNumbers& maps, std::string_view name) noexcept {
    for (const auto& [known, number] : maps)
        if (known == name) return number;
    return -1;
}

}  // namespace

long bpf(int command, bpf_attr& attr) noexcept {
    return os::raw_syscall(SYS_bpf, command, &attr, sizeof attr);
}

void set_name(char* to, std::string_view name) noexcept {
    std::memcpy(to, name.data(), std::min<std::size_t>(name.size(), 15));
}

long make_map(std::string_view name, bpf_map_type type, std::uint32_t key, std::uint32_t value,
              std::uint32_t entries, std::uint32_t flags, int inner) noexcept {
    bpf_attr attr{};
    attr.map_type = type;
    attr.key_size = key;
    attr.value_size = value;
    attr.max_entries = entries;
    attr.map_flags = flags;
    attr.inner_map_fd = static_cast<std::uint32_t>(inner);
    set_name(attr.map_name, name);
    return bpf(BPF_MAP_CREATE, attr);
}

long update_map(int map, const void* key, const void* value, std::uint64_t how) noexcept {
    bpf_attr attr{};
    attr.flags = how;
    attr.map_fd = static_cast<std::uint32_t>(map);
    attr.key = reinterpret_cast<std::uintptr_t>(key);
    attr.value = reinterpret_cast<std::uintptr_t>(value);
    return bpf(BPF_MAP_UPDATE_ELEM, attr);
}

bool Object::read(const char* bytes, std::string_view section) noexcept {
    const auto& header = *reinterpret_cast<const Elf64_Ehdr*>(bytes);
    const auto* sections = reinterpret_cast<const Elf64_Shdr*>(bytes + header.e_shoff);
    const char* section_names = bytes + sections[header.e_shstrndx].sh_offset;
    for (unsigned i = 0; i < header.e_shnum; i++) {
        const Elf64_Shdr& s = sections[i];
        const std::string_view name = section_names + s.sh_name;
        if (name == section)
            program = {reinterpret_cast<const bpf_insn*>(bytes + s.sh_offset), s.sh_size / sizeof(bpf_insn)};
        else if (name.starts_with(".rel") && name.substr(4) == section)
            relocations = {reinterpret_cast<const Elf64_Rel*>(bytes + s.sh_offset),
                           s.sh_size / sizeof(Elf64_Rel)};
        else if (name == ".BTF")
            types = {bytes + s.sh_offset, s.sh_size};
        else if (name == ".BTF.ext")
            more_types = {bytes + s.sh_offset, s.sh_size};
        else if (s.sh_type == SHT_SYMTAB) {
            symbols = {reinterpret_cast<const Elf64_Sym*>(bytes + s.sh_offset),
                       s.sh_size / sizeof(Elf64_Sym)};
            names = bytes + sections[s.sh_link].sh_offset;
        }
    }
    return !program.empty() && !relocations.empty() && names != nullptr;
}

long load(const Object& object, const MapNumbers& maps, bpf_attr& attr) {
    std::vector<bpf_insn> program(object.program.begin(), object.program.end());
    for (const Elf64_Rel& r : object.relocations) {
        const Elf64_Sym& symbol = object.symbols[ELF64_R_SYM(r.r_info)];
        const std::string_view name = object.names + symbol.st_name;
        const auto place = static_cast<std::int32_t>(r.r_offset / sizeof(bpf_insn));
        bpf_insn& user = program[static_cast<std::size_t>(place)];
        if (const int type = ELF64_ST_TYPE(symbol.st_info); type == STT_FUNC || type == STT_SECTION) {
            // A function of the program itself: where it begins, from the next instruction.
            const auto begin = static_cast<std::int32_t>(symbol.st_value) + user.imm;
            user.src_reg = BPF_PSEUDO_FUNC;
            user.imm = begin / static_cast<std::int32_t>(sizeof(bpf_insn)) - place - 1;
            continue;
        }
        const int number = number_of(maps, name);
        if (number < 0) return -ENOEXEC;
        user.src_reg = user.code == kCall ? BPF_PSEUDO_KFUNC_CALL : BPF_PSEUDO_MAP_FD;
        user.imm = number;
    }
    attr.insns = reinterpret_cast<std::uintptr_t>(program.data());
    attr.insn_cnt = static_cast<std::uint32_t>(program.size());
    attr.license = reinterpret_cast<std::uintptr_t>("Dual BSD/GPL");
    // The verifier gives up with EAGAIN when a signal comes. The library then defers the handler and blocks
    // signals, so a retry succeeds.
    constexpr int kLoads = 5;
    long fd = bpf(BPF_PROG_LOAD, attr);
    for (int i = 1; i < kLoads && fd == -EAGAIN; i++) fd = bpf(BPF_PROG_LOAD, attr);
    return fd;
}

}  // namespace vma::bpf
