// SPDX-License-Identifier: BSD-2-Clause
// Loads the XDP program through its light skeleton: one small loader program does what libbpf would do, so neither
// libbpf nor libelf is part of the library, and loading costs a handful of system calls.
#include "libvma/verbs/xdp/steer_load.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-function"
#pragma GCC diagnostic ignored "-Wsign-compare"
#include <bpf/bpf.h>
#include <bpf/skel_internal.h>

#include "steer.lskel.h"
#pragma GCC diagnostic pop

static int take(int* from) {
    int fd = *from;
    *from = 0;  // the skeleton closes what is left in it
    return fd;
}

int steer_load(struct steer_fds* out) {
    struct steer* skel = steer__open();
    if (skel == NULL) return -ENOMEM;
    int error = steer__load(skel);
    if (error != 0) {
        steer__destroy(skel);
        return error < 0 ? error : -EINVAL;
    }
    out->program = take(&skel->progs.vma_steer.prog_fd);
    out->xsks = take(&skel->maps.xsks.map_fd);
    out->flows5 = take(&skel->maps.flows5.map_fd);
    out->flows3 = take(&skel->maps.flows3.map_fd);
    out->config = take(&skel->maps.config.map_fd);
    steer__destroy(skel);
    return 0;
}
