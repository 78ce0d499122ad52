// SPDX-License-Identifier: BSD-2-Clause
// The simulated kernel's state: adapters, and what programs have open and made on them.
//
// Everything here is guarded by one lock, Simulator::control, which every command holds from beginning to
// end. The thread that steps the adapters never takes it.
#pragma once

#include <infiniband/verbs.h>
#include <rdma/ib_user_verbs.h>
#include <sys/types.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "tests/support/mlx5_sim/clock.h"
#include "tests/support/mlx5_sim/engine.h"
#include "tests/support/mlx5_sim/event_pipe.h"
#include "tests/support/mlx5_sim/netdev/netdev_wire.h"
#include "tests/support/mlx5_sim/nic/nic.h"
#include "tests/support/mlx5_sim/sysfs.h"

namespace mlx5_sim {

struct Context;

// One adapter. Never destroyed.
struct Device {
    explicit Device(Identity who);

    const Identity identity;
    Clock clock;
    Nic nic;
    std::atomic<bool> dead{false};        // after a fatal error: commands answer EIO, nothing moves
    std::atomic<bool> port_active{true};  // a port that is down loses all frames
    std::uint32_t next_qpn = 0x100, next_cqn = 0x400, next_key = 1, next_uar = 0, next_pdn = 1;
    struct Installed {
        std::uint64_t handle;
        Rule rule;
    };
    std::vector<Installed> rules;  // of all contexts
    std::vector<Context*> contexts;
    std::optional<std::chrono::steady_clock::time_point> failed_at;  // by MLX5_SIM_FAIL_AFTER; the thread's
    std::unique_ptr<NetdevWire> wire;  // while there is a context, if frames go over the netdev; the thread's
};

// Objects of a context, by handle. (The adapter has its own, by number.)
struct PdObject {
    std::uint32_t users = 0;
};
struct MrObject {
    std::uint32_t pd = 0, lkey = 0;
};
struct CqObject {
    std::uint32_t cqn = 0;
    std::uint64_t user_handle = 0;
    std::shared_ptr<EventPipe> channel;
    std::uint32_t users = 0;
};
struct QpObject {
    std::uint32_t qpn = 0;
    std::uint64_t user_handle = 0;
    std::uint32_t pd = 0, send_cq = 0, recv_cq = 0;  // handles
    std::uint8_t state = 0;                          // ibv_qp_state, as it was set
    std::uint8_t port = 0, sq_sig_all = 0;
    std::uint32_t max_recv_wr = 0, max_recv_sge = 0;
    std::uint32_t bfreg = 0;
    std::uint32_t users = 0;  // flow rules
};
struct FlowObject {
    std::uint32_t qp = 0;
    std::uint64_t nic_handle = 0;
};

// Handles are never used again, so what was destroyed stays unknown.
template <class T>
class Table {
  public:
    std::uint32_t add(T object) {
        objects_.emplace(next_, std::move(object));
        return next_++;
    }
    T* find(std::uint32_t handle) {
        const auto found = objects_.find(handle);
        return found == objects_.end() ? nullptr : &found->second;
    }
    template <class Wanted>
    T* find_if(Wanted wanted) {
        for (auto& [handle, object] : objects_) {
            if (wanted(object)) return &object;
        }
        return nullptr;
    }
    template <class Seen>
    void for_each(Seen seen) {
        for (auto& [handle, object] : objects_) seen(object);
    }
    void erase(std::uint32_t handle) { objects_.erase(handle); }
    std::uint32_t first() const { return objects_.empty() ? ~0u : objects_.begin()->first; }
    bool empty() const { return objects_.empty(); }

  private:
    std::map<std::uint32_t, T> objects_;
    std::uint32_t next_ = 0;
};

// An open device. The open file is a memfd, by whose inode it is recognised whatever number the descriptor
// has; its pages are what can be mapped: the doorbell pages, the clock, the clock information.
struct Context {
    Context(Device& owner, Engine& where, int fd);
    ~Context();  // as when the kernel sees the last close: destroys what is left, in order
    Context(const Context&) = delete;
    Context& operator=(const Context&) = delete;

    // Gives the memfd its pages, with `uars` of them doorbell pages. False: errno tells.
    bool make_pages(int fd, std::uint32_t uars);
    // Where in the memfd the page lies that mlx5's offset for mmap() names; -1: nowhere, with these
    // protection bits and length.
    off_t page_offset(off_t offset, std::size_t length, int protection) const;

    // fcntl() with F_OFD_SETLK or F_OFD_GETLK on the device's file.
    int lock(int command, void* argument);

    // Ends the completion channels that neither the program nor a CQ has any more.
    void drop_unused_channels();

    Device& device;
    Engine& engine;
    ino_t inode = 0;
    dev_t dev = 0;
    bool has_ucontext = false;
    int lock_fd = -1;  // of the file that stands for the device's, once something was locked
    std::byte* pages = nullptr;
    std::uint32_t uars = 0, first_uar = 0;
    std::uint32_t low_latency_bfregs = 0;
    std::vector<std::uint32_t> bfreg_users;

    std::shared_ptr<EventPipe> async;
    std::vector<std::shared_ptr<EventPipe>> channels;
    Table<PdObject> pds;
    Table<MrObject> mrs;
    Table<CqObject> cqs;
    Table<QpObject> qps;
    Table<FlowObject> flows;
};

inline constexpr std::size_t kPageBytes = 4096;
inline constexpr std::size_t kMaxContexts = 64, kMaxDevices = 16;

class Simulator {
  public:
    // The process's. A child of fork() gets a new, empty one: its parent's objects are none of its own.
    static Simulator& get();
    // The same, if this process has one already.
    static Simulator* existing();

    Simulator();
    ~Simulator() = delete;

    // Opens the character device `uverbs` (uverbs0) of the tree at SYSFS_PATH. A descriptor, or -1 and errno.
    int open(const std::string& uverbs, bool close_on_exec);
    // The minor number behind an open device's inode, -1: it is none. Without a lock.
    int minor_of(dev_t dev, ino_t inode) const;
    // Null if it is none. Under `control`.
    Context* find(dev_t dev, ino_t inode);
    // Ends the contexts of which the program has no descriptor any more. Under `control`.
    void sweep();
    // The adapter of that name (mlx5_0), made if need be; null if the tree has none. Under `control`.
    Device* device(const std::string& ibdev);

    // From now on the adapter is dead. Under `control`.
    static void fail(Device& device);

    // Shows each adapter to `seen`.
    void each_device(const std::function<void(const Device&)>& seen) const;

    // One turn of all adapters. True if there was anything to do.
    bool turn();
    std::size_t contexts() const { return open_count_.load(std::memory_order_relaxed); }

    const pid_t process;
    std::mutex control;
    Engine engine;

  private:
    void rest(unsigned microseconds);
    int connect(Device& device);
    bool fails_now(Device& device);
    Device* add_device(Identity identity);

    std::uint64_t fail_after_ = 0;                             // MLX5_SIM_FAIL_AFTER
    std::array<std::atomic<Device*>, kMaxDevices> devices_{};  // filled from the front
    std::array<std::unique_ptr<Context>, kMaxContexts> contexts_;
    std::array<std::atomic<ino_t>, kMaxContexts> inodes_{};  // of contexts_, 0: free
    std::array<std::atomic<int>, kMaxContexts> minors_{};
    std::atomic<std::size_t> open_count_{0};
};

// The tree at SYSFS_PATH; empty if the program is not to see simulated adapters.
std::string sysfs_path();
// The device of memfds, where open devices live; 0 before the first was opened by this process or a parent.
dev_t memfd_device();
// An asynchronous event for each context of the adapter. Under `control`.
void tell_all(Device& device, ibv_event_type event, std::uint64_t element);
// Joins two adapters by a cable; one with itself by a loop.
void join(Device& a, Device& b);

}  // namespace mlx5_sim
