/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef MLX5_SIM_NETDEV_STEER_LOAD_H
#define MLX5_SIM_NETDEV_STEER_LOAD_H

#ifdef __cplusplus
extern "C" {
#endif

/* Descriptors; the caller owns them. */
struct netdev_steer_fds {
    int take, drop, give, table;
};
/* Loads the programs into the kernel. 0, or a negative errno. Calls nothing that a preloaded library catches.
 */
int netdev_steer_load(struct netdev_steer_fds* out);

#ifdef __cplusplus
}
#endif
#endif
