// SPDX-License-Identifier: BSD-2-Clause
// Prints the parameter table: as Markdown, the text of docs/parameters.md, or with --man as
// docs/man/libvma.7. The files are committed so that they can be read without a build; a unit test fails when
// they no longer agree with the table.
#include <cstdio>
#include <string_view>

#include "libvma/config/params.h"
#include "tools/common/files.h"

int main(int argc, char** argv) {
    const bool man = argc == 2 && std::string_view(argv[1]) == "--man";
    if (argc > 1 && !man) {
        std::fputs("usage: vma_params [--man]\n", stderr);
        return 2;
    }
    const std::string text = man ? vma::config::parameters_man() : vma::config::parameters_markdown();
    const bool written = tools::print(text);
    if (!written) std::perror("vma_params");
    return written ? 0 : 1;
}
