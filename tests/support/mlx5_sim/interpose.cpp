// SPDX-License-Identifier: BSD-2-Clause
// The system calls by which a program would reach the kernel's side of RDMA. What is the simulator's is
// answered here, all else goes to the next definition (libc's, as a rule) after a look or two: at a path's
// first letters, a request code, a counter.
//
// An open device is a memfd, which fstat() shows as the character device it stands for. Do not compile this
// file with _FILE_OFFSET_BITS=64: it defines both names of each call.
#include <dlfcn.h>
#include <fcntl.h>
#include <linux/netlink.h>
#include <rdma/rdma_user_ioctl_cmds.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstring>
#include <string>

#include "tests/support/mlx5_sim/context.h"
#include "tests/support/mlx5_sim/uverbs.h"

namespace {

using mlx5_sim::Simulator;

// The next definition of a function, looked up once.
template <class Function>
class Next {
  public:
    constexpr explicit Next(const char* name) : name_(name) {}
    template <class... Args>
    auto operator()(Args... args) {
        Function* function = function_.load(std::memory_order_relaxed);
        if (function == nullptr) {
            function = reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name_));
            function_.store(function, std::memory_order_relaxed);
        }
        return function(args...);
    }

  private:
    const char* name_;
    std::atomic<Function*> function_{nullptr};
};

constinit Next<int(const char*, int, ...)> next_open{"open"};
constinit Next<int(int, unsigned long, ...)> next_ioctl{"ioctl"};
constinit Next<int(int)> next_close{"close"};
constinit Next<int(int, int, ...)> next_fcntl{"fcntl"};
constinit Next<int(const char*, struct stat*)> next_stat{"stat"};
constinit Next<int(int, struct stat*)> next_fstat{"fstat"};
constinit Next<void*(void*, size_t, int, int, int, off_t)> next_mmap{"mmap"};
constinit Next<int(int, int, int)> next_socket{"socket"};

constexpr char kNodes[] = "/dev/infiniband/uverbs";

// "uverbs0" of /dev/infiniband/uverbs0, if the tree has it; else empty.
std::string simulated_node(const char* path) {
    if (path == nullptr || std::strncmp(path, kNodes, sizeof(kNodes) - 1) != 0) return {};
    std::string name = std::strrchr(path, '/') + 1;
    const std::string tree = mlx5_sim::sysfs_path();
    if (tree.empty() || !mlx5_sim::read_identity(tree, name)) return {};
    return name;
}

void show_as_device(struct stat* status, unsigned minor) {
    status->st_mode = S_IFCHR | 0666;
    status->st_rdev = makedev(mlx5_sim::kUverbsMajor, minor);
    status->st_size = 0;
    status->st_blocks = 0;
}

// Is the descriptor an open device of the simulator's, perhaps of a parent?
bool is_ours(int fd, struct stat* status) {
    const dev_t memfds = mlx5_sim::memfd_device();
    return memfds != 0 && ::syscall(SYS_fstat, fd, status) == 0 && status->st_dev == memfds;
}

int open_file(const char* path, int flags, mode_t mode) {
    const std::string uverbs = simulated_node(path);
    if (!uverbs.empty()) return Simulator::get().open(uverbs, (flags & O_CLOEXEC) != 0);
    return next_open(path, flags, mode);
}

int stat_file(const char* path, struct stat* status) {
    const std::string uverbs = simulated_node(path);
    if (uverbs.empty()) return next_stat(path, status);
    *status = {};
    show_as_device(status,
                   mlx5_sim::kUverbsFirstMinor + static_cast<unsigned>(std::stoul("0" + uverbs.substr(6))));
    status->st_nlink = 1;
    return 0;
}

int fstat_file(int fd, struct stat* status) {
    const int result = next_fstat(fd, status);
    if (result != 0 || status->st_dev != mlx5_sim::memfd_device()) return result;
    const Simulator* const simulator = Simulator::existing();
    const int minor = simulator != nullptr ? simulator->minor_of(status->st_dev, status->st_ino) : -1;
    if (minor >= 0) show_as_device(status, static_cast<unsigned>(minor));
    return result;
}

void* map(void* address, size_t length, int protection, int flags, int fd, off_t offset) {
    struct stat status {};
    if (fd < 0 || !is_ours(fd, &status)) return next_mmap(address, length, protection, flags, fd, offset);
    Simulator* const simulator = Simulator::existing();
    if (simulator == nullptr || simulator->minor_of(status.st_dev, status.st_ino) < 0) {
        return next_mmap(address, length, protection, flags, fd, offset);  // somebody's own memfd
    }
    off_t inside = -1;
    {
        const std::lock_guard lock(simulator->control);
        if (const auto* const context = simulator->find(status.st_dev, status.st_ino)) {
            inside = context->page_offset(offset, length, protection);
        }
    }
    if (inside < 0 || (flags & MAP_SHARED) == 0) {
        errno = EINVAL;
        return MAP_FAILED;
    }
    return next_mmap(address, length, protection, flags, fd, inside);
}

int verbs_ioctl(int fd, void* argument) {
    struct stat status {};
    if (!is_ours(fd, &status)) return next_ioctl(fd, static_cast<unsigned long>(RDMA_VERBS_IOCTL), argument);
    int error = ENODEV;  // a child of fork() has its parent's descriptors, not its parent's device
    if (Simulator* const simulator = Simulator::existing()) {
        const std::lock_guard lock(simulator->control);
        mlx5_sim::Context* const context = simulator->find(status.st_dev, status.st_ino);
        if (context != nullptr) error = mlx5_sim::uverbs_ioctl(*context, fd, argument);
    }
    if (error == 0) return 0;
    errno = error;
    return -1;
}

// A device file is one file, whose locks all processes see; a memfd is one process's. So the file in the tree
// that names the device has them.
int lock_file(int fd, int command, void* argument) {
    struct stat status {};
    Simulator* const simulator = is_ours(fd, &status) ? Simulator::existing() : nullptr;
    if (simulator == nullptr || simulator->minor_of(status.st_dev, status.st_ino) < 0)
        return next_fcntl(fd, command, argument);
    const std::lock_guard lock(simulator->control);
    mlx5_sim::Context* const context = simulator->find(status.st_dev, status.st_ino);
    if (context == nullptr) {
        errno = EBADF;
        return -1;
    }
    return context->lock(command, argument);
}

}  // namespace

extern "C" {

#pragma GCC visibility push(default)

int open(const char* path, int flags, ...) {
    mode_t mode = 0;
    if ((flags & O_CREAT) != 0 || (flags & O_TMPFILE) == O_TMPFILE) {
        va_list arguments;
        va_start(arguments, flags);
        mode = va_arg(arguments, mode_t);
        va_end(arguments);
    }
    return open_file(path, flags, mode);
}
int open64(const char* path, int flags, ...) {
    mode_t mode = 0;
    if ((flags & O_CREAT) != 0 || (flags & O_TMPFILE) == O_TMPFILE) {
        va_list arguments;
        va_start(arguments, flags);
        mode = va_arg(arguments, mode_t);
        va_end(arguments);
    }
    return open_file(path, flags | O_LARGEFILE, mode);
}

int stat(const char* path, struct stat* status) noexcept { return stat_file(path, status); }
int stat64(const char* path, struct stat64* status) noexcept {
    return stat_file(path, reinterpret_cast<struct stat*>(status));  // one layout on 64-bit machines
}
int fstat(int fd, struct stat* status) noexcept { return fstat_file(fd, status); }
int fstat64(int fd, struct stat64* status) noexcept {
    return fstat_file(fd, reinterpret_cast<struct stat*>(status));
}

int ioctl(int fd, unsigned long request, ...) noexcept {
    va_list arguments;
    va_start(arguments, request);
    void* const argument = va_arg(arguments, void*);
    va_end(arguments);
    if (request == RDMA_VERBS_IOCTL) return verbs_ioctl(fd, argument);
    return next_ioctl(fd, request, argument);
}

int fcntl(int fd, int command, ...) {
    va_list arguments;
    va_start(arguments, command);
    void* const argument = va_arg(arguments, void*);
    va_end(arguments);
    if (command == F_OFD_SETLK || command == F_OFD_GETLK) return lock_file(fd, command, argument);
    return next_fcntl(fd, command, argument);
}
int fcntl64(int fd, int command, ...) {
    va_list arguments;
    va_start(arguments, command);
    void* const argument = va_arg(arguments, void*);
    va_end(arguments);
    if (command == F_OFD_SETLK || command == F_OFD_GETLK) return lock_file(fd, command, argument);
    return next_fcntl(fd, command, argument);
}

void* mmap(void* address, size_t length, int protection, int flags, int fd, off_t offset) noexcept {
    return map(address, length, protection, flags, fd, offset);
}
void* mmap64(void* address, size_t length, int protection, int flags, int fd, off64_t offset) noexcept {
    return map(address, length, protection, flags, fd, offset);
}

// The last close of a device ends what was made on it.
int close(int fd) {
    Simulator* const simulator = Simulator::existing();
    if (simulator == nullptr || simulator->contexts() == 0) return next_close(fd);
    struct stat status {};
    const bool ends = is_ours(fd, &status) && simulator->minor_of(status.st_dev, status.st_ino) >= 0;
    const int result = next_close(fd);
    if (!ends) return result;
    const int error = errno;
    const std::lock_guard lock(simulator->control);
    simulator->sweep();
    errno = error;
    return result;
}

// Netlink would tell libibverbs of the real adapters; without it libibverbs reads the tree at SYSFS_PATH.
int socket(int domain, int type, int protocol) noexcept {
    if (domain == AF_NETLINK && protocol == NETLINK_RDMA && !mlx5_sim::sysfs_path().empty()) {
        errno = EPROTONOSUPPORT;
        return -1;
    }
    return next_socket(domain, type, protocol);
}

#pragma GCC visibility pop
}
