// SPDX-License-Identifier: BSD-2-Clause
// Programs for the kernel (bpf(2)): the few functions of libbpf that a program with a few maps needs. This
// code makes the maps, writes their numbers into the instructions that clang left open (relocations), and
// loads the program. So neither libbpf nor libelf is part of the library.
//
// The build compiles the programs and puts their objects into the library (object_bytes.S).
#pragma once

#include <elf.h>
#include <linux/bpf.h>

#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace vma::bpf {

// bpf(2): returns its result, or a negative errno.
long bpf(int command, bpf_attr& attr) noexcept;

// A map, by its descriptor or a negative errno. `inner`: of a map of maps, one of its kind.
long make_map(std::string_view name, bpf_map_type type, std::uint32_t key, std::uint32_t value,
              std::uint32_t entries, std::uint32_t flags, int inner = 0) noexcept;
// Writes an element of a map: of a map of maps, a map's descriptor. 0, or a negative errno. `how`: BPF_ANY
// or what else bpf(2) has.
long update_map(int map, const void* key, const void* value, std::uint64_t how = BPF_ANY) noexcept;

// The number of a map, or of a function of the kernel (kernel_functions.h), by its name in the source.
using MapNumbers = std::vector<std::pair<std::string_view, int>>;

// The sections of an object that the loader needs. The project's own build makes the objects, so their form
// is known.
struct Object {
    std::span<const bpf_insn> program;
    std::span<const Elf64_Rel> relocations;
    std::span<const Elf64_Sym> symbols;
    std::span<const char> types, more_types;
    const char* names = nullptr;

    // `bytes`: the object; `section`: of the program. False: it is malformed.
    bool read(const char* bytes, std::string_view section) noexcept;
};

// Puts a program's name, or a map's, into an attribute.
void set_name(char* to, std::string_view name) noexcept;

// Loads the program, which uses these maps and functions. Functions of its own, whose addresses it passes to
// the kernel, follow it in its section; then `attr` has the types that describe them. `attr` says all but the
// instructions and the licence. Returns its descriptor, or a negative errno; ENOEXEC: the program uses
// another one. May throw std::bad_alloc.
long load(const Object& object, const MapNumbers& maps, bpf_attr& attr);

}  // namespace vma::bpf
