// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/bpf/kernel_functions.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/btf.h>
#include <sys/syscall.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "libvma/os/raw_syscall.h"

namespace vma::bpf {

std::size_t bytes_behind(const btf_type& type) noexcept {
    const std::size_t members = BTF_INFO_VLEN(type.info);
    switch (BTF_INFO_KIND(type.info)) {
        case BTF_KIND_INT:
            return sizeof(std::uint32_t);
        case BTF_KIND_VAR:
            return sizeof(btf_var);
        case BTF_KIND_DECL_TAG:
            return sizeof(btf_decl_tag);
        case BTF_KIND_ARRAY:
            return sizeof(btf_array);
        case BTF_KIND_STRUCT:
        case BTF_KIND_UNION:
            return members * sizeof(btf_member);
        case BTF_KIND_ENUM:
            return members * sizeof(btf_enum);
        case BTF_KIND_ENUM64:
            return members * sizeof(btf_enum64);
        case BTF_KIND_FUNC_PROTO:
            return members * sizeof(btf_param);
        case BTF_KIND_DATASEC:
            return members * sizeof(btf_var_secinfo);
        default:
            return 0;
    }
}

long function_in(std::span<const char> types, std::string_view name) noexcept {
    btf_header header;
    if (types.size() < sizeof header) return -ENOENT;
    std::memcpy(&header, types.data(), sizeof header);
    if (header.magic != BTF_MAGIC || header.hdr_len > types.size()) return -ENOENT;
    const auto body = types.subspan(header.hdr_len);
    if (header.type_off > body.size() || header.type_len > body.size() - header.type_off ||
        header.str_off > body.size() || header.str_len > body.size() - header.str_off)
        return -ENOENT;
    const std::string_view texts(body.data() + header.str_off, header.str_len);
    const auto all = body.subspan(header.type_off, header.type_len);
    std::size_t at = 0;
    for (long number = 1; all.size() - at >= sizeof(btf_type); number++) {
        btf_type type;
        std::memcpy(&type, all.data() + at, sizeof type);
        // A text ends with a zero byte.
        if (BTF_INFO_KIND(type.info) == BTF_KIND_FUNC && type.name_off < texts.size() &&
            texts.substr(type.name_off).starts_with(name) && type.name_off + name.size() < texts.size() &&
            texts[type.name_off + name.size()] == '\0')
            return number;
        const std::size_t size = sizeof type + bytes_behind(type);
        if (size > all.size() - at) break;
        at += size;
    }
    return -ENOENT;
}

long kernel_function(std::string_view name) {
    const long file = os::raw_syscall(SYS_openat, AT_FDCWD, "/sys/kernel/btf/vmlinux", O_RDONLY | O_CLOEXEC);
    if (file < 0) return -ENOENT;
    constexpr std::size_t kStep = 1 << 20, kMost = 64 << 20;
    std::vector<char> types;
    std::size_t length = 0;
    long got = 1;
    while (got > 0 && length < kMost) {
        types.resize(length + kStep);
        got = os::raw_syscall(SYS_read, file, types.data() + length, kStep);
        if (got > 0) length += static_cast<std::size_t>(got);
    }
    os::raw_syscall(SYS_close, file);
    return function_in({types.data(), length}, name);
}

}  // namespace vma::bpf
