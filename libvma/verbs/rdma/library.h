// SPDX-License-Identifier: BSD-2-Clause
// libibverbs and libmlx5, opened for the first RDMA device and never linked. So the library also works on a
// machine without them, or without an RDMA device.
//
// The library uses types, constants and some inline functions of infiniband/verbs.h and infiniband/mlx5dv.h:
// those that call through an object's own table. Calls to symbols of the libraries go through the tables
// below. Some names of the header are macros around functions of an older ABI (ibv_query_port, ibv_reg_mr);
// query_port() and query_device() replace them.
#pragma once

#include <infiniband/mlx5dv.h>
#include <infiniband/verbs.h>

#include "libvma/runtime/error.h"

namespace vma::verbs::rdma {

// One row is a function: member, symbol, version of the ABI at compile time.
#define VMA_VERBS_FUNCTIONS(row)                                                                            \
    row(get_device_list, ibv_get_device_list, "IBVERBS_1.1") row(free_device_list, ibv_free_device_list,    \
                                                                 "IBVERBS_1.1")                             \
        row(get_device_name, ibv_get_device_name, "IBVERBS_1.1") row(                                       \
            open_device, ibv_open_device, "IBVERBS_1.1") row(close_device, ibv_close_device, "IBVERBS_1.1") \
            row(query_device_1, ibv_query_device, "IBVERBS_1.1")                                            \
                row(query_port_1, ibv_query_port, "IBVERBS_1.1") row(alloc_pd, ibv_alloc_pd, "IBVERBS_1.1") \
                    row(dealloc_pd, ibv_dealloc_pd, "IBVERBS_1.1") row(reg_mr, ibv_reg_mr, "IBVERBS_1.1")   \
                        row(dereg_mr, ibv_dereg_mr, "IBVERBS_1.1") row(                                     \
                            create_comp_channel, ibv_create_comp_channel, "IBVERBS_1.0")                    \
                            row(destroy_comp_channel, ibv_destroy_comp_channel, "IBVERBS_1.0") row(         \
                                create_cq, ibv_create_cq, "IBVERBS_1.1")                                    \
                                row(destroy_cq, ibv_destroy_cq, "IBVERBS_1.1") row(                         \
                                    get_cq_event, ibv_get_cq_event, "IBVERBS_1.1")                          \
                                    row(ack_cq_events, ibv_ack_cq_events, "IBVERBS_1.1") row(               \
                                        create_qp, ibv_create_qp, "IBVERBS_1.1")                            \
                                        row(modify_qp, ibv_modify_qp, "IBVERBS_1.1") row(                   \
                                            destroy_qp, ibv_destroy_qp, "IBVERBS_1.1")                      \
                                            row(query_qp, ibv_query_qp, "IBVERBS_1.1") row(                 \
                                                get_async_event, ibv_get_async_event, "IBVERBS_1.1")        \
                                                row(ack_async_event, ibv_ack_async_event, "IBVERBS_1.1")    \
                                                    row(event_type_str, ibv_event_type_str, "IBVERBS_1.1")  \
                                                        row(fork_init, ibv_fork_init, "IBVERBS_1.1")

#define VMA_MLX5_FUNCTIONS(row)                                                                   \
    row(is_supported, mlx5dv_is_supported, "MLX5_1.8") row(init_obj, mlx5dv_init_obj, "MLX5_1.2") \
        row(query_device, mlx5dv_query_device, "MLX5_1.0")                                        \
            row(get_clock_info, mlx5dv_get_clock_info, "MLX5_1.4")

struct Verbs {
#define VMA_MEMBER(member, symbol, version) decltype(&::symbol) member = nullptr;
    VMA_VERBS_FUNCTIONS(VMA_MEMBER)

    // As ibv_query_port() and ibv_query_device_ex() of the header. 0 or an errno value.
    int query_port(ibv_context* context, std::uint8_t port, ibv_port_attr& attr) const noexcept;
    int query_device(ibv_context* context, ibv_device_attr_ex& attr) const noexcept;
};

struct Mlx5 {
    VMA_MLX5_FUNCTIONS(VMA_MEMBER)
#undef VMA_MEMBER
};

// Opens a library and finds all its functions; the library then stays open. Errors name the file, or its
// missing function. libmlx5 is the object that libibverbs uses as its provider (a link to the same file), so
// libmlx5 knows libibverbs' devices.
Result<const Verbs*> load_verbs(const char* file);
Result<const Mlx5*> load_mlx5(const char* file);

// The process's tables; the first call opens the library, and its result is final.
const Result<const Verbs*>& verbs();
const Result<const Mlx5*>& mlx5();

// While it lives, errno is kept, and the thread cannot be cancelled: the libraries call open, read, write and
// close.
class ErrnoAndCancelKept {
  public:
    ErrnoAndCancelKept() noexcept;
    ~ErrnoAndCancelKept();
    ErrnoAndCancelKept(const ErrnoAndCancelKept&) = delete;
    ErrnoAndCancelKept& operator=(const ErrnoAndCancelKept&) = delete;

  private:
    int errno_, cancel_ = 0;
};

}  // namespace vma::verbs::rdma
