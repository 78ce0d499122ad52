// SPDX-License-Identifier: BSD-2-Clause
// Finding statistics files and trusting none; commands to a process.
#include "tools/vma_stats/attach.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <signal.h>
#include <stddef.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <thread>

#include "tests/vma_stats/stats_image.h"
#include "tools/vma_stats/commands.h"

namespace {

using namespace vma_stats;
using testing::HasSubstr;
namespace fs = std::filesystem;

// A process that does nothing, and ends with this object.
class Sleeper {
  public:
    Sleeper() : pid_(fork()) {
        if (pid_ == 0)
            while (true) pause();
    }
    ~Sleeper() { end(); }
    pid_t pid() const { return pid_; }
    void end() {
        if (pid_ > 0) kill(pid_, SIGKILL), waitpid(pid_, nullptr, 0);
        pid_ = -1;
    }

  private:
    pid_t pid_;
};

class StatsAttach : public testing::Test {
  protected:
    void SetUp() override {
        char name[] = "/tmp/vma_stats_test.XXXXXX";
        directory = mkdtemp(name);
    }
    void TearDown() override { fs::remove_all(directory); }
    stats_image::Image image_of(pid_t pid) { return stats_image::sample(pid, stats_image::start_ticks(pid)); }
    std::string path(pid_t pid) { return directory + "/vmastat." + std::to_string(pid); }
    // Expects a refusal whose text has the words.
    Problem refused(pid_t pid, const std::string& words, bool clean = true) {
        const auto attachment = attach(directory, pid, clean);
        EXPECT_FALSE(attachment);
        if (attachment) return {};
        EXPECT_THAT(attachment.error().text, HasSubstr(words));
        return attachment.error();
    }
    std::string directory;
    Sleeper sleeper;
};

TEST_F(StatsAttach, ReadsARunningProcess) {
    stats_image::write(directory, image_of(sleeper.pid()), 0400);
    auto attachment = attach(directory, sleeper.pid(), true);
    ASSERT_TRUE(attachment) << attachment.error().text;
    EXPECT_EQ(attachment->program(), "sample");
    const auto snapshot = attachment->read();
    ASSERT_TRUE(snapshot);
    EXPECT_EQ(snapshot->sockets.size(), 4u);
    EXPECT_GT(snapshot->taken_ns, 0);
    EXPECT_TRUE(attachment->alive());
    EXPECT_FALSE(attachment->replaced());
}

// The last counters can be read after the process and its file have gone.
TEST_F(StatsAttach, SeesTheEndAndReadsOnceMore) {
    stats_image::write(directory, image_of(sleeper.pid()));
    auto attachment = attach(directory, sleeper.pid(), true);
    ASSERT_TRUE(attachment);
    fs::remove(path(sleeper.pid()));
    sleeper.end();
    EXPECT_FALSE(attachment->alive());
    EXPECT_TRUE(attachment->read());
}

TEST_F(StatsAttach, SeesAnotherFileInPlace) {
    stats_image::write(directory, image_of(sleeper.pid()));
    const auto attachment = attach(directory, sleeper.pid(), true);
    ASSERT_TRUE(attachment);
    stats_image::write(directory, image_of(sleeper.pid()));
    EXPECT_TRUE(attachment->replaced());
}

TEST_F(StatsAttach, NoProcessAndNoFile) {
    EXPECT_TRUE(refused(sleeper.pid(), "has no statistics").gone);
    const pid_t pid = sleeper.pid();
    sleeper.end();
    EXPECT_TRUE(refused(pid, "there is no process").gone);
}

TEST_F(StatsAttach, FilesOfDeadProcessesAreRemovedOrKept) {
    stats_image::write(directory, image_of(sleeper.pid()));
    const pid_t pid = sleeper.pid();
    sleeper.end();
    EXPECT_TRUE(refused(pid, "has ended, and left", false).gone);
    EXPECT_TRUE(fs::exists(path(pid)));
    EXPECT_TRUE(refused(pid, "has ended, and left").gone);
    EXPECT_FALSE(fs::exists(path(pid)));
}

TEST_F(StatsAttach, FilesOfAnEarlierProcessAreRemovedOrKept) {
    stats_image::write(directory, stats_image::sample(sleeper.pid(), 1));
    refused(sleeper.pid(), "an earlier process", false);
    EXPECT_TRUE(fs::exists(path(sleeper.pid())));
    EXPECT_TRUE(refused(sleeper.pid(), "an earlier process").gone);
    EXPECT_FALSE(fs::exists(path(sleeper.pid())));
}

// What only has the name is not ours to remove.
TEST_F(StatsAttach, ForeignFilesStay) {
    const pid_t pid = sleeper.pid();
    stats_image::write_bytes(path(pid), std::vector<std::byte>(5000));
    EXPECT_FALSE(refused(pid, "is no statistics file of libvma").gone);
    sleeper.end();
    refused(pid, "is no statistics file of libvma");
    EXPECT_TRUE(fs::exists(path(pid)));
}

TEST_F(StatsAttach, EndedByItsOwnWord) {
    stats_image::Image image = image_of(sleeper.pid());
    image.header.life = static_cast<std::uint32_t>(layout::Life::ended);
    stats_image::write(directory, image);
    EXPECT_TRUE(refused(sleeper.pid(), "has ended its work").gone);
}

TEST_F(StatsAttach, SaysItIsOfAnotherProcess) {
    stats_image::Image image = image_of(sleeper.pid());
    image.header.pid++;
    stats_image::write_bytes(path(sleeper.pid()), image.bytes());
    EXPECT_FALSE(refused(sleeper.pid(), "is of another process").gone);
}

TEST_F(StatsAttach, OtherVersion) {
    stats_image::Image image = image_of(sleeper.pid());
    image.header.version = 9;
    stats_image::write(directory, image);
    refused(sleeper.pid(), "has version 9 of the layout");
}

TEST_F(StatsAttach, Truncated) {
    fs::resize_file(stats_image::write(directory, image_of(sleeper.pid())), 3000);
    refused(sleeper.pid(), "is truncated");
}

TEST_F(StatsAttach, TruncatedWhileItIsWatched) {
    const std::string file = stats_image::write(directory, image_of(sleeper.pid()));
    auto attachment = attach(directory, sleeper.pid(), true);
    ASSERT_TRUE(attachment);
    fs::resize_file(file, 100);
    const auto snapshot = attachment->read();
    ASSERT_FALSE(snapshot);
    EXPECT_THAT(snapshot.error().text, HasSubstr("truncated"));
}

TEST_F(StatsAttach, LinksPipesAndFoldersAreNotOpened) {
    const std::string name = path(sleeper.pid());
    stats_image::write(directory, image_of(sleeper.pid()));
    fs::rename(name, directory + "/real");
    fs::create_symlink(directory + "/real", name);
    refused(sleeper.pid(), "is a symbolic link");
    fs::remove(name);
    ASSERT_EQ(mkfifo(name.c_str(), 0600), 0);
    refused(sleeper.pid(), "is no regular file");
    fs::remove(name);
    fs::create_directory(name);
    refused(sleeper.pid(), "is a directory");
}

TEST_F(StatsAttach, HugeFilesAreNotRead) {
    fs::resize_file(stats_image::write(directory, image_of(sleeper.pid())), 1ull << 40);
    refused(sleeper.pid(), "bytes");
}

TEST_F(StatsAttach, AnotherUsersFile) {
    if (geteuid() != 0) GTEST_SKIP() << "only root can give files away";
    const std::string file = stats_image::write(directory, image_of(sleeper.pid()));
    ASSERT_EQ(chown(file.c_str(), 65534, 65534), 0);
    EXPECT_FALSE(refused(sleeper.pid(), "belongs to user 65534").gone);
    EXPECT_TRUE(fs::exists(file));
}

TEST_F(StatsAttach, DiscoversAllAndSaysWhyNot) {
    Sleeper other, dead;
    stats_image::write(directory, image_of(sleeper.pid()));
    stats_image::write(directory, image_of(other.pid()));
    stats_image::write(directory, image_of(dead.pid()));
    stats_image::write_bytes(directory + "/vmastat.1", {});
    for (const char* name :
         {"/vmastat.", "/vmastat.x", "/vmastat.0", "/vmastat.12.new", "/vmastat.007", "/vmastat.99999999999"})
        stats_image::write_bytes(directory + name, {});
    dead.end();
    const Found found = discover(directory, true);
    ASSERT_EQ(found.processes.size(), 2u);
    EXPECT_LT(found.processes[0].pid(), found.processes[1].pid());
    ASSERT_EQ(found.problems.size(), 2u);
    EXPECT_THAT(found.problems[0].text, HasSubstr("is empty"));
    EXPECT_TRUE(found.problems[1].gone);
    EXPECT_THAT(discover(directory + "/nowhere", true).directory_problem, HasSubstr("No such file"));
}

// A process that takes commands: this one.
class StatsCommands : public StatsAttach {
  protected:
    void SetUp() override {
        StatsAttach::SetUp();
        const std::string name = "vma_stats_test." + std::to_string(getpid());
        listener = tools::Fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
        sockaddr_un address{};
        address.sun_family = AF_UNIX;
        name.copy(address.sun_path + 1, sizeof address.sun_path - 1);
        ASSERT_EQ(bind(listener.get(), reinterpret_cast<sockaddr*>(&address),
                       static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size())),
                  0);
        listen(listener.get(), 4);
        image = image_of(getpid());
        stats_image::set_text(image.header.command_socket, name);
    }
    std::expected<std::string, std::string> send(const Instruction& what) {
        stats_image::write(directory, image);
        const auto attachment = attach(directory, static_cast<pid_t>(image.header.pid), true);
        EXPECT_TRUE(attachment) << attachment.error().text;
        return command(*attachment, what, std::chrono::milliseconds(300));
    }
    // Takes one request and gives the answer's first `length` bytes.
    std::thread serve(const vma::stats::Answer& answer, std::size_t length = sizeof(vma::stats::Answer)) {
        return std::thread([this, answer, length] {
            const tools::Fd peer(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
            EXPECT_EQ(recv(peer.get(), &request, sizeof request, 0), static_cast<ssize_t>(sizeof request));
            if (length != 0) ::send(peer.get(), &answer, length, MSG_NOSIGNAL);
        });
    }
    vma::stats::Answer answer{.magic = vma::stats::kControlMagic, .error = 0, .text = "done"};
    vma::stats::Request request{};
    stats_image::Image image;
    tools::Fd listener;
};

TEST_F(StatsCommands, RequestAndAnswer) {
    std::thread server = serve(answer);
    const auto said = send({vma::stats::Command::dump_socket, 14, 5});
    server.join();
    ASSERT_TRUE(said) << said.error();
    EXPECT_EQ(*said, "done");
    EXPECT_EQ(request.magic, vma::stats::kControlMagic);
    EXPECT_EQ(request.version, vma::stats::kVersion);
    EXPECT_EQ(request.command, static_cast<std::uint32_t>(vma::stats::Command::dump_socket));
    EXPECT_EQ(request.value, 14);
    EXPECT_EQ(request.level, 5);
}

TEST_F(StatsCommands, Refusals) {
    answer.error = EBADF;
    stats_image::set_text(answer.text, "no socket\n14");
    std::thread server = serve(answer);
    auto said = send({vma::stats::Command::dump_socket, 14, 5});
    server.join();
    ASSERT_FALSE(said);
    EXPECT_THAT(said.error(), HasSubstr("no socket\\x0a14"));

    answer.magic = 7;
    server = serve(answer);
    said = send({vma::stats::Command::zero});
    server.join();
    ASSERT_FALSE(said);
    EXPECT_THAT(said.error(), HasSubstr("makes no sense"));

    server = serve(answer, 3);
    said = send({vma::stats::Command::zero});
    server.join();
    EXPECT_THAT(said.error(), HasSubstr("makes no sense"));

    server = serve(answer, 0);
    said = send({vma::stats::Command::zero});
    server.join();
    ASSERT_FALSE(said);
    EXPECT_THAT(said.error(), HasSubstr("closed the connection"));
}

TEST_F(StatsCommands, NoAnswerInTime) {
    const auto said = send({vma::stats::Command::zero});
    ASSERT_FALSE(said);
    EXPECT_THAT(said.error(), HasSubstr("no answer in time"));
}

// The name is that of another process's socket: a file may say anything.
TEST_F(StatsCommands, OnlyTheProcessItselfIsSpokenTo) {
    stats_image::Image theirs = image_of(sleeper.pid());
    stats_image::set_text(theirs.header.command_socket, "vma_stats_test." + std::to_string(getpid()));
    image = theirs;
    const auto said = send({vma::stats::Command::zero});
    ASSERT_FALSE(said);
    EXPECT_THAT(said.error(), HasSubstr("belongs to another process"));
}

TEST_F(StatsCommands, NobodyListens) {
    stats_image::set_text(image.header.command_socket, "");
    EXPECT_THAT(send({vma::stats::Command::zero}).error(), HasSubstr("takes no commands"));
    fs::remove(path(getpid()));
    memset(image.header.command_socket, 'x', sizeof image.header.command_socket);
    EXPECT_THAT(send({vma::stats::Command::zero}).error(), HasSubstr("cannot be reached"));
}

}  // namespace
