// SPDX-License-Identifier: BSD-2-Clause
// See files.h.
#include "tools/common/files.h"

#include <errno.h>

#include <memory>

namespace tools {

std::expected<std::string, int> read_file(const std::string& path) {
    const std::unique_ptr<FILE, int (*)(FILE*)> file(fopen(path.c_str(), "re"), fclose);
    if (!file) return std::unexpected(errno);
    std::string text;
    char part[65536];
    for (std::size_t got; (got = fread(part, 1, sizeof part, file.get())) > 0;) text.append(part, got);
    if (ferror(file.get()) != 0) return std::unexpected(errno);
    return text;
}

bool print(const std::string& text, FILE* to) {
    return fwrite(text.data(), 1, text.size(), to) == text.size() && fflush(to) == 0;
}

}  // namespace tools
