/* SPDX-License-Identifier: BSD-2-Clause */
/* The light skeleton is C only; this is its door to C++. */
#ifndef VMA_VERBS_XDP_STEER_LOAD_H
#define VMA_VERBS_XDP_STEER_LOAD_H

#ifdef __cplusplus
extern "C" {
#endif

struct steer_fds {
    int program, xsks, flows5, flows3, config;
};

/* Loads program and maps into the kernel. 0 and four descriptors for the caller to close, or -errno and none. */
int steer_load(struct steer_fds* out);

#ifdef __cplusplus
}
#endif
#endif
