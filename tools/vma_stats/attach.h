// SPDX-License-Identifier: BSD-2-Clause
// Finds the statistics files of running processes and opens those that pass the checks below.
//
// Any user may be able to write to the directory. So a file counts only if it is a regular file of root or of
// the process's user. Its header must name the process, and the process that has the number now must be the
// same one. vma_stats then reads the file with pread(2), by the descriptor that was checked.
#pragma once

#include <sys/types.h>

#include <expected>
#include <optional>
#include <string>
#include <vector>

#include "tools/common/fd.h"
#include "tools/vma_stats/reader.h"

namespace vma_stats {

// Why a process cannot be watched.
struct Problem {
    pid_t pid = 0;
    bool gone = false;  // the process has ended, or never used libvma: waiting for one may help
    std::string text;   // a sentence for people
};

// The statistics of a process, open.
class Attachment {
  public:
    pid_t pid() const { return pid_; }
    const layout::Header& header() const { return header_; }
    std::string program() const;
    // Bytes as they are now, with the times filled in.
    std::expected<Snapshot, Problem> read();
    // Has the process put another file in place (it has called exec), or none?
    bool replaced() const;
    // Does the process still run?
    bool alive() const;
    // Readable when the process ends; -1 where the kernel has no pidfds.
    int pidfd() const { return pidfd_.get(); }

  private:
    friend std::expected<Attachment, Problem> attach(const std::string&, pid_t, bool);
    Attachment() = default;

    pid_t pid_ = 0;
    std::string path_;
    tools::Fd file_, pidfd_;
    dev_t device_ = 0;
    ino_t inode_ = 0;
    layout::Header header_{};
};

// Opens the statistics of a process. With `clean`, removes the file of an ended process if the file belongs
// to this user.
std::expected<Attachment, Problem> attach(const std::string& directory, pid_t pid, bool clean);

// All processes that have statistics in the directory, by number. `problems` gives the reason for each that
// cannot be watched.
struct Found {
    std::vector<Attachment> processes;
    std::vector<Problem> problems;
    std::string directory_problem;  // the directory itself cannot be read
};
Found discover(const std::string& directory, bool clean);

}  // namespace vma_stats
