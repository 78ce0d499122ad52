// SPDX-License-Identifier: BSD-2-Clause
#include "tests/support/mlx5_sim/context.h"

#include <fcntl.h>
#include <infiniband/verbs.h>
#include <pthread.h>
#include <rdma/mlx5-abi.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "tests/support/mlx5_sim/own_calls.h"
#include "tests/support/mlx5_sim/uverbs.h"

namespace mlx5_sim {
namespace {

constexpr int kFirstLockFile = 500;  // out of the way of the program's own descriptors

// A forked child has its own number of each, but the same open file. It closes them, as a program closes its
// device files.
std::vector<int>& lock_files() {
    static auto* const files = [] {
        pthread_atfork(nullptr, nullptr, [] {
            for (const int fd : lock_files()) own_call(SYS_close, fd);
            lock_files().clear();
        });
        return new std::vector<int>;
    }();
    return *files;
}

}  // namespace

Device::Device(Identity who) : identity(std::move(who)), nic(kPageBytes) {
    nic.set_clock([this] { return clock.ticks(); }, kClockKHz / 1000);
}

Context::Context(Device& owner, Engine& where, int fd) : device(owner), engine(where) {
    struct stat status {};
    ::syscall(SYS_fstat, fd, &status);
    inode = status.st_ino;
    dev = status.st_dev;
    device.contexts.push_back(this);
}

Context::~Context() {
    while (!flows.empty()) destroy_flow(*this, flows.first());
    while (!qps.empty()) destroy_qp(*this, qps.first());
    while (!cqs.empty()) destroy_cq(*this, cqs.first());
    while (!mrs.empty()) destroy_mr(*this, mrs.first());
    std::erase(device.contexts, this);
    if (std::erase(lock_files(), lock_fd) != 0) own_call(SYS_close, lock_fd);
    if (device.contexts.empty()) engine.run([this] { device.wire.reset(); });
    if (pages == nullptr) return;
    for (std::uint32_t i = 0; i < uars; ++i) device.nic.remove_uar(first_uar + i);
    device.clock.detach(pages + uars * kPageBytes);
    ::munmap(pages, (uars + 2) * kPageBytes);
}

int Context::lock(int command, void* argument) {
    if (lock_fd < 0) {
        const std::string file = sysfs_path() + "/class/infiniband/" + device.identity.ibdev + "/node_type";
        const auto fd = static_cast<int>(own_call(SYS_openat, AT_FDCWD, file.c_str(), O_RDWR | O_CLOEXEC));
        if (fd < 0) return -1;
        lock_fd = static_cast<int>(own_call(SYS_fcntl, fd, F_DUPFD_CLOEXEC, kFirstLockFile));
        own_call(SYS_close, fd);
        if (lock_fd < 0) return -1;
        lock_files().push_back(lock_fd);
    }
    return static_cast<int>(own_call(SYS_fcntl, lock_fd, command, argument));
}

bool Context::make_pages(int fd, std::uint32_t count) {
    const std::size_t bytes = (count + 2) * kPageBytes;
    if (::ftruncate(fd, static_cast<off_t>(bytes)) != 0) return false;
    // Not libc's, which is interposed and would take it for the program's.
    const long mapped = ::syscall(SYS_mmap, nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (mapped == -1) return false;
    pages = reinterpret_cast<std::byte*>(mapped);  // NOLINT(performance-no-int-to-ptr)
    uars = count;
    first_uar = device.next_uar;
    device.next_uar += count;
    for (std::uint32_t i = 0; i < count; ++i) device.nic.add_uar(first_uar + i, pages + i * kPageBytes);
    device.clock.attach(pages + count * kPageBytes, pages + (count + 1) * kPageBytes);
    return true;
}

off_t Context::page_offset(off_t offset, std::size_t length, int protection) const {
    if (pages == nullptr || length != kPageBytes || offset < 0 ||
        offset % static_cast<off_t>(kPageBytes) != 0)
        return -1;
    const auto page = static_cast<std::uint64_t>(offset) / kPageBytes;
    const auto command = page >> 8 & 0xff;
    const auto index = (page & 0xff) | (page >> 16) << 8;
    switch (command) {
        case MLX5_IB_MMAP_REGULAR_PAGE:
        case MLX5_IB_MMAP_WC_PAGE:
        case MLX5_IB_MMAP_NC_PAGE:
            return index < uars ? static_cast<off_t>(index * kPageBytes) : -1;
        case MLX5_IB_MMAP_CORE_CLOCK:
        case MLX5_IB_MMAP_CLOCK_INFO:
            if (index != 0 || (protection & PROT_WRITE) != 0) return -1;
            return static_cast<off_t>((uars + (command == MLX5_IB_MMAP_CLOCK_INFO ? 1 : 0)) * kPageBytes);
        default:
            return -1;
    }
}

}  // namespace mlx5_sim
