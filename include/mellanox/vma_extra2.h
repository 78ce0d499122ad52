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

/* Memory from which the device sends, for the program to fill. */
struct vma_send_buffer_t {
    void* id;    /* for send_zcopy and free_send_buffer; no pointer */
    void* data;  /* where the payload goes; aligned to 2 bytes */
    size_t size; /* bytes of room there */
};
#define VMA_SEND_BUFFERS_MOST 64 /* of one get_send_buffers() */

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
    /*
     * Gives the program `count` send buffers (1 to VMA_SEND_BUFFERS_MOST) of the ring over which `fd` sends
     * to `to` (NULL: the connected peer). They are not part of the socket: they outlive it, and any thread
     * may send them on any socket. 0, or -1 with errno and no buffer: EINVAL, `fd` is not the library's, or
     * has no peer; ENODATA, the kernel sends to it; ENOBUFS, the program would have more than a quarter of
     * the ring's send buffers; EFAULT.
     */
    int (*get_send_buffers)(int fd, struct vma_send_buffer_t* buffers, unsigned int count,
                            const struct sockaddr* to, socklen_t tolen);
    /*
     * Sends the first `length` bytes of a buffer, as sendto(2) does. If the result is `length`, the buffer
     * is the library's again, and the program no longer touches it. After any other result, an error or a
     * part of a stream, it is still the program's.
     *
     * A datagram leaves without a copy if the peer is reached by the ring that the buffer is of. Otherwise
     * the call copies, and does the same: on a stream, in fragments, by the kernel, for any descriptor.
     * Errors of sendto(2), and: ENOENT, it is no buffer that the program has; EMSGSIZE, `length` exceeds its
     * size; EINVAL, MSG_ZEROCOPY or VMA_SND_FLAGS_DUMMY.
     */
    int (*send_zcopy)(int fd, void* id, size_t length, int flags, const struct sockaddr* to, socklen_t tolen);
    /* Gives a buffer back that was not sent. ENOENT: it is none that the program has. */
    int (*free_send_buffer)(void* id);
    /*
     * Memory of the program's becomes the packet memory of the first ring: what arrives lies there, and so
     * do send buffers. It is the library's until the process ends. `*length`: its bytes. Errors: ENOSPC, that
     * is too little, and *length says how much is needed; EBUSY, a ring has memory already, or some was
     * registered; EFAULT.
     */
    int (*register_memory)(void* addr, size_t* length);
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
