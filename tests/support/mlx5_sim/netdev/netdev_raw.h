/* SPDX-License-Identifier: BSD-2-Clause */
/* System calls for C and C++ that no preloaded library sees: the kernel's result, -errno on failure. */
#ifndef MLX5_SIM_NETDEV_RAW_H
#define MLX5_SIM_NETDEV_RAW_H

#ifdef __cplusplus
extern "C"
#endif
    long
    mlx5_sim_raw_syscall(long number, long a, long b, long c, long d, long e, long f);

#endif
