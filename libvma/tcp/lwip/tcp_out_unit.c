// SPDX-License-Identifier: BSD-2-Clause
// lwIP's core/tcp_out.c: FIN, RST and keep-alive segments. Its calls of tcp_output() come to us.
#define tcp_output vma_lwip_output
#include "core/tcp_out.c"
