// SPDX-License-Identifier: BSD-2-Clause
// See attach.h.
#include "tools/vma_stats/attach.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include <algorithm>
#include <memory>
#include <string_view>

#include "tools/common/clock.h"
#include "tools/common/numbers.h"
#include "tools/vma_stats/process.h"
#include "tools/vma_stats/text.h"

namespace vma_stats {
namespace {

class FileSource : public Source {
  public:
    explicit FileSource(int fd) : fd_(fd) {}
    std::uint64_t size() const override {
        struct stat st {};
        return fstat(fd_, &st) == 0 && st.st_size > 0 ? static_cast<std::uint64_t>(st.st_size) : 0;
    }
    std::int64_t read(std::uint64_t offset, std::span<std::byte> to) override {
        std::size_t done = 0;
        while (done < to.size()) {
            const ssize_t n =
                pread(fd_, to.data() + done, to.size() - done, static_cast<off_t>(offset + done));
            if (n < 0 && errno == EINTR) continue;
            if (n < 0) return -1;
            if (n == 0) break;
            done += static_cast<std::size_t>(n);
        }
        return static_cast<std::int64_t>(done);
    }

  private:
    int fd_;
};

std::unexpected<Problem> refuse(pid_t pid, std::string text, bool gone = false) {
    return std::unexpected(Problem{pid, gone, std::move(text)});
}

// Removes the file of an ended process, if the path still leads to the file that was checked and this user
// owns the file.
void remove_stale(const std::string& path, const struct stat& seen) {
    struct stat now {};
    if (seen.st_uid != geteuid() || lstat(path.c_str(), &now) != 0) return;
    if (now.st_dev == seen.st_dev && now.st_ino == seen.st_ino) unlink(path.c_str());
}

std::expected<tools::Fd, Problem> open_checked(const std::string& path, pid_t pid, struct stat& st) {
    // lstat() comes before open(), because opening a device may have an effect.
    if (lstat(path.c_str(), &st) != 0) {
        if (errno != ENOENT) return refuse(pid, fmt::format("{}: {}", path, strerrordesc_np(errno)));
        const bool runs = kill(pid, 0) == 0 || errno == EPERM;
        if (!runs) return refuse(pid, fmt::format("there is no process {}", pid), true);
        return refuse(
            pid,
            fmt::format(
                "process {} has no statistics: there is no {} (it runs without libvma, has not opened a "
                "socket yet, or has another VMA_STATS_SHMEM_DIR: see -k)",
                pid, path),
            true);
    }
    const char* const kind = S_ISLNK(st.st_mode)   ? "a symbolic link"
                             : S_ISDIR(st.st_mode) ? "a directory"
                             : S_ISREG(st.st_mode) ? nullptr
                                                   : "no regular file";
    if (kind != nullptr) return refuse(pid, fmt::format("{} is {}; it is not read", path, kind));
    tools::Fd file(open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
    if (!file) {
        const int error = errno;
        if (error == EACCES || error == EPERM)
            return refuse(pid,
                          fmt::format("no permission to read {}, a file of user {}: become that user or root",
                                      path, st.st_uid));
        return refuse(pid, fmt::format("cannot open {}: {}", path, strerrordesc_np(error)), error == ENOENT);
    }
    if (fstat(file.get(), &st) != 0 || !S_ISREG(st.st_mode))
        return refuse(pid, fmt::format("{} is no regular file", path));
    if (static_cast<std::uint64_t>(st.st_size) > kMaxFileSize)
        return refuse(pid,
                      fmt::format("{} is no statistics file of libvma: it has {} bytes", path, st.st_size));
    return file;
}

}  // namespace

std::expected<Attachment, Problem> attach(const std::string& directory, pid_t pid, bool clean) {
    Attachment a;
    a.pid_ = pid;
    a.path_ = fmt::format("{}/{}{}", directory, layout::kFilePrefix, pid);
    struct stat st {};
    auto file = open_checked(a.path_, pid, st);
    if (!file) return std::unexpected(std::move(file.error()));
    a.file_ = std::move(*file);
    a.device_ = st.st_dev;
    a.inode_ = st.st_ino;
    // Opened before /proc is read, so that the pidfd stands for the process that is compared below.
    a.pidfd_ = tools::Fd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));

    FileSource source(a.file_.get());
    const auto fault = read_header(source, a.header_);
    const ProcessFacts facts = facts_of(pid);
    const bool ours = !fault || fault->fault != Fault::foreign;
    if (facts.alive && st.st_uid != 0 && st.st_uid != facts.owner && st.st_uid != facts.effective)
        return refuse(pid, fmt::format("{} belongs to user {}, and process {} to user {}; it is not trusted",
                                       a.path_, st.st_uid, pid, facts.effective));
    if (!facts.alive) {
        if (clean && ours) remove_stale(a.path_, st);
        if (ours)
            return refuse(pid, fmt::format("process {} has ended, and left {} behind", pid, a.path_), true);
    }
    if (fault) return refuse(pid, a.path_ + " " + fault->text);
    if (a.header_.pid != static_cast<std::uint32_t>(pid))
        return refuse(pid, fmt::format("{} is of another process: it says {}", a.path_, a.header_.pid));
    if (facts.start_ticks != 0 && a.header_.start_ticks != facts.start_ticks) {
        if (clean) remove_stale(a.path_, st);
        return refuse(
            pid, fmt::format("{} is of an earlier process with the number {}, which has ended", a.path_, pid),
            true);
    }
    if (static_cast<layout::Life>(a.header_.life) == layout::Life::ended)
        return refuse(pid, fmt::format("libvma in process {} has ended its work", pid), true);
    return a;
}

std::string Attachment::program() const { return text(header_.program); }

std::expected<Snapshot, Problem> Attachment::read() {
    FileSource source(file_.get());
    Snapshot snapshot;
    if (auto fault = read_snapshot(source, snapshot)) return refuse(pid_, path_ + " " + fault->text);
    snapshot.taken_ns = tools::now_ns(CLOCK_MONOTONIC);
    snapshot.realtime_ns = tools::now_ns(CLOCK_REALTIME);
    header_ = snapshot.header;
    return snapshot;
}

bool Attachment::replaced() const {
    struct stat st {};
    return lstat(path_.c_str(), &st) == 0 && (st.st_dev != device_ || st.st_ino != inode_);
}

bool Attachment::alive() const {
    if (pidfd_) {
        pollfd p{pidfd_.get(), POLLIN, 0};
        return poll(&p, 1, 0) == 0;
    }
    const ProcessFacts facts = facts_of(pid_);
    return facts.alive && (facts.start_ticks == 0 || facts.start_ticks == header_.start_ticks);
}

Found discover(const std::string& directory, bool clean) {
    Found found;
    const std::unique_ptr<DIR, int (*)(DIR*)> folder(opendir(directory.c_str()), closedir);
    if (!folder) {
        found.directory_problem = fmt::format("cannot look into {}: {}", directory, strerrordesc_np(errno));
        return found;
    }
    std::vector<pid_t> pids;
    while (const dirent* entry = readdir(folder.get())) {
        std::string_view name = entry->d_name;
        constexpr std::string_view kPrefix = layout::kFilePrefix;
        if (!name.starts_with(kPrefix)) continue;
        name.remove_prefix(kPrefix.size());
        const auto pid = tools::whole_number<pid_t>(name);
        // A file with a longer name is one that its process still makes, or belongs to another program.
        if (pid && name[0] != '0') pids.push_back(*pid);
    }
    std::sort(pids.begin(), pids.end());
    for (const pid_t pid : pids) {
        auto attachment = attach(directory, pid, clean);
        if (attachment)
            found.processes.push_back(std::move(*attachment));
        else
            found.problems.push_back(std::move(attachment.error()));
    }
    return found;
}

}  // namespace vma_stats
