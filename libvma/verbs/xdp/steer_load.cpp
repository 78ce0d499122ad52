// SPDX-License-Identifier: BSD-2-Clause
// The few functions of libbpf that one program with a few maps needs. This code makes the maps, writes their
// numbers into the instructions that clang left open (relocations), and loads the program. So neither libbpf
// nor libelf is part of the library. A light skeleton would do the same by a program of type SYSCALL. That
// costs milliseconds, and the verifier accepts such a program only with CAP_PERFMON, too.
#include "libvma/verbs/xdp/steer_load.h"

#include <elf.h>
#include <errno.h>
#include <fmt/format.h>
#include <linux/bpf.h>

#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

#include "libvma/os/raw_syscall.h"
#include "libvma/verbs/xdp/steer.h"
#include "libvma/verbs/xdp/steer_btf.h"

// Newer than Debian 12's headers (Linux 5.18).
#ifndef BPF_F_XDP_HAS_FRAGS
#define BPF_F_XDP_HAS_FRAGS (1U << 5)
#endif

extern "C" const char vma_steer_object[], vma_steer_object_end[];

namespace vma::verbs::xdp {

long bpf(int command, bpf_attr& attr) noexcept {
    return os::raw_syscall(SYS_bpf, command, &attr, sizeof attr);
}

namespace {

constexpr std::string_view kProgram = "vma_steer", kSection = "xdp.frags", kSplitSection = "xdp.frags/split";

struct Map {
    std::string_view name;
    bpf_map_type type;
    std::uint32_t key, value, entries, flags;
    int SteerFds::*fd;
};
// The maps of steer.bpf.c.
constexpr Map kMaps[] = {
    {"xsks", BPF_MAP_TYPE_XSKMAP, 4, 4, STEER_MAX_XSKS, 0, &SteerFds::xsks},
    {"flows5", BPF_MAP_TYPE_HASH, sizeof(steer_five_tuple), 4, STEER_MAX_FLOWS, BPF_F_NO_PREALLOC,
     &SteerFds::flows5},
    {"flows3", BPF_MAP_TYPE_HASH, sizeof(steer_three_tuple), 4, STEER_MAX_FLOWS, BPF_F_NO_PREALLOC,
     &SteerFds::flows3},
    {"config", BPF_MAP_TYPE_ARRAY, 4, sizeof(steer_config), 1, 0, &SteerFds::config},
    {"sources", BPF_MAP_TYPE_LPM_TRIE, sizeof(steer_source), 4, STEER_MAX_SOURCES, BPF_F_NO_PREALLOC,
     &SteerFds::sources},
    {"counts", BPF_MAP_TYPE_ARRAY, 4, 8, sizeof(steer_ports) / 8, BPF_F_MMAPABLE, &SteerFds::counts},
    {"rules", BPF_MAP_TYPE_ARRAY, 4, sizeof(steer_bucket), STEER_BUCKETS, BPF_F_MMAPABLE, &SteerFds::rules},
};

// The sections of the object that the loader needs. The project's own build makes the object, so its form is
// known.
struct Object {
    std::span<const bpf_insn> program;
    std::span<const Elf64_Rel> relocations;
    std::span<const Elf64_Sym> symbols;
    std::span<const char> types, more_types;
    const char* names = nullptr;

    // `section`: of the program.
    bool read(std::string_view section) noexcept {
        const char* base = vma_steer_object;
        const auto& header = *reinterpret_cast<const Elf64_Ehdr*>(base);
        const auto* sections = reinterpret_cast<const Elf64_Shdr*>(base + header.e_shoff);
        const char* section_names = base + sections[header.e_shstrndx].sh_offset;
        for (unsigned i = 0; i < header.e_shnum; i++) {
            const Elf64_Shdr& s = sections[i];
            const std::string_view name = section_names + s.sh_name;
            if (name == section)
                program = {reinterpret_cast<const bpf_insn*>(base + s.sh_offset),
                           s.sh_size / sizeof(bpf_insn)};
            else if (name.starts_with(".rel") && name.substr(4) == section)
                relocations = {reinterpret_cast<const Elf64_Rel*>(base + s.sh_offset),
                               s.sh_size / sizeof(Elf64_Rel)};
            else if (name == ".BTF")
                types = {base + s.sh_offset, s.sh_size};
            else if (name == ".BTF.ext")
                more_types = {base + s.sh_offset, s.sh_size};
            else if (s.sh_type == SHT_SYMTAB) {
                symbols = {reinterpret_cast<const Elf64_Sym*>(base + s.sh_offset),
                           s.sh_size / sizeof(Elf64_Sym)};
                names = base + sections[s.sh_link].sh_offset;
            }
        }
        return !program.empty() && !relocations.empty() && names != nullptr;
    }
};

void set_name(char* to, std::string_view name) noexcept {
    std::memcpy(to, name.data(), std::min<std::size_t>(name.size(), 15));
}

std::string explain(const char* what, int error) {
    if (error == EPERM || error == EACCES)
        return fmt::format("no permission to load an XDP program (CAP_BPF and CAP_NET_ADMIN, or root): {}",
                           what);
    return fmt::format("cannot load the XDP program: {}: {}", what, strerror(error));
}

// The verifier gives up with EAGAIN when a signal comes. The library then defers the handler and blocks
// signals, so a retry succeeds.
long load_program(bpf_attr& attr) noexcept {
    constexpr int kLoads = 5;
    long fd = bpf(BPF_PROG_LOAD, attr);
    for (int i = 1; i < kLoads && fd == -EAGAIN; i++) fd = bpf(BPF_PROG_LOAD, attr);
    return fd;
}

// Loads the object's program, which uses these maps. Returns its descriptor, or a negative errno value.
long load(const Object& object, const SteerFds& maps, const SteerTypes* types) {
    std::vector<bpf_insn> program(object.program.begin(), object.program.end());
    for (const Elf64_Rel& r : object.relocations) {
        const std::string_view name = object.names + object.symbols[ELF64_R_SYM(r.r_info)].st_name;
        bpf_insn& load = program[r.r_offset / sizeof(bpf_insn)];
        for (const Map& map : kMaps) {
            if (map.name != name) continue;
            load.src_reg = BPF_PSEUDO_MAP_FD;
            load.imm = maps.*map.fd;
        }
        if (load.src_reg != BPF_PSEUDO_MAP_FD) return -ENOEXEC;  // a map that is not known
    }
    bpf_attr attr{};
    attr.prog_type = BPF_PROG_TYPE_XDP;
    attr.expected_attach_type = BPF_XDP;
    attr.insns = reinterpret_cast<std::uintptr_t>(program.data());
    attr.insn_cnt = static_cast<std::uint32_t>(program.size());
    attr.license = reinterpret_cast<std::uintptr_t>("Dual BSD/GPL");
    attr.prog_flags = BPF_F_XDP_HAS_FRAGS;
    set_name(attr.prog_name, kProgram);
    if (types == nullptr) return load_program(attr);
    bpf_attr about{};
    about.btf = reinterpret_cast<std::uintptr_t>(types->types().data());
    about.btf_size = static_cast<std::uint32_t>(types->types().size());
    const long btf = bpf(BPF_BTF_LOAD, about);
    if (btf < 0) return btf;
    types->describe(attr, static_cast<int>(btf));
    const long fd = load_program(attr);
    os::raw_syscall(SYS_close, btf);
    return fd;
}

// The program that splits super-frames. Negative: this kernel, or a process with few privileges, has none.
long load_splitting(const SteerFds& maps) {
    Object object;
    SteerTypes types;
    if (!object.read(kSplitSection) || !types.read(object.types, object.more_types, kSplitSection))
        return -ENOEXEC;
    return load(object, maps, &types);
}

}  // namespace

Result<SteerFds> load_steer(bool split) {
    Object object;
    if (!object.read(kSection)) return fail(ENOEXEC, "cannot load the XDP program: its object is malformed");
    SteerFds fds{-1, -1, -1, -1, -1, -1, -1, -1, false};
    auto give_up = [&](const char* what, int error) {
        for (const Map& map : kMaps)
            if (fds.*map.fd >= 0) os::raw_syscall(SYS_close, fds.*map.fd);
        return fail(error, explain(what, error));
    };
    for (const Map& map : kMaps) {
        bpf_attr attr{};
        attr.map_type = map.type;
        attr.key_size = map.key;
        attr.value_size = map.value;
        attr.max_entries = map.entries;
        attr.map_flags = map.flags;
        set_name(attr.map_name, map.name);
        const long fd = bpf(BPF_MAP_CREATE, attr);
        if (fd < 0) return give_up(map.name.data(), static_cast<int>(-fd));
        fds.*map.fd = static_cast<int>(fd);
    }
    long fd = split ? load_splitting(fds) : -EOPNOTSUPP;
    fds.splits = fd >= 0;
    if (fd < 0) fd = load(object, fds, nullptr);
    if (fd < 0) return give_up("the verifier refuses it", static_cast<int>(-fd));
    fds.program = static_cast<int>(fd);
    return fds;
}

}  // namespace vma::verbs::xdp
