// SPDX-License-Identifier: BSD-2-Clause
// Files that the program writes and reads. Errors name the file.
#pragma once

#include <stdio.h>

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace vma_perf {

// A file that is written completely, or a Failure: close() reports what a full disk hid.
class OutputFile {
  public:
    // Throws Failure. "-": standard output.
    explicit OutputFile(const std::string& path);
    OutputFile(OutputFile&&) noexcept = default;
    ~OutputFile() = default;
    void write(const std::string& text);
    void close();

  private:
    struct Closer {
        void operator()(FILE* file) const {
            if (file != stdout) fclose(file);
        }
    };
    std::string path_;
    std::unique_ptr<FILE, Closer> file_;
};

// A result or a list of results from a file that --json wrote. Throws Failure.
nlohmann::json read_json(const std::string& path);

}  // namespace vma_perf
