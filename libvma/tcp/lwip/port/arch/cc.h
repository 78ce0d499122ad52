// SPDX-License-Identifier: BSD-2-Clause
/* What lwIP wants to know about compiler and platform, and what must never happen inside somebody else's
   program: that it prints, or ends the process. A failed assertion is logged and counted by glue.cpp. */
#ifndef VMA_LWIP_ARCH_CC_H
#define VMA_LWIP_ARCH_CC_H

#include <endian.h>

#ifdef __cplusplus
extern "C" {
#endif
void vma_lwip_assertion_failed(const char* message, int line);
#ifdef __cplusplus
}
#endif

#define LWIP_PLATFORM_DIAG(x) \
    do {                      \
    } while (0)
#define LWIP_PLATFORM_ASSERT(message) vma_lwip_assertion_failed((message), __LINE__)

#define lwip_htons(x) __builtin_bswap16((u16_t)(x))
#define lwip_htonl(x) __builtin_bswap32((u32_t)(x))
/* The program's own names stay its own. */
#define LWIP_DONT_PROVIDE_BYTEORDER_FUNCTIONS 1

#endif
