/* SPDX-License-Identifier: BSD-2-Clause */
/* The header in C: sizes and offsets as a C compiler sees them. */
#include <stddef.h>

#include "include/mellanox/vma_extra.h"
#include "tests/api/layout.h"

static const size_t kLayout[] = {VMA_EXTRA_LAYOUT};

const size_t* vma_extra_layout_in_c(size_t* count) {
    *count = sizeof kLayout / sizeof kLayout[0];
    return kLayout;
}
