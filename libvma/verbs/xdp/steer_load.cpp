// SPDX-License-Identifier: BSD-2-Clause
// A light skeleton would do the same by a program of type SYSCALL. That costs milliseconds, and the verifier
// accepts such a program only with CAP_PERFMON, too.
#include "libvma/verbs/xdp/steer_load.h"

#include <errno.h>
#include <fmt/format.h>
#include <linux/bpf.h>
#include <linux/if_xdp.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "libvma/bpf/kernel_functions.h"
#include "libvma/os/raw_syscall.h"
#include "libvma/verbs/xdp/steer.h"
#include "libvma/verbs/xdp/steer_btf.h"

// Newer than Debian 12's headers (Linux 5.18).
#ifndef BPF_F_XDP_HAS_FRAGS
#define BPF_F_XDP_HAS_FRAGS (1U << 5)
#endif
// The same (Linux 6.3).
#ifndef BPF_F_XDP_DEV_BOUND_ONLY
#define BPF_F_XDP_DEV_BOUND_ONLY (1U << 6)
#endif

extern "C" const char vma_steer_object[];

namespace vma::verbs::xdp {

namespace {

constexpr std::string_view kSection = "xdp.frags", kSplitSection = "xdp.frags/split",
                           kTagsSection = "xdp.frags/tags", kCopySection = "tcx";
constexpr std::string_view kTagFunction = "bpf_xdp_metadata_rx_vlan_tag";

struct Map {
    std::string_view name;
    bpf_map_type type;
    std::uint32_t key, value, entries, flags;
    int SteerFds::*fd;
};
// The maps of steer.bpf.c that all programs have.
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

using vma::bpf::make_map;
using vma::bpf::MapNumbers;
using vma::bpf::Object;

MapNumbers numbers_of(const SteerFds& fds) {
    MapNumbers numbers;
    for (const Map& map : kMaps) numbers.emplace_back(map.name, fds.*map.fd);
    return numbers;
}

std::string explain(const char* what, int error) {
    if (error == EPERM || error == EACCES)
        return fmt::format("no permission to load an XDP program (CAP_BPF and CAP_NET_ADMIN, or root): {}",
                           what);
    return fmt::format("cannot load the XDP program: {}: {}", what, strerror(error));
}

// Loads the object's program, which uses these maps. Returns its descriptor, or a negative errno value.
// `bound_to`: the only device for it, or 0.
long load(const Object& object, const MapNumbers& maps, const SteerTypes* types,
          bpf_prog_type type = BPF_PROG_TYPE_XDP, int bound_to = 0) {
    bpf_attr attr{};
    attr.prog_type = type;
    if (type == BPF_PROG_TYPE_XDP) {
        attr.expected_attach_type = BPF_XDP;
        attr.prog_flags = BPF_F_XDP_HAS_FRAGS | (bound_to != 0 ? BPF_F_XDP_DEV_BOUND_ONLY : 0);
        attr.prog_ifindex = static_cast<std::uint32_t>(bound_to);
    }
    vma::bpf::set_name(attr.prog_name, kProgramName);
    if (types == nullptr) return vma::bpf::load(object, maps, attr);
    bpf_attr about{};
    about.btf = reinterpret_cast<std::uintptr_t>(types->types().data());
    about.btf_size = static_cast<std::uint32_t>(types->types().size());
    const long btf = bpf(BPF_BTF_LOAD, about);
    if (btf < 0) return btf;
    types->describe(attr, static_cast<int>(btf));
    const long fd = vma::bpf::load(object, maps, attr);
    os::raw_syscall(SYS_close, btf);
    return fd;
}

// The program that splits super-frames. Negative: this kernel, or a process with few privileges, has none.
long load_splitting(const SteerFds& maps) {
    Object object;
    SteerTypes types;
    if (!object.read(vma_steer_object, kSplitSection) ||
        !types.read(object.types, object.more_types, kSplitSection))
        return -ENOEXEC;
    return load(object, numbers_of(maps), &types);
}

// The program that asks for tags. Negative: this kernel has none, or refuses it.
long load_asking_tags(const SteerFds& maps, int ifindex) {
    Object object;
    if (!object.read(vma_steer_object, kTagsSection)) return -ENOEXEC;
    const long function = vma::bpf::kernel_function(kTagFunction);
    if (function < 0) return -EOPNOTSUPP;
    MapNumbers numbers = numbers_of(maps);
    numbers.emplace_back(kTagFunction, static_cast<int>(function));
    return load(object, numbers, nullptr, BPF_PROG_TYPE_XDP, ifindex);
}

void close_all(const SteerFds& fds) noexcept {
    for (const Map& map : kMaps)
        if (fds.*map.fd >= 0) os::raw_syscall(SYS_close, fds.*map.fd);
}

// The maps that all programs have; `program` and `splits` are unset.
Result<SteerFds> make_maps() {
    SteerFds fds{-1, -1, -1, -1, -1, -1, -1, -1, false};
    for (const Map& map : kMaps) {
        const long fd = make_map(map.name, map.type, map.key, map.value, map.entries, map.flags);
        if (fd < 0) {
            close_all(fds);
            return fail(static_cast<int>(-fd), explain(map.name.data(), static_cast<int>(-fd)));
        }
        fds.*map.fd = static_cast<int>(fd);
    }
    return fds;
}

// Gives the descriptor, or negative errno, to its owner. 0, or a negative errno.
long own(long fd, InternalFd& owner) noexcept {
    if (fd < 0) return fd;
    owner = InternalFd(static_cast<int>(fd));
    return owner ? 0 : -EMFILE;
}

// The tcx program's own maps. 0, or a negative errno; `busy` is for the program alone.
long make_copy_maps(CopyMaps& out, InternalFd& busy) {
    InternalFd chunks, wake;
    if (const long error = own(make_chunks(1), chunks); error != 0) return error;
    if (const long error = own(make_wake(), wake); error != 0) return error;
    const struct {
        InternalFd& owner;
        const char* name;
        bpf_map_type type;
        std::uint32_t value, entries, flags;
        int inner;
    } maps[] = {
        {out.rings, "rings", BPF_MAP_TYPE_ARRAY, sizeof(steer_ring), STEER_RINGS, BPF_F_MMAPABLE, 0},
        {out.posted, "posted", BPF_MAP_TYPE_ARRAY, 8, out.sizes.posted, BPF_F_MMAPABLE, 0},
        {out.received, "received", BPF_MAP_TYPE_ARRAY, sizeof(xdp_desc), out.sizes.received, BPF_F_MMAPABLE,
         0},
        {out.memory, "memory", BPF_MAP_TYPE_ARRAY_OF_MAPS, 4, 1, 0, chunks.get()},
        {out.wakes, "wakes", BPF_MAP_TYPE_ARRAY_OF_MAPS, 4, STEER_MAX_SLOTS, 0, wake.get()},
        {busy, "busy", BPF_MAP_TYPE_ARRAY, 4, 1, 0, 0},
    };
    for (const auto& m : maps)
        if (const long error =
                own(make_map(m.name, m.type, 4, m.value, m.entries, m.flags, m.inner), m.owner);
            error != 0)
            return error;
    return 0;
}

// What a loader returns: `program` is its descriptor, or why there is none.
Result<SteerFds> loaded(SteerFds& fds, long program, const char* what) {
    if (program < 0) {
        close_all(fds);
        return fail(static_cast<int>(-program), explain(what, static_cast<int>(-program)));
    }
    fds.program = static_cast<int>(program);
    return fds;
}

}  // namespace

long make_chunks(std::size_t count) noexcept {
    return make_map("chunks", BPF_MAP_TYPE_ARRAY, 4, STEER_CHUNK, static_cast<std::uint32_t>(count),
                    BPF_F_MMAPABLE | BPF_F_INNER_MAP);
}

long make_wake() noexcept {
    return make_map("wake", BPF_MAP_TYPE_RINGBUF, 0, 0, static_cast<std::uint32_t>(getpagesize()), 0);
}

Result<SteerFds> load_steer(Steer which, int ifindex) {
    Object object;
    if (!object.read(vma_steer_object, kSection))
        return fail(ENOEXEC, "cannot load the XDP program: its object is malformed");
    auto fds = make_maps();
    if (!fds) return fds;
    if (which == Steer::tags)
        return loaded(*fds, load_asking_tags(*fds, ifindex), "a program that asks for VLAN tags");
    long fd = which == Steer::splits ? load_splitting(*fds) : -EOPNOTSUPP;
    fds->splits = fd >= 0;
    if (fd < 0) fd = load(object, numbers_of(*fds), nullptr);
    return loaded(*fds, fd, "the verifier refuses it");
}

Result<SteerFds> load_steer_copy(CopyMaps& copies) {
    Object object;
    SteerTypes types;
    if (!object.read(vma_steer_object, kCopySection) ||
        !types.read(object.types, object.more_types, kCopySection))
        return fail(ENOEXEC, "cannot load the tcx program: its object is malformed");
    auto fds = make_maps();
    if (!fds) return fds;
    InternalFd busy;
    long fd = make_copy_maps(copies, busy);
    if (fd >= 0) {
        MapNumbers maps = numbers_of(*fds);
        maps.insert(maps.end(), {{"rings", copies.rings.get()},
                                 {"posted", copies.posted.get()},
                                 {"received", copies.received.get()},
                                 {"memory", copies.memory.get()},
                                 {"wakes", copies.wakes.get()},
                                 {"busy", busy.get()}});
        fd = load(object, maps, &types, BPF_PROG_TYPE_SCHED_CLS);
    }
    fds->splits = true;
    return loaded(*fds, fd, "the tcx program");
}

}  // namespace vma::verbs::xdp
