/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The extra API: what a program may use beyond sockets when it knows that it may run on libvma.
 *
 * A program asks for the table of functions with vma_get_api(). The answer is NULL when the library is not
 * loaded; the program goes on with plain sockets then. Every function of the table may be called: one that
 * this release does not have, and whose bit in vma_extra_supported_mask is 0, answers -1 with EOPNOTSUPP.
 * docs/extra-api.md tells what each function does, and its errors. The layout below is the one that binaries
 * built against libvma 9.3 and later expect; it does not change. There is no version number: compatibility is
 * the order of the members, the bits of vma_extra_supported_mask, and vma_info_t::struct_sz.
 *
 * C and C++. x86-64 and aarch64.
 */
#ifndef VMA_EXTRA_H
#define VMA_EXTRA_H

#include <netinet/in.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Flags of receive and send calls. */
#define MSG_VMA_ZCOPY_FORCE 0x01000000 /* recvfrom_zcopy: fail rather than copy */
#define MSG_VMA_ZCOPY 0x00040000       /* set on return: the result is zero-copy */
#define VMA_SND_FLAGS_DUMMY MSG_SYN    /* warm the send path without sending */

/* Socket options, level SOL_SOCKET. */
#define SO_VMA_GET_API 2800
#define SO_VMA_USER_DATA 2801
#define SO_VMA_RING_ALLOC_LOGIC 2810
#define SO_VMA_RING_USER_MEMORY 2811
#define SO_VMA_FLOW_TAG 2820
#define SO_VMA_SHUTDOWN_RX 2821

/* Control messages of vma_api_t::ioctl. */
#define CMSG_VMA_IOCTL_USER_ALLOC 2900
enum { VMA_IOCTL_USER_ALLOC_TX = 1, VMA_IOCTL_USER_ALLOC_RX = 2 };

/* Events of vma_completion_t beside EPOLL*. */
#define VMA_SOCKETXTREME_PACKET (1ULL << 32)
#define VMA_SOCKETXTREME_NEW_CONNECTION_ACCEPTED (1ULL << 33)

/* What a receive callback says about its packet. */
typedef enum {
    VMA_PACKET_DROP = 0, /* the library forgets it */
    VMA_PACKET_RECV = 1, /* the socket queues it as usual */
    VMA_PACKET_HOLD = 2  /* the program keeps it, and gives it back with free_packets */
} vma_recv_callback_retval_t;

typedef enum {
    RING_LOGIC_PER_INTERFACE = 0,
    RING_LOGIC_PER_IP = 1,
    RING_LOGIC_PER_SOCKET = 10,
    RING_LOGIC_PER_USER_ID = 11,
    RING_LOGIC_PER_THREAD = 20,
    RING_LOGIC_PER_CORE = 30,
    RING_LOGIC_PER_CORE_ATTACH_THREADS = 31,
    RING_LOGIC_LAST = 32
} ring_logic_t;

/* vma_ring_alloc_logic_attr::comp_mask */
enum {
    VMA_RING_ALLOC_MASK_RING_PROFILE_KEY = 1,
    VMA_RING_ALLOC_MASK_RING_USER_ID = 2,
    VMA_RING_ALLOC_MASK_RING_INGRESS = 4,
    VMA_RING_ALLOC_MASK_RING_ENGRESS = 8
};
/* vma_modify_ring_attr::comp_bit_mask */
enum { VMA_MODIFY_RING_CQ_MODERATION = 1, VMA_MODIFY_RING_CQ_ARM = 2 };
/* vma_ring_type_attr::ring_type */
typedef enum { VMA_RING_PACKET = 0, VMA_RING_EXTERNAL_MEM = 1 } vma_ring_type;

#pragma pack(push, 1)
typedef struct {
    uint8_t flags; /* VMA_IOCTL_USER_ALLOC_* */
    void* (*memalloc)(size_t bytes);
    void (*memfree)(void* memory);
} vma_cmsg_ioctl_user_alloc_t;

/* One zero-copy packet; the iovecs follow, sz_iov of them. */
struct vma_packet_t {
    void* packet_id;
    size_t sz_iov;
    struct iovec iov[];
};
/* Packets back to back, each 16 + 16 * sz_iov bytes: not an array of fixed-size elements. */
struct vma_packets_t {
    size_t n_packet_num;
    struct vma_packet_t pkts[];
};

/* What a receive callback is told about its packet. */
struct vma_info_t {
    size_t struct_sz; /* sizeof the library's own struct; a caller compares with its own */
    void* packet_id;
    struct sockaddr_in* src;
    struct sockaddr_in* dst;
    size_t payload_sz; /* bytes */
    uint32_t socket_ready_pkt_count;
    uint32_t socket_ready_byte_count;
    struct timespec hw_timestamp;
    struct timespec sw_timestamp;
};
#pragma pack(pop)

struct vma_buff_t {
    struct vma_buff_t* next;
    void* payload;
    uint16_t len; /* bytes */
};

struct vma_packet_desc_t {
    size_t num_bufs;
    uint16_t total_len; /* bytes */
    struct vma_buff_t* buff_lst;
    struct timespec hw_timestamp;
};

struct vma_completion_t {
    struct vma_packet_desc_t packet;
    uint64_t events;    /* EPOLL* and VMA_SOCKETXTREME_* */
    uint64_t user_data; /* the fd unless SO_VMA_USER_DATA set another value */
    struct sockaddr_in src;
    int listen_fd; /* of a newly accepted connection */
};

/* SO_MAX_PACING_RATE takes this or a plain uint32_t rate. */
struct vma_rate_limit_t {
    uint32_t rate;           /* Kbit/s */
    uint32_t max_burst_sz;   /* bytes */
    uint16_t typical_pkt_sz; /* bytes */
};

struct vma_ring_alloc_logic_attr {
    uint32_t comp_mask;
    ring_logic_t ring_alloc_logic;
    uint32_t ring_profile_key;
    uint32_t user_id;
    uint32_t ingress : 1;
    uint32_t engress : 1;
    uint32_t reserved : 30;
};

struct vma_modify_ring_attr {
    uint32_t comp_bit_mask;
    int ring_fd;
    union {
        struct {
            uint32_t cq_moderation_count;
            uint32_t cq_moderation_period_usec;
        } cq_moderation;
    };
};

struct vma_ring_type_attr {
    uint32_t comp_mask;
    vma_ring_type ring_type;
    union {
        struct {
            uint32_t comp_mask;
        } ring_pktiov;
    };
};

struct vma_mlx_hw_device_data; /* 200 bytes, of use on ConnectX only */

typedef vma_recv_callback_retval_t (*vma_recv_callback_t)(int fd, size_t sz_iov, struct iovec iov[],
                                                          struct vma_info_t* info, void* context);

/* The table. All functions return an int; negative means an error, with errno. 168 bytes. */
#pragma pack(push, 1)
struct vma_api_t {
    int (*register_recv_callback)(int fd, vma_recv_callback_t callback, void* context);
    int (*recvfrom_zcopy)(int fd, void* buf, size_t len, int* flags, struct sockaddr* from,
                          socklen_t* fromlen);
    int (*free_packets)(int fd, struct vma_packet_t* packets, size_t count);
    int (*add_conf_rule)(const char* line);
    int (*thread_offload)(int offload, pthread_t thread);
    int (*socketxtreme_poll)(int ring_fd, struct vma_completion_t* completions, unsigned int count,
                             int flags);
    int (*get_socket_rings_num)(int fd);
    int (*get_socket_rings_fds)(int fd, int* ring_fds, int count);
    int (*get_socket_tx_ring_fd)(int fd, struct sockaddr* to, socklen_t tolen);
    int (*socketxtreme_free_vma_packets)(struct vma_packet_desc_t* packets, int count);
    int (*socketxtreme_ref_vma_buff)(struct vma_buff_t* buff);
    int (*socketxtreme_free_vma_buff)(struct vma_buff_t* buff);
    int (*dump_fd_stats)(int fd, int log_level);
    int (*vma_add_ring_profile)(struct vma_ring_type_attr* profile, int* key);
    int (*get_socket_network_header)(int fd, void* header, uint16_t* len);
    int (*get_ring_direct_descriptors)(int ring_fd, struct vma_mlx_hw_device_data* data);
    int (*register_memory_on_ring)(int ring_fd, void* addr, size_t length, uint32_t* key);
    int (*deregister_memory_on_ring)(int ring_fd, void* addr, size_t length);
    int (*vma_modify_ring)(struct vma_modify_ring_attr* attr);
    uint64_t vma_extra_supported_mask; /* a bit for each function that works */
    int (*ioctl)(void* cmsg, size_t cmsg_len);
};
#pragma pack(pop)

/* The library's table, or NULL. Works before any socket exists. */
static inline struct vma_api_t* vma_get_api(void) {
    struct vma_api_t* api = NULL;
    socklen_t len = sizeof(api);
    if (getsockopt(-1, SOL_SOCKET, SO_VMA_GET_API, &api, &len) < 0) return NULL;
    return api;
}

#ifdef __cplusplus
}
#endif

#endif /* VMA_EXTRA_H */
