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

#ifdef __cplusplus
}
/* Belongs to <netinet/tcp.h>, with another meaning. */
#undef TCP_MSS
#endif

#endif
