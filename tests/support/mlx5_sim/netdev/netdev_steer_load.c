// SPDX-License-Identifier: BSD-2-Clause
// Loads the programs through their light skeleton. The descriptors are those of a thread with a table of its
// own, so close() and syscall() of a preloaded library, which keeps books of the process's descriptors, must
// not see them.
#include "tests/support/mlx5_sim/netdev/netdev_steer_load.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "tests/support/mlx5_sim/netdev/netdev_raw.h"

static long raw(long number, long a, long b, long c) {
    const long result = mlx5_sim_raw_syscall(number, a, b, c, 0, 0, 0);
    if (result >= 0 || result < -4095) return result;
    errno = (int)-result;
    return -1;
}

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-function"
#pragma GCC diagnostic ignored "-Wsign-compare"
#include <bpf/bpf.h>
static inline int raw_close(int fd) { return (int)raw(SYS_close, fd, 0, 0); }
#define close raw_close
#define syscall(number, a, b, c) raw((number), (long)(a), (long)(b), (long)(c))
#include <bpf/skel_internal.h>

#include "netdev_steer.lskel.h"
#undef close
#undef syscall
#pragma GCC diagnostic pop

static int take(int* from) {
    int fd = *from;
    *from = 0;  // the skeleton closes what is left in it
    return fd;
}

int netdev_steer_load(struct netdev_steer_fds* out) {
    struct netdev_steer* skel = netdev_steer__open();
    if (skel == NULL) return -ENOMEM;
    int error = netdev_steer__load(skel);
    if (error != 0) {
        netdev_steer__destroy(skel);
        return error < 0 ? error : -EINVAL;
    }
    out->take = take(&skel->progs.take.prog_fd);
    out->drop = take(&skel->progs.drop.prog_fd);
    out->give = take(&skel->progs.give.prog_fd);
    out->table = take(&skel->maps.table.map_fd);
    netdev_steer__destroy(skel);
    return 0;
}
