// SPDX-License-Identifier: BSD-2-Clause
// The statistics file in friendly and hostile directories.
#include <fcntl.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <sstream>

#include "libvma/stats/file.h"
#include "libvma/stats/stale_files.h"
#include "libvma/stats/stats_memory.h"
#include "tests/stats/stats_directory.h"
#include "tests/support/child.h"

namespace {

using vma::stats::make_file;
using vma::stats::remove_file;

constexpr std::size_t kSize = 8192;
constexpr uid_t kOther = 12345;

class StatsFile : public vma::test::StatsDirectory {
  protected:
    auto make(void* at = nullptr) {
        return make_file(directory_, "file", kSize, at,
                         [](void* memory) { std::strcpy(static_cast<char*>(memory), "filled"); });
    }
    std::string path(const char* name = "file") const { return directory_ + "/" + name; }
    std::string contents(const std::string& name) const {
        std::ostringstream text;
        text << std::ifstream(name).rdbuf();
        return text.str();
    }
    struct stat status(const std::string& name) const {
        struct stat s {};
        EXPECT_EQ(lstat(name.c_str(), &s), 0) << name;
        return s;
    }
    // Names in the directory, so that no temporary ones stay behind.
    int entries() const {
        std::ostringstream list;
        FILE* pipe = popen(("ls -A " + directory_ + " | wc -l").c_str(), "r");
        int n = -1;
        if (fscanf(pipe, "%d", &n) != 1) n = -1;
        pclose(pipe);
        return n;
    }
};

TEST_F(StatsFile, IsMadeWholeAndPrivate) {
    const mode_t old = umask(0777);
    auto made = make();
    umask(old);
    ASSERT_TRUE(made) << made.error().what;
    const struct stat s = status(path());
    EXPECT_EQ(s.st_mode, mode_t{S_IFREG | 0600}) << "whatever the umask";
    EXPECT_EQ(s.st_size, static_cast<off_t>(kSize));
    EXPECT_EQ(contents(path()).substr(0, 7), std::string("filled\0", 7));
    static_cast<char*>(*made)[0] = 'F';
    EXPECT_EQ(contents(path())[0], 'F') << "it is mapped";
    EXPECT_EQ(entries(), 1);
    munmap(*made, kSize);
    remove_file(directory_, "file");
    EXPECT_EQ(entries(), 0);
}

TEST_F(StatsFile, ReplacesAStaleOne) {
    std::ofstream(path()) << "of a process that was killed";
    auto made = make();
    ASSERT_TRUE(made) << made.error().what;
    EXPECT_EQ(contents(path()).substr(0, 6), "filled");
    munmap(*made, kSize);
}

// Files such as a killed process leaves, by the one thing in which each differs.
TEST_F(StatsFile, RemovesThoseOfTheDead) {
    using namespace vma::stats;
    const pid_t ended = fork();
    if (ended == 0) _exit(0);
    ASSERT_EQ(waitpid(ended, nullptr, 0), ended);
    Header dead{};
    std::memcpy(dead.magic, kMagic, sizeof kMagic);
    dead.version = kVersion;
    dead.pid = static_cast<std::uint32_t>(ended);
    dead.start_ticks = 1;
    dead.pid_namespace = pid_namespace();
    ASSERT_NE(dead.pid_namespace, 0u);
    auto put = [&](const std::string& name, const Header& header, std::size_t size = sizeof(Header)) {
        std::ofstream(path(name.c_str()), std::ios::binary)
            .write(reinterpret_cast<const char*>(&header), static_cast<long>(size));
    };
    auto name_of = [](std::uint32_t pid) { return kFilePrefix + std::to_string(pid); };
    auto there = [&](const std::string& name) { return access(path(name.c_str()).c_str(), F_OK) == 0; };
    auto stays = [&](const char* what, const std::string& name, const Header& header,
                     std::size_t size = sizeof(Header)) {
        put(name, header, size);
        remove_stale_files(directory_);
        EXPECT_TRUE(there(name)) << what;
        unlink(path(name.c_str()).c_str());
    };
    const std::string name = name_of(dead.pid);

    put(name, dead);
    Header reused = dead;  // its number is another process's now
    reused.pid = static_cast<std::uint32_t>(getpid());
    put(name_of(reused.pid), reused);
    remove_stale_files(directory_);
    EXPECT_FALSE(there(name));
    EXPECT_FALSE(there(name_of(reused.pid)));

    Header living = reused;
    living.start_ticks = start_ticks_of(getpid());
    ASSERT_NE(living.start_ticks, 0u);
    stays("of a living process", name_of(living.pid), living);
    Header elsewhere = dead;
    elsewhere.pid_namespace++;
    stays("of another pid namespace", name, elsewhere);
    stays("its name is not the one of its pid", name_of(dead.pid + 1), dead);
    stays("no number", std::string(kFilePrefix) + "x", dead);
    stays("more than a number", name + ".old", dead);
    stays("too short", name, dead, sizeof(Header) - 1);
    Header strange = dead;
    strange.magic[0] = 'V';
    stays("not a statistics file", name, strange);
    Header newer = dead;
    newer.version++;
    stays("another version", name, newer);
    put("target", dead);
    ASSERT_EQ(symlink("target", path(name.c_str()).c_str()), 0);
    remove_stale_files(directory_);
    EXPECT_TRUE(there("target"));
    EXPECT_EQ(status(path(name.c_str())).st_mode & S_IFMT, mode_t{S_IFLNK});
    unlink(path(name.c_str()).c_str());
    if (geteuid() == 0) {
        put(name, dead);
        ASSERT_EQ(chown(path(name.c_str()).c_str(), kOther, kOther), 0);
        remove_stale_files(directory_);
        EXPECT_TRUE(there(name)) << "another user's";
    }
    remove_stale_files(directory_ + "/nowhere");
}

TEST_F(StatsFile, NeverFollowsASymlink) {
    std::ofstream(path("victim")) << "precious";
    ASSERT_EQ(symlink("victim", path().c_str()), 0);
    auto made = make();
    ASSERT_TRUE(made) << "a link of our own is replaced: " << made.error().what;
    EXPECT_EQ(contents(path("victim")), "precious");
    EXPECT_TRUE(S_ISREG(status(path()).st_mode));
    munmap(*made, kSize);

    ASSERT_EQ(unlink(path().c_str()), 0);
    ASSERT_EQ(symlink("victim", path().c_str()), 0);
    remove_file(directory_, "file");
    EXPECT_TRUE(S_ISLNK(status(path()).st_mode)) << "only files are removed";
    EXPECT_EQ(contents(path("victim")), "precious");
}

TEST_F(StatsFile, LeavesWhatIsAnothersOrNoFile) {
    ASSERT_EQ(mkdir(path().c_str(), 0700), 0);
    auto made = make();
    ASSERT_FALSE(made);
    EXPECT_EQ(made.error().code, EEXIST);
    EXPECT_EQ(entries(), 1) << "no temporary file stays";
    ASSERT_EQ(rmdir(path().c_str()), 0);

    if (geteuid() != 0) GTEST_SKIP() << "needs root to make files of others";
    for (bool link : {false, true}) {
        if (link)
            ASSERT_EQ(symlink("/etc/passwd", path().c_str()), 0);
        else
            std::ofstream(path()) << "theirs";
        ASSERT_EQ(lchown(path().c_str(), kOther, kOther), 0);
        made = make();
        ASSERT_FALSE(made) << "even as root";
        EXPECT_EQ(made.error().code, EEXIST);
        EXPECT_NE(made.error().what.find("another user"), std::string::npos) << made.error().what;
        if (!link) {
            EXPECT_EQ(contents(path()), "theirs");
        }
        remove_file(directory_, "file");
        EXPECT_EQ(status(path()).st_uid, kOther);
        ASSERT_EQ(unlink(path().c_str()), 0);
        EXPECT_EQ(entries(), 0);
    }
}

TEST_F(StatsFile, RefusesUnsafeDirectories) {
    auto refused = [&](const std::string& directory, int code, const char* word) {
        auto made = make_file(directory, "file", kSize, nullptr, [](void*) {});
        ASSERT_FALSE(made) << directory;
        EXPECT_EQ(made.error().code, code) << made.error().what;
        EXPECT_NE(made.error().what.find(word), std::string::npos) << made.error().what;
    };
    refused(path("nowhere"), ENOENT, "cannot be opened");
    std::ofstream(path("plain")) << "";
    refused(path("plain"), ENOTDIR, "cannot be opened");
    ASSERT_EQ(chmod(directory_.c_str(), 0777), 0);
    refused(directory_, EACCES, "not sticky");
    ASSERT_EQ(chmod(directory_.c_str(), 01777), 0);
    auto made = make();
    ASSERT_TRUE(made) << made.error().what;
    munmap(*made, kSize);

    // A link to a good directory is as good: /dev/shm may be one.
    const std::string link = directory_ + "-link";
    ASSERT_EQ(symlink(directory_.c_str(), link.c_str()), 0);
    made = make_file(link, "file", kSize, nullptr, [](void*) {});
    EXPECT_TRUE(made) << made.error().what;
    if (made) munmap(*made, kSize);
    if (geteuid() == 0) {
        ASSERT_EQ(chmod(directory_.c_str(), 0700), 0);
        ASSERT_EQ(chown(directory_.c_str(), kOther, kOther), 0);
        refused(directory_, EACCES, "another user");
        refused(link, EACCES, "another user");
        ASSERT_EQ(chown(directory_.c_str(), 0, 0), 0);
    }
    unlink(link.c_str());
}

TEST_F(StatsFile, TakesThePlaceOfAMapping) {
    void* at = mmap(nullptr, kSize, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(at, MAP_FAILED);
    auto made = make(at);
    ASSERT_TRUE(made) << made.error().what;
    EXPECT_EQ(*made, at);
    static_cast<char*>(at)[0] = 'X';
    EXPECT_EQ(contents(path())[0], 'X');
    munmap(at, kSize);
}

// The signal for that ends a process.
TEST_F(StatsFile, LongerThanAFileMayBe) {
    rlimit old{};
    ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &old), 0);
    const rlimit low{kSize - 1, old.rlim_max}, enough{kSize, old.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &low), 0);
    auto made = make();
    setrlimit(RLIMIT_FSIZE, &enough);
    auto fits = make();
    setrlimit(RLIMIT_FSIZE, &old);
    ASSERT_FALSE(made);
    EXPECT_EQ(made.error().code, EFBIG);
    EXPECT_NE(made.error().what.find("ulimit -f"), std::string::npos) << made.error().what;
    ASSERT_TRUE(fits) << fits.error().what;
    munmap(*fits, kSize);
}

TEST_F(StatsFile, FullFileSystem) {
    if (geteuid() != 0) GTEST_SKIP() << "needs root to mount";
    const auto outcome = vma::test::in_child([&] {
        if (::unshare(CLONE_NEWNS) != 0 || ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
            ::mount("none", directory_.c_str(), "tmpfs", 0, "size=4k,mode=0700") != 0)
            return;  // not here
        auto made = make();
        ASSERT_FALSE(made) << "a page that is lacking would be a SIGBUS later";
        EXPECT_EQ(made.error().code, ENOSPC) << made.error().what;
        EXPECT_EQ(entries(), 0);
    });
    EXPECT_TRUE(outcome.passed());
}

}  // namespace
