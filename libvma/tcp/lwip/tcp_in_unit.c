// SPDX-License-Identifier: BSD-2-Clause
// lwIP's core/tcp_in.c: arriving segments. It keeps the segment at hand in variables of the file; here they
// can be saved around a nested entry (a callback that enters lwIP for another connection), and read.
#define tcp_output vma_lwip_output
#include "core/tcp_in.c"
#include "input_state.h"

void vma_lwip_save_input(struct vma_lwip_input_state* state) {
    state->inseg = inseg;
    state->tcphdr = tcphdr;
    state->tcphdr_optlen = tcphdr_optlen;
    state->tcphdr_opt1len = tcphdr_opt1len;
    state->tcphdr_opt2 = tcphdr_opt2;
    state->tcp_optidx = tcp_optidx;
    state->seqno = seqno;
    state->ackno = ackno;
    state->recv_acked = recv_acked;
    state->tcplen = tcplen;
    state->flags = flags;
    state->recv_flags = recv_flags;
    state->recv_data = recv_data;
    state->tcp_input_pcb = tcp_input_pcb;
}

void vma_lwip_drop_text(void) { tcplen = 0; }
void vma_lwip_drop_options(void) { tcphdr_optlen = 0; }
void vma_lwip_begin_at(u32_t seq) { seqno = tcphdr->seqno = seq; }

void vma_lwip_restore_input(const struct vma_lwip_input_state* state) {
    inseg = state->inseg;
    tcphdr = state->tcphdr;
    tcphdr_optlen = state->tcphdr_optlen;
    tcphdr_opt1len = state->tcphdr_opt1len;
    tcphdr_opt2 = state->tcphdr_opt2;
    tcp_optidx = state->tcp_optidx;
    seqno = state->seqno;
    ackno = state->ackno;
    recv_acked = state->recv_acked;
    tcplen = state->tcplen;
    flags = state->flags;
    recv_flags = state->recv_flags;
    recv_data = state->recv_data;
    tcp_input_pcb = state->tcp_input_pcb;
}
