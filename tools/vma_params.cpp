// SPDX-License-Identifier: BSD-2-Clause
// Prints the parameter table as Markdown, the text of docs/parameters.md. The file is committed so that it
// can be read without a build; a unit test fails when it no longer agrees with the table.
#include <cstdio>

#include "libvma/config/params.h"

int main() {
    std::string text = vma::config::parameters_markdown();
    bool written =
        std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0;
    if (!written) std::perror("vma_params");
    return written ? 0 : 1;
}
