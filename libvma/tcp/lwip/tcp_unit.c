// SPDX-License-Identifier: BSD-2-Clause
// lwIP's core/tcp.c: the life of a PCB. Its calls of tcp_output() come to us.
#define tcp_output vma_lwip_output
#include "core/tcp.c"
