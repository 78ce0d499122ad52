// SPDX-License-Identifier: BSD-2-Clause
/* lwIP's configuration: TCP over IPv4 and nothing else. Buffers, windows and segment sizes are numbers of the
   connection that is being worked on, so the macros that lwIP expects to be constants read the parameters of
   the current Entry (glue.h). Everything that lwIP would do by polling or by scanning is off or not called.
 */
#ifndef VMA_LWIP_LWIPOPTS_H
#define VMA_LWIP_LWIPOPTS_H

#include <stdint.h>

/* What differs between connections. Set for each Entry; outside of one, the defaults of glue.cpp hold. */
struct vma_lwip_parameters {
    /* The largest segment we take, in bytes of data: announced, and the most that the peer's option may raise
       pcb->mss to. */
    uint16_t mss;
    /* Announced shift of our window, 0 to 14 (RFC 7323). */
    uint8_t rcv_scale;
    /* The full receive window in bytes; at most 65535 << rcv_scale. */
    uint32_t wnd;
    /* The initial pcb->snd_buf and pcb->ssthresh, bytes. */
    uint32_t snd_buf;
    /* tcp_recved() sends an update when the window grew by this much, bytes. */
    uint32_t wnd_update_threshold;
    /* Bytes kept out of order; what would exceed it is dropped from the right. */
    uint32_t ooseq_bytes;
    /* Added to the milliseconds in our timestamps: they shall not tell the uptime. */
    uint32_t timestamp_offset;
};
#ifdef __cplusplus
extern "C" {
#endif
extern __thread const struct vma_lwip_parameters* vma_lwip_parameters;
#ifdef __cplusplus
}
#endif

/* <netinet/tcp.h> has one, too, with another meaning. */
#undef TCP_MSS
#define TCP_MSS (vma_lwip_parameters->mss)
#define TCP_WND (vma_lwip_parameters->wnd)
#define TCP_RCV_SCALE (vma_lwip_parameters->rcv_scale)
#define TCP_SND_BUF (vma_lwip_parameters->snd_buf)
#define TCP_WND_UPDATE_THRESHOLD (vma_lwip_parameters->wnd_update_threshold)
#define TCP_OOSEQ_BYTES_LIMIT(pcb) (vma_lwip_parameters->ooseq_bytes)

#define NO_SYS 1
#define SYS_LIGHTWEIGHT_PROT 0 /* the connection's lock protects its pbufs */
#define LWIP_TIMERS 0
#define LWIP_IPV4 1
#define LWIP_IPV6 0
#define LWIP_ARP 0
#define LWIP_ETHERNET 0
#define LWIP_ICMP 0
#define LWIP_RAW 0
#define LWIP_UDP 0
#define LWIP_DHCP 0
#define LWIP_DNS 0
#define LWIP_IGMP 0
#define IP_REASSEMBLY 0
#define IP_FRAG 0
#define LWIP_NETCONN 0
#define LWIP_SOCKET 0
#define LWIP_STATS 0
#define LWIP_ERRNO_STDINCLUDE 0

#define LWIP_TCP 1
#define LWIP_CALLBACK_API 1
#define TCP_QUEUE_OOSEQ 1
#define LWIP_TCP_SACK_OUT 1
#define LWIP_TCP_MAX_SACK_NUM 4 /* with timestamps three fit into the options */
#define LWIP_TCP_TIMESTAMPS 1
#define LWIP_WND_SCALE 1
#define LWIP_TCP_KEEPALIVE 1
#define TCP_LISTEN_BACKLOG 0         /* its counter has 8 bits; our Listener bounds what is half open */
#define TCP_CALCULATE_EFF_SEND_MSS 0 /* the route's MTU is in `mss` */
#define TCP_OVERSIZE 0               /* only tcp_write() would use it, and we do not */
#define TCP_SND_QUEUELEN 0xffff
#define TCP_SLOW_INTERVAL 1 /* tcp_ticks are milliseconds */
#define TCP_TTL 64
#define LWIP_HAVE_LOOPIF 0
#define LWIP_SINGLE_NETIF 1
#define LWIP_NETIF_HOSTNAME 0

/* One pass over the data computes checksums, together with the copy: not here. */
#define LWIP_CHECKSUM_CTRL_PER_NETIF 0
#define LWIP_CHECKSUM_ON_COPY 0
#define CHECKSUM_GEN_TCP 0
#define CHECKSUM_CHECK_TCP 0
#define CHECKSUM_GEN_IP 0
#define CHECKSUM_CHECK_IP 0

/* Memory comes from libvma/tcp/lwip/memory.cpp. */
#define MEM_ALIGNMENT 8
#define MEM_LIBC_MALLOC 1 /* mem_size_t is size_t; mem.c is not compiled */
#define MEMP_MEM_MALLOC 1 /* no arrays; memp.c is not compiled */
#define LWIP_SUPPORT_CUSTOM_PBUF 1
#define PBUF_POOL_FREE_OOSEQ 0
#define PBUF_POOL_BUFSIZE 2048
/* Room for Ethernet with a VLAN tag in front of the IP header. lwIP aligns payloads to 8 at this offset, so
   with 20 (and 20 for IP) the TCP header is aligned. */
#define PBUF_LINK_HLEN 20

#ifdef __cplusplus
extern "C" {
#endif
struct ip4_addr;
struct tcp_pcb;
struct tcp_hdr;
struct pbuf;
uint32_t vma_lwip_isn(const struct ip4_addr* local_ip, uint16_t local_port, const struct ip4_addr* remote_ip,
                      uint16_t remote_port);
int8_t vma_lwip_inpacket(struct tcp_pcb* pcb, struct tcp_hdr* header, uint16_t optlen, uint16_t opt1len,
                         uint8_t* opt2, struct pbuf* p);
#ifdef __cplusplus
}
#endif
#define LWIP_HOOK_TCP_ISN vma_lwip_isn
#define LWIP_HOOK_TCP_INPACKET_PCB vma_lwip_inpacket

#endif
