// SPDX-License-Identifier: BSD-2-Clause
#include "tools/vma_perf/files.h"

#include <fmt/format.h>
#include <string.h>

#include <nlohmann/json.hpp>

#include "tools/common/files.h"
#include "tools/vma_perf/status.h"

namespace vma_perf {

OutputFile::OutputFile(const std::string& path)
    : path_(path == "-" ? "standard output" : path), file_(path == "-" ? stdout : fopen(path.c_str(), "we")) {
    if (!file_) fail_errno(path_);
}

void OutputFile::write(const std::string& text) {
    if (fwrite(text.data(), 1, text.size(), file_.get()) != text.size()) fail_errno(path_);
}

void OutputFile::close() {
    FILE* const file = file_.release();
    const bool good = file == stdout ? fflush(file) == 0 : fclose(file) == 0;
    if (!good) fail_errno(path_);
}

nlohmann::json read_json(const std::string& path) {
    const auto text = tools::read_file(path);
    if (!text) throw Failure(kFailed, fmt::format("{}: {}", path, strerror(text.error())));
    auto json = nlohmann::json::parse(*text, nullptr, false);
    if (json.is_discarded()) throw Failure(kFailed, fmt::format("{}: not a JSON file", path));
    return json;
}

}  // namespace vma_perf
