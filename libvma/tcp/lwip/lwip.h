// SPDX-License-Identifier: BSD-2-Clause
/* All of lwIP that libvma uses, for C++ and C: the one header to include. Who calls any of it needs an Entry
 * (glue.h). */
#ifndef VMA_LWIP_LWIP_H
#define VMA_LWIP_LWIP_H

#include "lwip/opt.h"
#include "lwip/pbuf.h"
#include "lwip/priv/tcp_priv.h"
#include "lwip/prot/tcp.h"
#include "lwip/tcp.h"

#ifdef __cplusplus
extern "C" {
#endif

/* lwIP calls this where it would have called its tcp_output(): goes to Hooks::transmit. While a segment for
   `pcb` is being processed it does nothing, as lwIP's does: the processing ends with a call of it. */
err_t vma_lwip_output(struct tcp_pcb* pcb);

/* lwIP's own tcp_output(): sends what pcb->unsent and the windows allow, or an ACK that is due. */
err_t vma_lwip_original_output(struct tcp_pcb* pcb);

/* A segment for pcb->unsent around `p`, whose payload starts with room for the options of `optflags`
   (TF_SEG_OPTS_*) and goes on with the data; the TCP header is written in front of it. `hdrflags`: TCP_*.
   `seqno` in host byte order. Takes `p`; null when there is no memory (`p` is then freed). */
struct tcp_seg* vma_lwip_create_segment(const struct tcp_pcb* pcb, struct pbuf* p, u8_t hdrflags, u32_t seqno,
                                        u8_t optflags);

/* Brings ACK, window and options of `seg` up to date and hands it to Hooks::output; may be called again to
   retransmit. The segment stays the caller's. Sends nothing while somebody else holds a reference to seg->p.
 */
err_t vma_lwip_output_segment(struct tcp_seg* seg, struct tcp_pcb* pcb);

/* A segment that will not be kept: a header with flag ACK, room for `optlen` bytes of options (a multiple of
   4) and `datalen` of data. `seqno` in host byte order. Null without memory. Announces the current window. */
struct pbuf* vma_lwip_alloc_header(struct tcp_pcb* pcb, u16_t optlen, u16_t datalen, u32_t seqno);
/* Fills the options of such a header: TF_SEG_OPTS_TS and so many SACK ranges. */
void vma_lwip_fill_options(const struct tcp_pcb* pcb, struct pbuf* p, u8_t optflags, u8_t num_sacks);
/* How many SACK ranges are to be told and fit beside `optlen` bytes of other options. They need 4 + 8 * n
 * bytes. */
u8_t vma_lwip_num_sacks(const struct tcp_pcb* pcb, u8_t optlen);
/* Hands such a segment to Hooks::output and frees it. */
err_t vma_lwip_output_control_segment(const struct tcp_pcb* pcb, struct pbuf* p);

#ifdef __cplusplus
}
/* Belongs to <netinet/tcp.h>, with another meaning. */
#undef TCP_MSS
#endif

#endif
