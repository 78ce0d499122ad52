// SPDX-License-Identifier: BSD-2-Clause
// See process.h.
#include "tools/vma_stats/process.h"

#include <errno.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <climits>
#include <sstream>

#include "tools/common/files.h"

namespace vma_stats {
namespace {

// Empty where the file cannot be read: a process may end between open and read.
std::string contents(const std::string& path) { return tools::read_file(path).value_or(""); }

bool exists(pid_t pid) { return kill(pid, 0) == 0 || errno == EPERM; }

}  // namespace

ProcessFacts facts_of(pid_t pid) {
    ProcessFacts facts;
    const std::string folder = fmt::format("/proc/{}", pid);
    struct stat st {};
    if (stat(folder.c_str(), &st) != 0) {
        // /proc may hide processes of others.
        facts.alive = exists(pid);
        return facts;
    }
    facts.owner = facts.effective = st.st_uid;
    // The name in parentheses may hold any bytes, so fields count from the last parenthesis: the state is the
    // third.
    const std::string line = contents(folder + "/stat");
    facts.alive = !line.empty() || exists(pid);
    if (const std::size_t close = line.rfind(')'); close != line.npos) {
        std::istringstream fields(line.substr(close + 1));
        std::string field;
        for (int number = 3; fields >> field; number++) {
            if (number == 3) facts.zombie = field == "Z" || field == "X";
            if (number == 22) {
                facts.start_ticks = strtoull(field.c_str(), nullptr, 10);
                break;
            }
        }
    }
    std::istringstream status(contents(folder + "/status"));
    for (std::string row; std::getline(status, row);) {
        unsigned real = 0, effective = 0;
        if (sscanf(row.c_str(), "Uid: %u %u", &real, &effective) == 2) facts.effective = effective;
    }
    // A zombie has ended; its parent has not waited for it yet.
    if (facts.zombie) facts.alive = false;
    return facts;
}

bool runs_program(pid_t pid, const std::string& name) {
    const std::string folder = fmt::format("/proc/{}", pid);
    char target[PATH_MAX];
    const ssize_t length = readlink((folder + "/exe").c_str(), target, sizeof target);
    if (length > 0) {
        std::string path(target, static_cast<std::size_t>(length));
        constexpr std::string_view kDeleted = " (deleted)";
        if (path.ends_with(kDeleted)) path.resize(path.size() - kDeleted.size());
        if (path == name || path.substr(path.rfind('/') + 1) == name) return true;
    }
    // Fifteen characters are all that the kernel keeps.
    std::string comm = contents(folder + "/comm");
    if (!comm.empty() && comm.back() == '\n') comm.pop_back();
    return !comm.empty() && comm == name.substr(0, 15);
}

}  // namespace vma_stats
