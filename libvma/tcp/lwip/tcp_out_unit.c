// SPDX-License-Identifier: BSD-2-Clause
// lwIP's core/tcp_out.c: how segments and control segments are made. Functions that it keeps to itself and a
// sender of our own needs are given names here (contracts: lwip.h).
#define tcp_output vma_lwip_output
#include "core/tcp_out.c"
#include "lwip.h"

struct tcp_seg* vma_lwip_create_segment(const struct tcp_pcb* pcb, struct pbuf* p, u8_t hdrflags, u32_t seqno,
                                        u8_t optflags) {
    return tcp_create_segment(pcb, p, hdrflags, seqno, optflags);
}

err_t vma_lwip_output_segment(struct tcp_seg* seg, struct tcp_pcb* pcb) {
    return tcp_output_segment(seg, pcb, tcp_route(pcb, &pcb->local_ip, &pcb->remote_ip));
}

struct pbuf* vma_lwip_alloc_header(struct tcp_pcb* pcb, u16_t optlen, u16_t datalen, u32_t seqno) {
    return tcp_output_alloc_header(pcb, optlen, datalen, lwip_htonl(seqno));
}

void vma_lwip_fill_options(const struct tcp_pcb* pcb, struct pbuf* p, u8_t optflags, u8_t num_sacks) {
    tcp_output_fill_options(pcb, p, optflags, num_sacks);
}

u8_t vma_lwip_num_sacks(const struct tcp_pcb* pcb, u8_t optlen) { return tcp_get_num_sacks(pcb, optlen); }

err_t vma_lwip_output_control_segment(const struct tcp_pcb* pcb, struct pbuf* p) {
    return tcp_output_control_segment(pcb, p, &pcb->local_ip, &pcb->remote_ip);
}
