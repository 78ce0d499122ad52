// SPDX-License-Identifier: BSD-2-Clause
/* The variables of core/tcp_in.c that describe the segment being processed. */
#ifndef VMA_LWIP_INPUT_STATE_H
#define VMA_LWIP_INPUT_STATE_H

#include "lwip/priv/tcp_priv.h"

#ifdef __cplusplus
extern "C" {
#endif

struct vma_lwip_input_state {
    struct tcp_seg inseg;
    struct tcp_hdr* tcphdr; /* ports, numbers and window in host byte order */
    u8_t* tcphdr_opt2;
    struct pbuf* recv_data;
    struct tcp_pcb* tcp_input_pcb;
    u32_t seqno, ackno;
    tcpwnd_size_t recv_acked;
    u16_t tcphdr_optlen;
    u16_t tcphdr_opt1len;
    u16_t tcp_optidx;
    u16_t tcplen; /* SYN and FIN included */
    u8_t flags;
    u8_t recv_flags;
};

/* Copies all of them out of, or back into, the calling thread's variables. */
void vma_lwip_save_input(struct vma_lwip_input_state* state);
void vma_lwip_restore_input(const struct vma_lwip_input_state* state);

/* From Hooks::inpacket: lwIP shall see neither data nor FIN in the segment at hand, only what it
 * acknowledges. */
void vma_lwip_drop_text(void);
/* The same of its options: lwIP reads none. */
void vma_lwip_drop_options(void);
/* lwIP shall take the segment at hand for one that begins at `seq`. */
void vma_lwip_begin_at(u32_t seq);

#ifdef __cplusplus
}
#endif

#endif
