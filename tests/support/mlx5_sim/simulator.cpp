// SPDX-License-Identifier: BSD-2-Clause
#include <dirent.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "tests/support/mlx5_sim/context.h"
#include "tests/support/mlx5_sim/own_calls.h"

namespace mlx5_sim {
namespace {

constexpr std::chrono::milliseconds kRecovery{200};
std::atomic<Simulator*> the_simulator{nullptr};
std::atomic<dev_t> memfd_dev{0};

bool is_set(const char* name) {
    const char* const value = std::getenv(name);
    return value != nullptr && *value != '\0' && std::strcmp(value, "0") != 0;
}
bool wants_netdev() {
    const char* const wire = std::getenv("MLX5_SIM_WIRE");
    return wire != nullptr && std::strcmp(wire, "netdev") == 0;
}
bool wants_thread() { return is_set("MLX5_SIM_WIRE") || is_set("MLX5_SIM_THREAD"); }

// Shows each descriptor of the program to `seen`.
template <class Seen>
void each_descriptor(Seen seen) {
    DIR* const directory = ::opendir("/proc/self/fd");
    if (directory == nullptr) return;
    while (const dirent* const entry = ::readdir(directory)) {
        int fd = -1;
        std::from_chars(entry->d_name, entry->d_name + std::strlen(entry->d_name), fd);
        struct stat status {};
        if (fd >= 0 && ::syscall(SYS_fstat, fd, &status) == 0) seen(status.st_dev, status.st_ino, fd);
    }
    ::closedir(directory);
}

// For MLX5_SIM_COUNTERS.
void write_counters() {
    Simulator* const simulator = Simulator::existing();
    const char* const path = std::getenv("MLX5_SIM_COUNTERS");
    std::FILE* const file = simulator == nullptr || path == nullptr ? nullptr : std::fopen(path, "a");
    if (file == nullptr) return;
    simulator->each_device([&](const Device& device) {
        const NicCounters c = device.nic.counters();
        std::fprintf(
            file,
            "%s sent %lu received %lu doorbells %lu blue_flames %lu send_completions %lu gathered %lu\n",
            device.identity.ibdev.c_str(), c.sent, c.received, c.doorbells, c.blue_flames, c.send_completions,
            c.gathered);
    });
    std::fclose(file);
}

std::uint64_t number_in(const char* name) {
    const char* const value = std::getenv(name);
    return value == nullptr ? 0 : std::strtoull(value, nullptr, 10);
}

unsigned number_of(const std::string& name) {
    const auto digits =
        name.find_first_of("0123456789", name.find('_') == std::string::npos ? 0 : name.find('_'));
    unsigned number = 0;
    if (digits != std::string::npos) std::from_chars(name.data() + digits, name.data() + name.size(), number);
    return number;
}

}  // namespace

std::string sysfs_path() {
    const char* const path = std::getenv("SYSFS_PATH");
    return path != nullptr ? path : "";
}

dev_t memfd_device() { return memfd_dev.load(std::memory_order_relaxed); }

void join(Device& a, Device& b) {
    const auto cable = [](Device& from, Device& to) {
        from.nic.on_transmit([&from, &to](const Frame& frame) {
            if (from.port_active && to.port_active && !to.dead) to.nic.receive(frame);
        });
    };
    cable(a, b);
    if (&a != &b) cable(b, a);
}

void Context::drop_unused_channels() {
    std::vector<bool> used(channels.size());
    each_descriptor([&](dev_t, ino_t, int fd) {
        for (std::size_t i = 0; i < channels.size(); ++i) used[i] = used[i] || channels[i]->is(fd);
    });
    for (std::size_t i = channels.size(); i-- > 0;) {
        if (!used[i] && channels[i].use_count() == 1)
            channels.erase(channels.begin() + static_cast<std::ptrdiff_t>(i));
    }
}

Simulator& Simulator::get() {
    Simulator* const now = existing();
    if (now != nullptr) return *now;
    // Never destroyed: threads and exit handlers may come at any time.
    auto* const made = new Simulator;
    Simulator* before = the_simulator.load();
    while (before == nullptr || before->process != made->process) {
        if (the_simulator.compare_exchange_weak(before, made)) return *made;
    }
    return *before;
}

Simulator* Simulator::existing() {
    Simulator* const now = the_simulator.load(std::memory_order_acquire);
    return now != nullptr && now->process == ::getpid() ? now : nullptr;
}

Simulator::Simulator()
    : process(::getpid()),
      engine(
          wants_thread(), [this] { return turn(); }, [this](unsigned usec) { rest(usec); }),
      fail_after_(number_in("MLX5_SIM_FAIL_AFTER")) {
    if (std::getenv("MLX5_SIM_COUNTERS") != nullptr) std::atexit(write_counters);
}

void Simulator::each_device(const std::function<void(const Device&)>& seen) const {
    for (const auto& slot : devices_) {
        const Device* const device = slot;
        if (device == nullptr) break;
        seen(*device);
    }
}

int Simulator::open(const std::string& uverbs, bool close_on_exec) {
    const std::lock_guard lock(control);
    sweep();
    const auto identity = read_identity(sysfs_path(), uverbs);
    if (!identity) return errno = ENOENT, -1;
    Device* const owner = device(identity->ibdev);
    const auto slot = std::find(contexts_.begin(), contexts_.end(), nullptr) - contexts_.begin();
    if (owner == nullptr || slot == static_cast<std::ptrdiff_t>(kMaxContexts)) return errno = ENODEV, -1;
    if (const int error = engine.start()) return errno = error, -1;
    if (const int error = connect(*owner)) return errno = error, -1;
    const int fd = ::memfd_create(uverbs.c_str(), close_on_exec ? MFD_CLOEXEC : 0);
    if (fd < 0) return -1;
    contexts_[slot] = std::make_unique<Context>(*owner, engine, fd);
    memfd_dev = contexts_[slot]->dev;
    minors_[slot] = static_cast<int>(kUverbsFirstMinor + number_of(uverbs));
    inodes_[slot].store(contexts_[slot]->inode, std::memory_order_release);
    ++open_count_;
    engine.pause(false);
    return fd;
}

int Simulator::minor_of(dev_t dev, ino_t inode) const {
    if (dev != memfd_device()) return -1;
    for (std::size_t i = 0; i < kMaxContexts; ++i) {
        if (inodes_[i].load(std::memory_order_acquire) == inode) return minors_[i];
    }
    return -1;
}

Context* Simulator::find(dev_t dev, ino_t inode) {
    for (const auto& context : contexts_) {
        if (context != nullptr && context->dev == dev && context->inode == inode) return context.get();
    }
    return nullptr;
}

void Simulator::sweep() {
    if (contexts() == 0) return;
    std::array<bool, kMaxContexts> used{};
    each_descriptor([&](dev_t dev, ino_t inode, int) {
        if (dev != memfd_device()) return;
        for (std::size_t i = 0; i < kMaxContexts; ++i) used[i] = used[i] || inodes_[i] == inode;
    });
    for (std::size_t i = 0; i < kMaxContexts; ++i) {
        if (used[i] || contexts_[i] == nullptr) continue;
        inodes_[i] = 0;
        contexts_[i].reset();
        --open_count_;
    }
    if (contexts() == 0) engine.pause(true);
}

Device* Simulator::device(const std::string& ibdev) {
    for (const auto& slot : devices_) {
        Device* const known = slot;
        if (known == nullptr) break;
        if (known->identity.ibdev == ibdev) return known;
    }
    auto identity = read_identity(sysfs_path(), "uverbs" + std::to_string(number_of(ibdev)));
    if (!identity || identity->ibdev != ibdev) return nullptr;
    return add_device(std::move(*identity));
}

Device* Simulator::add_device(Identity identity) {
    const auto slot = std::find(devices_.begin(), devices_.end(), nullptr);
    if (slot == devices_.end()) return nullptr;
    auto* const made = new Device(std::move(identity));
    *slot = made;
    if (!engine.threaded() || wants_netdev()) return made;
    // Without another wire the thread's adapters are joined in pairs, and one that is left over with itself.
    Device* const partner = device("mlx5_" + std::to_string(number_of(made->identity.ibdev) ^ 1));
    join(*made, partner != nullptr ? *partner : *made);
    return made;
}

// Gives the adapter its wire, if that is the netdev. An errno, or 0.
int Simulator::connect(Device& device) {
    if (device.dead) return EIO;
    if (!wants_netdev() || device.wire != nullptr) return 0;
    std::string error;
    engine.run([&] {
        auto wire = NetdevWire::create(device.nic, device.identity.netdev);
        if (wire) {
            device.wire = std::move(*wire);
        } else {
            error = wire.error();
        }
    });
    if (error.empty()) return 0;
    std::fprintf(stderr, "mlx5_sim: %s cannot use %s: %s\n", device.identity.ibdev.c_str(),
                 device.identity.netdev.c_str(), error.c_str());
    return ENODEV;
}

namespace {

// MLX5_SIM_RULES_FIRST
bool rules_go_first() {
    static const bool value = std::getenv("MLX5_SIM_RULES_FIRST") != nullptr;
    return value;
}
constexpr std::chrono::milliseconds kTellsLate{50};
// MLX5_SIM_STALLS
bool stalls() {
    static const bool value = std::getenv("MLX5_SIM_STALLS") != nullptr;
    return value;
}

}  // namespace

bool Simulator::turn() {
    bool busy = false;
    for (const auto& slot : devices_) {
        Device* const device = slot;
        if (device == nullptr) break;
        if (device->dead) {
            if (rules_go_first() && device->failed_at &&
                std::chrono::steady_clock::now() - *device->failed_at > kTellsLate) {
                if (const std::unique_lock lock(control, std::try_to_lock); lock) {
                    device->failed_at.reset();
                    fail(*device);
                }
            }
            if (device->wire != nullptr && device->failed_at &&
                std::chrono::steady_clock::now() - *device->failed_at > kRecovery)
                device->wire.reset();
            continue;
        }
        device->clock.ticks();
        if (stalls() && device->failed_at) continue;
        busy = device->nic.step() || busy;
        if (device->wire != nullptr) busy = device->wire->turn() || busy;
        if (fail_after_ != 0 && device->nic.counters().sent >= fail_after_) busy = fails_now(*device) || busy;
    }
    return busy;
}

void tell_all(Device& device, ibv_event_type event, std::uint64_t element) {
    for (Context* const context : device.contexts) {
        if (context->async != nullptr) context->async->post(element, event);
    }
}

void Simulator::fail(Device& device) {
    device.dead = true;
    tell_all(device, IBV_EVENT_DEVICE_FATAL, 1);
}

// On the thread. Who has `control` may be waiting for it: then it is for the next turn.
bool Simulator::fails_now(Device& device) {
    const std::unique_lock lock(control, std::try_to_lock);
    if (!lock) return false;
    if (stalls()) {
        // all goes on but frames
    } else if (rules_go_first()) {
        device.dead = true;
        device.wire.reset();
    } else {
        fail(device);
    }
    device.failed_at = std::chrono::steady_clock::now();
    return true;
}

// Until then, or until frames come over a netdev.
void Simulator::rest(unsigned microseconds) {
    std::array<pollfd, kMaxDevices> fds{};
    nfds_t count = 0;
    for (const auto& slot : devices_) {
        const Device* const device = slot;
        if (device == nullptr) break;
        if (device->wire != nullptr && !device->dead && !device->failed_at)
            fds[count++] = {device->wire->poll_fd(), POLLIN, 0};
    }
    const timespec longest{0, static_cast<long>(microseconds) * 1000};
    own_call(SYS_ppoll, fds.data(), count, &longest, nullptr, 0);
}

namespace {

// At the end of the process: an adapter has sent what it was told of before the process is gone, but on a
// busy machine the thread that plays it may not even have run.
__attribute__((destructor)) void finish() {
    Simulator* const simulator = Simulator::existing();
    if (simulator == nullptr || !simulator->engine.threaded() || simulator->contexts() == 0) return;
    for (int i = 0; i < 2; i++)
        simulator->engine.run([] {});  // the second one runs after the turn that followed the first
}

}  // namespace

}  // namespace mlx5_sim
