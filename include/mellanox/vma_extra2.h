/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What this library offers programs beyond the extra API of vma_extra.h: a table of its own, which may grow.
 *
 * A program asks for the table with vma_get_api2(), and gets NULL where there is none. New functions go to
 * the end of the table, so a program that uses one checks VMA_API2_HAS() first. `version` changes only if a
 * function comes to mean something else.
 *
 * C and C++.
 */
#ifndef VMA_EXTRA2_H
#define VMA_EXTRA2_H

#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/uio.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Socket option, level SOL_SOCKET, of descriptor -1. */
#define SO_VMA_GET_API2 2850
#define VMA_API2_VERSION 1

struct vma_api2_t {
    uint32_t size; /* of the library's table, in bytes */
    uint32_t version;
    /*
     * Sends `count` pieces to one peer (NULL: the connected one), 1024 at most in one call. They share the
     * look-ups, the locks and one kick of the device. `flags` as for sendto(2).
     *
     * On a UDP socket each piece is a datagram. Returns how many were sent, the first ones; the next call
     * finds the error of the one that was not. On a stream the pieces are sent one behind the other, and
     * fill segments together, as by writev(2). Returns bytes, which are fewer than asked for only where
     * writev(2) does so. Both: -1 with errno if nothing was sent, with the errors of sendto(2).
     */
    int (*sendmany)(int fd, const struct iovec* pieces, unsigned int count, int flags,
                    const struct sockaddr* to, socklen_t tolen);
};

#define VMA_API2_HAS(api, function) \
    ((api)->size >= offsetof(struct vma_api2_t, function) + sizeof((api)->function))

static inline struct vma_api2_t* vma_get_api2(void) {
    struct vma_api2_t* api = NULL;
    socklen_t len = sizeof(api);
    if (getsockopt(-1, SOL_SOCKET, SO_VMA_GET_API2, &api, &len) < 0) return NULL;
    return api != NULL && api->version == VMA_API2_VERSION ? api : NULL;
}

#ifdef __cplusplus
}
#endif

#endif /* VMA_EXTRA2_H */
