// SPDX-License-Identifier: BSD-2-Clause
// vma_stats as its users run it: messages and exit statuses when there is no process, several, a dead one,
// somebody else's, or a file that is not what it seems; processes that start and end while it watches; wrong
// options; the live view in a terminal. The files are made by hand (tests/vma_stats), for processes that only
// sleep.
#include <gmock/gmock.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <regex>

#include "tests/support/hosts/programs.h"
#include "tests/vma_stats/stats_image.h"

namespace {

using namespace testing_support;
using testing::HasSubstr;
using testing::Not;
namespace fs = std::filesystem;

class VmaStats : public testing::Test {
  protected:
    void SetUp() override {
        directory = scratch.path("shm"), fs::create_directory(directory), chmod(directory.c_str(), 0777);
    }

    Process sleeper() const { return Process::run({"sleep", "1000"}, {}); }
    static stats_image::Image image_of(const Process& process) {
        return stats_image::sample(process.pid(), stats_image::start_ticks(process.pid()));
    }
    // A process that seems to use the library.
    Process seeming() const {
        Process process = sleeper();
        // Until it has called exec, it is a copy of this test.
        const std::string exe = "/proc/" + std::to_string(process.pid()) + "/exe";
        for (int i = 0; i < 200 && fs::read_symlink(exe).filename() != "sleep"; i++) usleep(5000);
        stats_image::write(directory, image_of(process));
        return process;
    }
    Process start(std::vector<std::string> options, std::vector<std::string> launcher = {}) const {
        launcher.insert(launcher.end(), {vma_stats(), "-k", directory});
        launcher.insert(launcher.end(), options.begin(), options.end());
        return Process::run(launcher, {});
    }
    Exit stats(std::vector<std::string> options, std::vector<std::string> launcher = {}) const {
        return start(std::move(options), std::move(launcher)).wait(milliseconds(20000));
    }
    void expect_refused(const std::vector<std::string>& options, const std::string& words) const {
        const Exit exit = stats(options);
        EXPECT_EQ(exit.code, 1);
        EXPECT_EQ(exit.out, "");
        EXPECT_THAT(exit.err, testing::StartsWith("vmastat: "));
        EXPECT_THAT(exit.err, HasSubstr(words));
    }
    std::string file(const Process& process) const {
        return directory + "/vmastat." + std::to_string(process.pid());
    }

    Scratch scratch;
    std::string directory;
};

TEST_F(VmaStats, NoProcess) {
    for (const std::vector<std::string>& options : std::vector<std::vector<std::string>>{
             {}, {"-v", "5"}, {"--json"}, {"--explain"}, {"--prometheus"}, {"-z"}, {"-n", "x"}})
        expect_refused(options, "Failed to identify process...");
    expect_refused({"-p", "999999999"}, "there is no process 999999999");
    expect_refused({"-p", std::to_string(getpid())}, "has no statistics");
    const Exit exit = Process::run({vma_stats(), "-k", directory + "/nowhere"}, {}).wait();
    EXPECT_EQ(exit.code, 1);
    EXPECT_THAT(exit.err, HasSubstr("cannot look into"));
}

TEST_F(VmaStats, WrongOptions) {
    for (const std::vector<std::string>& options : std::vector<std::vector<std::string>>{{"-v", "6"},
                                                                                         {"--nothing"},
                                                                                         {"-p", "x"},
                                                                                         {"-i", "-1"},
                                                                                         {"-s", "a"},
                                                                                         {"--json", "--top"},
                                                                                         {"-l"},
                                                                                         {"surplus"}}) {
        const Exit exit = stats(options);
        EXPECT_EQ(exit.code, 2);
        EXPECT_EQ(exit.out, "");
        EXPECT_THAT(exit.err, HasSubstr("Try vma_stats --help."));
    }
    EXPECT_EQ(stats({"--help"}).code, 0);
    EXPECT_THAT(stats({"-V"}).out, testing::MatchesRegex("vma_stats [0-9.]+\n"));
}

TEST_F(VmaStats, TheOnlyProcessIsPicked) {
    const Process process = seeming();
    const Exit exit = stats({"-c", "1"});
    EXPECT_EQ(exit.code, 0) << exit.err;
    EXPECT_THAT(exit.out, HasSubstr("14    Rx:    140479898     274374"));
    EXPECT_EQ(exit.err, "");
}

TEST_F(VmaStats, Several) {
    const Process one = seeming(), two = seeming();
    expect_refused({"-c", "1"}, "2 processes run with libvma; choose one with -p");
    const Exit exit = stats({"-c", "1"});
    for (const Process* process : {&one, &two})
        EXPECT_THAT(exit.err, HasSubstr(std::to_string(process->pid()) + "  sample"));
    EXPECT_EQ(stats({"-c", "1", "-p", std::to_string(two.pid())}).code, 0);
    // These show all of them.
    const std::string second = std::to_string(two.pid());
    EXPECT_THAT(stats({"-v", "5"}).out, HasSubstr(second + "/sample"));
    EXPECT_THAT(stats({"--explain"}).out, HasSubstr("Process " + second + " (sample)"));
    EXPECT_THAT(stats({"--prometheus"}).out, HasSubstr("vma_processes 2\n"));
    const std::string json = stats({"--json", "-c", "1"}).out;
    EXPECT_EQ(std::count(json.begin(), json.end(), '\n'), 2);
}

TEST_F(VmaStats, ByName) {
    const Process process = seeming();
    EXPECT_EQ(stats({"-n", "sleep", "-c", "1"}).code, 0);
    EXPECT_EQ(stats({"-n", "sample", "-c", "1"}).code, 0);  // as the file calls it
    expect_refused({"-n", "sockperf", "-c", "1"}, "no running process of the program sockperf");
}

TEST_F(VmaStats, DeadProcess) {
    Process process = seeming();
    process.kill(SIGKILL);
    process.wait();
    expect_refused({"-F", "-p", std::to_string(process.pid())}, "has ended, and left");
    EXPECT_TRUE(fs::exists(file(process)));
    expect_refused({}, "has ended, and left");
    EXPECT_FALSE(fs::exists(file(process)));
    expect_refused({}, "no running process has statistics");
}

TEST_F(VmaStats, AnotherUsersFile) {
    const Process process = seeming();
    const Exit denied = stats({"-p", std::to_string(process.pid())},
                              {"setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"});
    EXPECT_EQ(denied.code, 1);
    EXPECT_THAT(denied.err, HasSubstr("no permission to read"));
    EXPECT_THAT(denied.err, HasSubstr("a file of user 0"));
    ASSERT_EQ(chown(file(process).c_str(), 65534, 65534), 0);
    expect_refused({}, "belongs to user 65534, and process");
    EXPECT_TRUE(fs::exists(file(process)));
}

// With read permission an ordinary user watches root's process, and leaves nothing changed.
TEST_F(VmaStats, ReadPermissionIsEnough) {
    const Process process = seeming();
    chmod(file(process).c_str(), 0444);
    const Exit exit = stats({"-c", "1"}, {"setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"});
    EXPECT_EQ(exit.code, 0) << exit.err;
    EXPECT_THAT(exit.out, HasSubstr("14    Rx:"));
}

TEST_F(VmaStats, FilesThatAreNotWhatTheySeem) {
    const Process process = seeming();
    const std::string name = file(process);
    stats_image::Image image = image_of(process);
    image.header.version = 7;
    stats_image::write(directory, image);
    expect_refused({}, "has version 7 of the layout");
    fs::resize_file(stats_image::write(directory, image_of(process)), 4000);
    expect_refused({}, "is truncated: it has 4000 bytes");
    fs::remove(name);
    stats_image::write_bytes(name, std::vector<std::byte>(20000));
    expect_refused({}, "is no statistics file of libvma");
    fs::remove(name);
    fs::create_symlink("/etc/passwd", name);
    expect_refused({}, "is a symbolic link");
    fs::remove(name);
    ASSERT_EQ(mkfifo(name.c_str(), 0644), 0);
    expect_refused({}, "is no regular file");
    fs::remove(name);
    stats_image::write(directory, stats_image::sample(process.pid(), 1));
    expect_refused({"-F"}, "is of an earlier process");
}

// A hostile writer: texts without an end and full of control characters, numbers that no counter has.
TEST_F(VmaStats, HostileContentStaysText) {
    const Process process = seeming();
    stats_image::Image image = image_of(process);
    for (auto& s : image.sockets) memset(&s, 0x9b, sizeof s), s.sequence = 3;
    for (auto& s : image.rings) memset(&s, 0x1b, sizeof s);
    memset(image.header.program, 0x07, sizeof image.header.program);
    stats_image::write(directory, image);
    for (const char* view : {"1", "2", "3", "4", "5"}) {
        const Exit exit = stats({"-c", "1", "-v", view});
        EXPECT_EQ(exit.code, 0) << exit.err;
        for (const char c : exit.out) ASSERT_TRUE(c == '\n' || (c >= ' ' && c <= '~')) << view;
    }
    for (const char* output : {"--explain", "--json", "--prometheus", "--parameters"})
        EXPECT_EQ(stats({"-c", "1", output}).code, 0) << output;
}

TEST_F(VmaStats, TruncatedWhileItWatches) {
    const Process process = seeming();
    Process watcher = start({"-i", "0.05"});
    ASSERT_TRUE(watcher.wait_for_out("-----\n14 "));
    fs::resize_file(file(process), 2000);
    const Exit exit = watcher.wait();
    EXPECT_EQ(exit.code, 1) << exit.err;
    EXPECT_THAT(exit.err, HasSubstr("is truncated"));
}

TEST_F(VmaStats, TheProcessEndsWhileItWatches) {
    Process process = seeming();
    Process watcher = start({"-i", "60"});
    ASSERT_TRUE(watcher.wait_for_out("-----\n"));
    process.kill(SIGKILL);
    process.wait();
    const Exit exit = watcher.wait(milliseconds(10000));  // long before the interval is over
    EXPECT_EQ(exit.code, 0);
    EXPECT_THAT(exit.err, HasSubstr("process " + std::to_string(process.pid()) + " (sample) has ended"));
}

TEST_F(VmaStats, WaitsForOneToStartAndForTheNext) {
    Process watcher = start({"--wait", "-i", "0.05"});
    ASSERT_TRUE(watcher.wait_for_err("waiting for a process..."));
    for (int i = 0; i < 2; i++) {
        const std::size_t before = watcher.out().size();
        Process process = seeming();
        for (int j = 0; j < 500 && watcher.out().size() == before; j++) usleep(20'000);
        ASSERT_GT(watcher.out().size(), before);
        process.kill(SIGKILL);
        process.wait();
        ASSERT_TRUE(watcher.wait_for_err("process " + std::to_string(process.pid()) + " (sample) has ended"));
    }
    watcher.kill(SIGINT);
    EXPECT_EQ(watcher.wait().code, 0);
}

TEST_F(VmaStats, JsonFollowsAllThatComeAndGo) {
    Process first = seeming();
    Process watcher = start({"--json", "-i", "0.05"});
    ASSERT_TRUE(watcher.wait_for_out("\"pid\":" + std::to_string(first.pid())));
    Process second = seeming();
    ASSERT_TRUE(watcher.wait_for_out("\"pid\":" + std::to_string(second.pid())));
    for (Process* process : {&first, &second}) process->kill(SIGKILL), process->wait();
    const Exit exit = watcher.wait();
    EXPECT_EQ(exit.code, 0);
    EXPECT_THAT(exit.err, HasSubstr("process " + std::to_string(second.pid()) + " (sample) has ended"));
}

// Deltas are of one second, whatever the interval is.
TEST_F(VmaStats, DeltasRespectTheInterval) {
    const Process process = seeming();
    stats_image::Image image = image_of(process);
    Process watcher = start({"-d", "2", "-i", "2", "-c", "1", "-s", "16"});
    usleep(800'000);
    image.sockets[3].rx_offload.packets += 1000;
    stats_image::update(directory, image);
    const Exit exit = watcher.wait();
    EXPECT_EQ(exit.code, 0);
    std::smatch match;
    ASSERT_TRUE(std::regex_search(exit.out, match, std::regex("16 +Rx: +([0-9]+) "))) << exit.out;
    // A number for each second that passed: two, or more on a busy machine.
    const int each = std::stoi(match[1]);
    EXPECT_LE(each, 505) << exit.out;
    EXPECT_GE(each, 200) << exit.out;
}

TEST_F(VmaStats, CyclesAndSignals) {
    const Process process = seeming();
    const std::string out = stats({"-c", "3", "-i", "0.02", "-s", "14"}).out;
    std::size_t reports = 0;
    for (std::size_t at = 0; (at = out.find("14    Rx:", at)) != out.npos; at++) reports++;
    EXPECT_EQ(reports, 3u);
    for (const int signal : {SIGINT, SIGTERM}) {
        Process watcher = start({"-i", "60"});
        ASSERT_TRUE(watcher.wait_for_out("-----\n"));
        watcher.kill(signal);
        EXPECT_EQ(watcher.wait(milliseconds(5000)).code, 0);
    }
}

TEST_F(VmaStats, ServesPrometheus) {
    const Process process = seeming();
    Process server = start({"--listen", "0"});
    ASSERT_TRUE(server.wait_for_err("/metrics\n"));
    std::smatch match;
    const std::string said = server.err();
    ASSERT_TRUE(std::regex_search(said, match, std::regex("serving (http://127.0.0.1:[0-9]+/metrics)")))
        << said;
    const std::string url = match[1];
    const std::string text = tool({"curl", "-s", "-f", "--max-time", "10", url});
    EXPECT_THAT(text, HasSubstr("vma_processes 1\n"));
    EXPECT_THAT(text, HasSubstr("vma_socket_receive_packets_total{"));
    const Process second = seeming();  // seen by the next scrape
    EXPECT_THAT(tool({"curl", "-s", "-f", "--max-time", "10", url}), HasSubstr("vma_processes 2\n"));
    server.kill(SIGTERM);
    EXPECT_EQ(server.wait().code, 0);
}

TEST_F(VmaStats, CommandsNeedAProcessThatTakesThem) {
    const Process process = seeming();
    expect_refused({"-z"}, "it takes no commands");
    expect_refused({"-l", "debug"}, "it takes no commands");
}

TEST_F(VmaStats, FullDiskIsReported) {
    const Process process = seeming();
    const Exit exit =
        Process::run({"sh", "-c", vma_stats() + " -k " + directory + " -c 1 >/dev/full"}, {}).wait();
    EXPECT_EQ(exit.code, 1);
    EXPECT_THAT(exit.err, HasSubstr("cannot write: No space left"));
}

TEST_F(VmaStats, LiveViewNeedsATerminal) {
    const Process process = seeming();
    expect_refused({"--top"}, "--top needs a terminal");
}

// A terminal that is no screen of ours: tmux, whose server ends with this object.
class Terminal {
  public:
    Terminal(const std::string& socket, const std::string& command, int width, int height) : socket_(socket) {
        tmux({"-u", "-f", "/dev/null", "new-session", "-d", "-x", std::to_string(width), "-y",
              std::to_string(height), command});
    }
    ~Terminal() {
        bool ok = false;
        tool({"tmux", "-S", socket_, "kill-server"}, &ok);
    }
    std::string screen() const { return tmux({"capture-pane", "-p"}); }
    void key(const std::string& name) const { tmux({"send-keys", name}); }
    void resize(int width, int height) const {
        tmux({"resize-window", "-x", std::to_string(width), "-y", std::to_string(height)});
    }
    bool wait_for(const std::string& text, bool there = true) const {
        for (int i = 0; i < 100 * patience(); i++) {
            if ((screen().find(text) != std::string::npos) == there) return true;
            usleep(50'000);
        }
        return false;
    }

  private:
    std::string tmux(std::vector<std::string> words) const {
        words.insert(words.begin(), {"env", "LC_ALL=C.UTF-8", "tmux", "-S", socket_});
        return tool(words);
    }
    std::string socket_;
};

TEST_F(VmaStats, LiveView) {
    Process process = seeming();
    stats_image::Image image = image_of(process);
    const std::string log = scratch.path("status");
    const Terminal terminal(
        scratch.path("tmux"),
        vma_stats() + " -k " + directory + " --top -i 0.2; echo \"status $?\"; sleep 1000", 160, 20);
    ASSERT_TRUE(terminal.wait_for("HISTORY")) << terminal.screen();
    // A socket that carries much rises to the top, and its line gets a picture.
    bool risen = false;
    for (int i = 0; i < 100 * patience() && !risen; i++) {
        image.sockets[4].rx_offload.packets += 1000;
        stats_image::update(directory, image);
        usleep(50'000);
        const std::string screen = terminal.screen();
        const std::size_t first = screen.find("   17 UDP"), other = screen.find("   14 UDP");
        risen = first < other && screen.find("\u2588") != std::string::npos;
    }
    EXPECT_TRUE(risen) << terminal.screen();
    EXPECT_THAT(terminal.screen(), HasSubstr("sample (" + std::to_string(process.pid()) + "), 4 sockets"));
    terminal.key("s");
    EXPECT_TRUE(terminal.wait_for("sorted by received bytes")) << terminal.screen();
    terminal.key("4");
    EXPECT_TRUE(terminal.wait_for("libvma.conf:12: use os udp_sender")) << terminal.screen();
    terminal.key("2");
    EXPECT_TRUE(terminal.wait_for("INTERFACE")) << terminal.screen();
    terminal.key("3");
    EXPECT_TRUE(terminal.wait_for("epoll[9]")) << terminal.screen();
    terminal.key("h");
    EXPECT_TRUE(terminal.wait_for("longer, shorter interval")) << terminal.screen();
    terminal.key("h");
    terminal.key("1");
    terminal.key("p");
    EXPECT_TRUE(terminal.wait_for("PAUSED"));
    terminal.key("p");
    // Smaller than the lines are long and many.
    terminal.resize(60, 8);
    EXPECT_TRUE(terminal.wait_for("HISTORY", false) && terminal.wait_for("1 sockets  2 rings"))
        << terminal.screen();
    terminal.resize(20, 3);
    terminal.resize(160, 20);
    EXPECT_TRUE(terminal.wait_for("HISTORY")) << terminal.screen();
    terminal.key("q");
    EXPECT_TRUE(terminal.wait_for("status 0")) << terminal.screen();
}

TEST_F(VmaStats, LiveViewEndsWithTheProcess) {
    Process process = seeming();
    const Terminal terminal(
        scratch.path("tmux"),
        vma_stats() + " -k " + directory + " --top -i 0.2; echo \"status $?\"; sleep 1000", 100, 20);
    ASSERT_TRUE(terminal.wait_for("HISTORY")) << terminal.screen();
    process.kill(SIGKILL);
    process.wait();
    EXPECT_TRUE(terminal.wait_for("(sample) has ended")) << terminal.screen();
    EXPECT_TRUE(terminal.wait_for("status 0")) << terminal.screen();
}

}  // namespace
