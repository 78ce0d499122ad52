// SPDX-License-Identifier: BSD-2-Clause
// The uverbs ABI: what RDMA_VERBS_IOCTL on an open device does. One method is answered, INVOKE_WRITE, which
// carries the classic write commands (rdma/ib_user_verbs.h, with mlx5's additions from rdma/mlx5-abi.h); for
// all others libibverbs has a way around.
//
//   uverbs.cpp         the attributes of the call, the table of commands
//   uverbs_device.cpp  context, device, port, channels
//   uverbs_memory.cpp  PD and MR
//   uverbs_cq.cpp, uverbs_qp.cpp, uverbs_flow.cpp
//
// Commands answer 0 or an errno, the one that the kernel and its mlx5 driver answer in the same case.
#pragma once

#include <rdma/rdma_user_ioctl_cmds.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "tests/support/mlx5_sim/context.h"

namespace mlx5_sim {

// One command: copies of what came in, and of what goes out, both zero beyond what was given.
class Request {
  public:
    Request(int fd, std::vector<std::byte> in, std::vector<std::byte> driver_in, std::size_t out,
            std::size_t driver_out)
        : fd_(fd), in_(std::move(in)), driver_in_(std::move(driver_in)), out_(out), driver_out_(driver_out) {}

    int fd() const { return fd_; }  // of the device, in the program
    template <class T>
    T core() const {
        return read<T>(in_);
    }
    template <class T>
    T driver() const {
        return read<T>(driver_in_);
    }
    std::size_t driver_bytes() const { return driver_in_.size(); }
    // What follows the command's fixed part.
    std::span<const std::byte> beyond(std::size_t fixed) const {
        return std::span(in_).subspan(std::min(fixed, in_.size()));
    }
    std::size_t out_bytes() const { return out_.size(); }
    std::size_t driver_out_bytes() const { return driver_out_.size(); }
    template <class T>
    void answer(const T& value) {
        write(out_, value);
    }
    template <class T>
    void answer_driver(const T& value) {
        write(driver_out_, value);
    }
    const std::vector<std::byte>& out() const { return out_; }
    const std::vector<std::byte>& driver_out() const { return driver_out_; }

  private:
    template <class T>
    static T read(const std::vector<std::byte>& from) {
        T value{};
        if (!from.empty()) std::memcpy(&value, from.data(), std::min(sizeof(T), from.size()));
        return value;
    }
    template <class T>
    static void write(std::vector<std::byte>& to, const T& value) {
        if (!to.empty()) std::memcpy(to.data(), &value, std::min(sizeof(T), to.size()));
    }

    int fd_;
    std::vector<std::byte> in_, driver_in_, out_, driver_out_;
};

inline constexpr std::uint32_t kMaxModerationUsec = 0xfff;
inline constexpr std::uint32_t kMaxSge = 30;  // of a work request

// The ioctl, with Simulator::control held.
int uverbs_ioctl(Context& context, int fd, void* header);

// ---- the commands ----
int get_context(Context&, Request&);
int query_device(Context&, Request&);
int query_device_ex(Context&, Request&);
int query_port(Context&, Request&);
int create_comp_channel(Context&, Request&);
int alloc_pd(Context&, Request&);
int dealloc_pd(Context&, Request&);
int reg_mr(Context&, Request&);
int dereg_mr(Context&, Request&);
int create_cq(Context&, Request&);
int create_cq_ex(Context&, Request&);
int modify_cq_ex(Context&, Request&);
int destroy_cq(Context&, Request&);
int create_qp(Context&, Request&);
int create_qp_ex(Context&, Request&);
int modify_qp(Context&, Request&);
int modify_qp_ex(Context&, Request&);
int query_qp(Context&, Request&);
int destroy_qp(Context&, Request&);
int create_flow(Context&, Request&);
int destroy_flow(Context&, Request&);

// ---- the same, for a context that ends ----
void destroy_mr(Context&, std::uint32_t handle);
void destroy_cq(Context&, std::uint32_t handle);
void destroy_qp(Context&, std::uint32_t handle);
void destroy_flow(Context&, std::uint32_t handle);

// Has the calling thread CAP_NET_RAW? Raw QPs and flow rules want it.
bool may_use_raw();

}  // namespace mlx5_sim
