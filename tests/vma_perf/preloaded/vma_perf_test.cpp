// SPDX-License-Identifier: BSD-2-Clause
// vma_perf as its users run it: two hosts, every transport, on the kernel and with the library; its outputs;
// and what it says when something is not as it should be. Counts are asserted, times never.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <limits.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "tests/support/hosts/plain_test.h"
#include "tests/support/hosts/programs.h"

namespace {

using namespace testing_support;
using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using Words = std::vector<std::string>;

const bool kSanitized = sanitized();

class VmaPerf : public testing::Test {
  protected:
    void SetUp() override { hosts = std::make_unique<TwoHosts>(); }

    void start_server(bool preload = false, Words more = {}) {
        Words argv = program;
        argv.push_back("server");
        argv.insert(argv.end(), more.begin(), more.end());
        server = hosts->run(Host::b, argv, {.preload = preload, .env = {"VMA_TRACELEVEL=warn"}});
        ASSERT_TRUE(server.wait_for_out("listens")) << server.err();
    }
    // "pingpong ..." or "throughput ..." against host b.
    Process start(const std::string& words, bool preload = false, Words more = {}) {
        Words argv = program;
        std::istringstream in(words);
        for (std::string word; in >> word;) {
            argv.push_back(word);
            if (argv.size() == program.size() + 1) argv.push_back(TwoHosts::address(Host::b));
        }
        argv.insert(argv.end(), more.begin(), more.end());
        return hosts->run(Host::a, argv, {.preload = preload, .env = {"VMA_TRACELEVEL=warn"}});
    }
    Exit client(const std::string& words, bool preload = false, Words more = {}) {
        return start(words, preload, std::move(more)).wait(milliseconds(30000) * patience());
    }
    // Its result; the run must be in order.
    json result(const std::string& words, bool preload = false) {
        const Exit exit = client(words + " --json", preload);
        EXPECT_EQ(exit.code, 0) << words << "\n" << exit.err << server.err() << server.out();
        return json::parse(exit.out, nullptr, false).is_discarded() ? json::object() : json::parse(exit.out);
    }
    static void expect_all(const json& r, unsigned count, const std::string& what) {
        EXPECT_EQ(r.value("sent", 0u), count) << what << r.dump(1);
        EXPECT_EQ(r.value("received", 0u), count) << what;
        EXPECT_EQ(r.value("lost", 1u) + r.value("duplicates", 1u) + r.value("reordered", 1u) +
                      r.value("corrupt", 1u),
                  0u)
            << what;
    }
    static void expect_whole_groups(const json& r, std::size_t groups, unsigned each, unsigned sockets) {
        ASSERT_EQ(r.value("groups", json::array()).size(), groups) << r.dump(1);
        for (const json& group : r["groups"]) {
            EXPECT_EQ(group["sent"], each) << group;
            EXPECT_EQ(group["received"], each * sockets) << group;
            ASSERT_EQ(group["sockets"].size(), sockets);
            for (const json& socket : group["sockets"]) {
                EXPECT_EQ(socket["received"], each) << group;
                EXPECT_EQ(socket["lost"], 0) << group;
                EXPECT_EQ(socket["duplicates"], 0) << group;
                EXPECT_EQ(socket["reordered"], 0) << group;
            }
        }
    }
    void expect_failure(const std::string& words, int code, const std::string& text) {
        const Exit exit = client(words);
        EXPECT_EQ(exit.code, code) << words << "\n" << exit.err;
        EXPECT_THAT(exit.err, HasSubstr("vma_perf: ")) << words;
        EXPECT_THAT(exit.err, HasSubstr(text)) << words;
    }

    Words program{vma_perf()};
    std::unique_ptr<TwoHosts> hosts;
    Scratch scratch;
    Process server;
};

// ---- transports and ways to wait ----

TEST_F(VmaPerf, KernelSocketsInEveryWayToWait) {
    start_server();
    for (const char* transport : {"udp", "tcp"})
        for (const char* wait : {"blocking", "nonblocking", "select", "poll", "epoll"}) {
            const std::string how =
                std::string(" -t ") + transport + " --wait " + wait + " --warmup 0.02 --verify";
            expect_all(result("pingpong -n 200 -s 16-1400" + how), 200, how);
            expect_all(result("throughput -n 200 -r 5000" + how), 200, how);
        }
}

TEST_F(VmaPerf, LibraryOnBothSides) {
    start_server(true);
    for (const char* transport : {"udp", "tcp"})
        for (const char* wait : {"blocking", "epoll"}) {
            const std::string how =
                std::string(" -t ") + transport + " --wait " + wait + " --warmup 0.02 --verify";
            const json r = result("pingpong -n 200" + how, true);
            expect_all(r, 200, how);
            EXPECT_EQ(r.value("client", ""), "libvma");
            EXPECT_EQ(r.value("server", ""), "libvma");
            expect_all(result("throughput -n 200 -r 5000" + how, true), 200, how);
        }
}

TEST_F(VmaPerf, LibraryOnOneSide) {
    start_server(true);
    for (const char* transport : {" -t udp", " -t tcp"}) {
        const json r = result(std::string("pingpong -n 100 --verify --warmup 0.02") + transport);
        expect_all(r, 100, transport);
        EXPECT_EQ(r.value("client", ""), "kernel");
        EXPECT_EQ(r.value("server", ""), "libvma");
    }
}

TEST_F(VmaPerf, ThreadsConnectionsWindowsAndBursts) {
    start_server(false, {"--cpus", "0"});
    for (const char* transport : {" -t udp", " -t tcp"})
        for (const char* shape :
             {" --threads 2", " -c 5", " --threads 2 -c 5 --server-wait select", " -w 8", " -w 8 -b 4 -c 2",
              " -r 4000 -b 2", " -r 2000 -w 4 --threads 2", " --cpus 0", " --wait nonblocking -w 3 -c 2"}) {
            const std::string how = std::string(transport) + shape + " --warmup 0.02 --verify";
            expect_all(result("pingpong -n 301" + how), 301, how);
        }
    for (const char* shape : {" --threads 2 -c 5 -b 3", " --nagle off", " --wait poll"})
        expect_all(result("throughput -t tcp --warmup 0.02 --verify -n 3001" + std::string(shape)), 3001,
                   shape);
}

// Messages longer than what the sockets hold: neither side may wait for the other for ever.
TEST_F(VmaPerf, LongMessagesInLargeWindows) {
    start_server();
    for (const char* wait : {"blocking", "nonblocking", "epoll"})
        expect_all(
            result(
                std::string("pingpong -t tcp -s 1000000 -w 16 -n 48 --verify --warmup 0 --send-buffer 20000 "
                            "--receive-buffer 20000 --wait ") +
                wait),
            48, wait);
    expect_all(result("pingpong -t udp -s 65507 -n 20 --verify --warmup 0"), 20, "longest datagrams");
}

TEST_F(VmaPerf, SocketOptions) {
    start_server(false, {"--bind", TwoHosts::address(Host::b)});
    expect_all(result("pingpong -n 50 --connected --warmup 0"), 50, "connected");
    expect_all(result("pingpong -t tcp -n 50 --nagle on --warmup 0"), 50, "nagle");
    for (const bool preload : {false, true}) {
        expect_all(result("pingpong -n 60 -c 3 --group 239.1.1.1,239.1.1.2 --group-ttl 2 --verify --warmup 0",
                          preload),
                   60, "groups");
        expect_all(result("throughput -n 60 -r 3000 --group 239.1.1.1 --warmup 0 --group-interface " +
                              TwoHosts::address(Host::a),
                          preload),
                   60, "group");
    }
}

// Each group's sockets have every message once and in order, by the kernel or past it.
TEST_F(VmaPerf, GroupsOfSeveralSockets) {
    for (const bool preload : {false, true}) {
        start_server(preload);
        for (const unsigned sockets : {1u, 5u}) {
            const std::string how = "--group 239.1.1.1,239.1.1.2,239.129.1.1 --warmup 0.02 --group-sockets " +
                                    std::to_string(sockets);
            const json r = result("throughput -n 600 -r 6000 --verify " + how, preload);
            EXPECT_EQ(r.value("received", 0u), 600 * sockets) << r.dump(1);
            expect_whole_groups(r, 3, 200, sockets);
        }
        const json r =
            result("pingpong -n 300 --threads 2 --group 239.1.1.1,239.1.1.2 --warmup 0.02", preload);
        expect_all(r, 300, "ping-pong");
        expect_whole_groups(r, 2, 150, 1);
        server = Process();
    }
}

TEST_F(VmaPerf, RawIsTheDeviceWithoutSockets) {
    start_server();
    for (const char* mode : {"skb", "drv"}) {
        const std::string how = std::string(" -t raw --verify --warmup 0.02 --xdp-mode ") + mode;
        expect_all(result("pingpong -n 300" + how), 300, how);
        expect_all(result("pingpong -n 300 -s 16-1400 -w 8 -b 4 -c 3 --device veth1" + how), 300, how);
        expect_all(result("throughput -n 300 -r 3000" + how), 300, how);
    }
    expect_failure("pingpong -t raw -s 1473", 2, "carries at most 1472 bytes");
    expect_failure("pingpong -t raw --device nosuch0", 7, "nosuch0");
    expect_failure("pingpong -t raw --device lo", 7, "lo is no Ethernet device");
    const Exit exit = client("pingpong -t raw -n 5", true);
    EXPECT_EQ(exit.code, 7);
    EXPECT_THAT(exit.err, HasSubstr("run it without libvma"));
}

// ---- outputs ----

TEST_F(VmaPerf, Outputs) {
    start_server();
    Exit exit = client("pingpong -n 500 --warmup 0 --label mine --log " + scratch.path("log") + " --csv " +
                       scratch.path("csv") + " --json " + scratch.path("json"));
    EXPECT_EQ(exit.code, 0) << exit.err;
    EXPECT_THAT(exit.out, AllOf(HasSubstr("sent 500, received 500"), HasSubstr("p99.999"),
                                HasSubstr("half of the round trip")));
    EXPECT_EQ(exit.err, "");  // no progress where there is no terminal
    const json r = json::parse(scratch.read("json"));
    EXPECT_EQ(r["label"], "mine");
    EXPECT_EQ(r["samples"], 500);
    for (const char* key : {"min", "average", "p50", "p99", "p99.9", "p99.99", "p99.999", "max"})
        EXPECT_GT(r["latency_us"][key].get<double>(), 0) << key;
    const std::string log = scratch.read("log"), csv = scratch.read("csv");
    EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 501);
    EXPECT_EQ(std::count(csv.begin(), csv.end(), '\n'), 2);
    EXPECT_THAT(csv, HasSubstr("mine,pingpong,udp,64,kernel,kernel,"));

    exit = client("pingpong -n 500 --warmup 0 --rtt --csv -s 64:256");
    EXPECT_EQ(std::count(exit.out.begin(), exit.out.end(), '\n'), 4) << exit.out;
    exit = client("throughput -t tcp -s 64,100 -n 1000 --json -q");
    EXPECT_EQ(json::parse(exit.out)["results"].size(), 2u);
    exit = client("throughput -t tcp -s 64,100 -n 1000");
    EXPECT_THAT(exit.out, HasSubstr("received/s"));
}

TEST_F(VmaPerf, RunningTable) {
    start_server();
    for (const char* test : {"pingpong", "throughput"}) {
        const Exit exit = client(std::string(test) + " -T 0.5 -r 500 --stages -i 0.1 --warmup 0");
        EXPECT_EQ(exit.code, 0) << exit.err;
        EXPECT_THAT(exit.out,
                    AllOf(HasSubstr("latency (us)"), HasSubstr("message rate (1/s)"), HasSubstr("Final:")));
        std::size_t rows = 0;
        for (std::size_t at = 0; (at = exit.out.find(" s] ", at)) != exit.out.npos; ++at) ++rows;
        EXPECT_GE(rows, 3u) << exit.out;
        EXPECT_LE(rows, 6u) << exit.out;
    }
    EXPECT_THAT(client("pingpong -T 0.2 --stages -i 0.1 --percentile 99.9 --json").err,
                HasSubstr("99.9%"));  // the JSON has stdout
}

TEST_F(VmaPerf, PicturesAndComparisons) {
    start_server();
    const std::string one = scratch.path("one.json"), two = scratch.path("two.json"),
                      picture = scratch.path("p.svg");
    EXPECT_EQ(client("pingpong -T 0.5 --json " + one).code, 0);
    EXPECT_EQ(
        client("pingpong -T 0.5 --label second --json " + two + " --plot " + picture + " --plot-with " + one)
            .code,
        0);
    const std::string svg = scratch.read("p.svg");
    EXPECT_THAT(svg, AllOf(HasSubstr("<svg"), HasSubstr(">second<"), HasSubstr(">kernel udp, 64 bytes<"),
                           HasSubstr("</svg>")));
    const Exit exit =
        Process::run({vma_perf(), "compare", one, two, "--plot", scratch.path("q.svg")}, {}).wait();
    EXPECT_EQ(exit.code, 0) << exit.err;
    EXPECT_THAT(exit.out, AllOf(HasSubstr("B: second"), HasSubstr("p99, us"), HasSubstr(" to ")));
    EXPECT_THAT(scratch.read("q.svg"), HasSubstr(">second<"));
    expect_failure("pingpong -n 5 --json /no/such/dir/x", 1, "/no/such/dir/x: No such file");
    expect_failure("pingpong -n 5 --plot " + scratch.path("r.svg") + " --plot-with /dev/null", 1,
                   "/dev/null: not a JSON file");
}

// ---- what goes wrong ----

// A server that says this to everyone who connects, and nothing more.
Process impostor(const TwoHosts& hosts, const std::string& words) {
    return hosts.run(Host::b, [words] {
        const int listener = socket(AF_INET, SOCK_STREAM, 0);
        sockaddr_in address{};
        address.sin_family = AF_INET;
        address.sin_port = htons(18600);
        const int on = 1;
        setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
        if (bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0 ||
            listen(listener, 5) != 0)
            return 1;
        printf("ready\n");
        fflush(stdout);
        while (true) {
            const int fd = accept(listener, nullptr, nullptr);
            if (fd >= 0 && write(fd, words.data(), words.size()) < 0) return 1;
        }
    });
}

TEST_F(VmaPerf, NoServerOrAnother) {
    expect_failure("pingpong", 3, "198.18.1.2 port 18600: Connection refused");
    expect_failure("throughput -t tcp -p 9", 3, "port 9: Connection refused");
    Process silent = impostor(*hosts, "");
    ASSERT_TRUE(silent.wait_for_out("ready"));
    expect_failure("pingpong --timeout 0.3", 5, "198.18.1.2:18600 is no vma_perf: it says nothing");
    silent = Process();
    Process ssh = impostor(*hosts, "SSH-2.0-x\r\n");
    ASSERT_TRUE(ssh.wait_for_out("ready"));
    expect_failure("pingpong", 5, "198.18.1.2:18600 is no vma_perf");
    ssh = Process();
    const std::string hello = R"({"protocol":2,"version":"9.0"})";
    Process other =
        impostor(*hosts, "VMAPERF\n" + std::string("\0\0\0", 3) + static_cast<char>(hello.size()) + hello);
    ASSERT_TRUE(other.wait_for_out("ready"));
    expect_failure("pingpong", 5, "is vma_perf 9.0 with protocol 2, this is");
}

TEST_F(VmaPerf, ServerDiesInTheMiddle) {
    for (const char* words : {"pingpong -T 60", "throughput -T 60", "pingpong -t tcp -T 60",
                              "throughput -t tcp -T 60", "pingpong -T 60 --wait epoll --threads 2"})
        for (const int signal : {SIGKILL, SIGTERM}) {
            start_server();
            Process running = start(words);
            ASSERT_TRUE(server.wait_for_out("connections"));
            std::this_thread::sleep_for(std::chrono::milliseconds(300));
            server.kill(signal);
            const Exit exit = running.wait(milliseconds(15000) * patience());
            EXPECT_EQ(exit.code, 4) << words << " " << signal << "\n" << exit.err;
            EXPECT_THAT(exit.err, HasSubstr("vma_perf: ")) << words;
            EXPECT_EQ(server.wait().code, signal == SIGKILL ? 128 + SIGKILL : 0);
        }
}

TEST_F(VmaPerf, ServerThatStopsAnswering) {
    start_server();
    Process running = start("pingpong -T 60 -t tcp --timeout 0.5");
    ASSERT_TRUE(server.wait_for_out("connections"));
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    server.kill(SIGSTOP);
    const Exit exit = running.wait(milliseconds(15000) * patience());
    server.kill(SIGCONT);
    EXPECT_EQ(exit.code, 4) << exit.err;
    EXPECT_THAT(exit.err, HasSubstr("no answer for 0.5 seconds"));
}

TEST_F(VmaPerf, ClientsThatVanishAreForgotten) {
    start_server();
    for (const char* words : {"pingpong -T 60", "throughput -t tcp -T 60"}) {
        Process running = start(words);
        ASSERT_TRUE(server.wait_for_out("connections"));
        std::this_thread::sleep_for(std::chrono::milliseconds(200));
        running.kill(SIGKILL);
        running.wait();
    }
    expect_all(result("pingpong -n 100"), 100, "after others vanished");
    EXPECT_TRUE(server.wait_for_out("ended"));
    // Somebody who is no client at all.
    EXPECT_TRUE(hosts->run(Host::a, {"sh", "-c", "echo hello | nc -N -w 2 198.18.1.2 18600"}).wait().code <=
                1);
    expect_all(result("pingpong -n 100"), 100, "after a stranger");
    server.kill(SIGINT);
    EXPECT_EQ(server.wait().code, 0);
}

TEST_F(VmaPerf, InterruptedClientsTellWhatTheyHave) {
    start_server();
    for (const char* words : {"pingpong -T 60", "throughput -t tcp -T 60"}) {
        Process running = start(words);
        ASSERT_TRUE(server.wait_for_out("connections"));
        std::this_thread::sleep_for(std::chrono::milliseconds(500));
        running.kill(SIGINT);
        const Exit exit = running.wait();
        EXPECT_EQ(exit.code, 130) << exit.err;
        EXPECT_THAT(exit.out, AllOf(HasSubstr("(interrupted)"), HasSubstr("messages/s")));
    }
}

TEST_F(VmaPerf, ReceivesByTheExtraApi) {
    start_server(true, {"--clients", "9"});
    expect_all(result("pingpong -n 200 -s 1400 --extra-api", true), 200, "a datagram at a time");
    expect_all(result("pingpong -n 200 -c 4 --wait epoll --extra-api=zcopy", true), 200, "four sockets");
    expect_all(result("pingpong -n 200 -s 64-1400 --verify --extra-api=callback", true), 200, "a callback");
    expect_all(result("pingpong -n 200 -c 4 --wait epoll --extra-api=callback", true), 200, "four callbacks");
    expect_all(result("pingpong -n 200 -b 32 -s 64-1400 --verify --extra-api=sendmany", true), 200, "bursts");
    expect_all(result("pingpong -n 200 -b 4 -c 3 --wait poll --connected --extra-api=sendmany", true), 200,
               "bursts of three sockets");
    expect_all(result("pingpong -n 200 -b 300 --extra-api=sendmany", true), 200, "more than one call takes");
    expect_all(result("pingpong -n 2000 -s 64-1400 --verify --extra-api=send_zcopy", true), 2000, "buffers");
    expect_all(result("pingpong -n 200 -c 3 -s 9000 --connected --extra-api=send_zcopy", true), 200,
               "too long for buffers");
    EXPECT_EQ(server.wait().code, 0);
}

TEST_F(VmaPerf, WhatIsNotThere) {
    start_server(false, {"--clients", "3"});
    expect_failure("pingpong --cpus 1023", 7,
                   "vma_perf: --cpus: cannot run on processor 1023: ");  // no client of the server so far
    expect_failure("throughput -t tcp --server-cpus 0,1023", 7,
                   "the server 198.18.1.2:18600: --server-cpus: cannot run on processor 1023: ");
    expect_failure("pingpong --extra-api", 7, "--extra-api");
    expect_failure("pingpong --group 239.1.1.1 --group-interface 198.18.9.9", 1, "--group-interface");
    expect_all(result("pingpong -n 10"), 10, "the last of three clients");
    EXPECT_EQ(server.wait().code, 0);
    const Exit exit = hosts->run(Host::b, {vma_perf(), "server", "--bind", "198.18.9.9"}).wait();
    EXPECT_EQ(exit.code, 1);
    EXPECT_THAT(exit.err, HasSubstr("bind to 198.18.9.9 port 18600: Cannot assign"));
}

// Threads of the process that may run on processor 0 alone.
int pinned_threads(const Process& process) {
    int pinned = 0;
    std::error_code error;
    for (const auto& task :
         std::filesystem::directory_iterator("/proc/" + std::to_string(process.pid()) + "/task", error)) {
        std::ifstream file(task.path() / "status");
        for (std::string line; std::getline(file, line);) pinned += line == "Cpus_allowed_list:\t0";
    }
    return pinned;
}

TEST_F(VmaPerf, ProcessorsOfBothSides) {
    start_server(false, {"-p", "18601", "--clients", "1"});
    Process running = start("pingpong -T 60 -p 18601 --threads 2 --cpus 0 --server-cpus 0");
    for (int tries = 0; tries < 500 && !(pinned_threads(running) >= 2 && pinned_threads(server) >= 2);
         ++tries)
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
    EXPECT_GE(pinned_threads(running), 2);
    EXPECT_GE(pinned_threads(server), 2);
    running.kill(SIGINT);
    EXPECT_EQ(running.wait().code, 130);
    EXPECT_EQ(server.wait().code, 0);
}

TEST_F(VmaPerf, QuietServer) {
    server = hosts->run(Host::b, {vma_perf(), "server", "-q", "--clients", "1"}, {});
    Exit exit;
    for (int tries = 0; tries < 100; ++tries) {
        exit = client("pingpong -n 5 --warmup 0");
        if (exit.code != 3) break;  // it does not say when it listens
    }
    EXPECT_EQ(exit.code, 0) << exit.err;
    exit = server.wait();
    EXPECT_EQ(exit.code, 0);
    EXPECT_EQ(exit.out + exit.err, "");
}

// ---- several at once, and for long ----

TEST_F(VmaPerf, TwoClientsAtOnce) {
    for (const bool preload : {false, true}) {
        start_server(preload);
        Process one = start("pingpong -T 1 -r 500 --verify --json"),
                two = start("throughput -t tcp -T 1 -r 5000 --verify --json");
        const Exit first = one.wait(), second = two.wait();
        EXPECT_EQ(first.code, 0) << first.err;
        EXPECT_EQ(second.code, 0) << second.err;
        expect_all(json::parse(first.out), json::parse(first.out).value("sent", 0u), "first");
        expect_all(json::parse(second.out), json::parse(second.out).value("sent", 0u), "second");
        server = Process();
        ASSERT_TRUE(hosts->wait_offloaded(Host::b, false));
    }
}

// Memory of its own that a process holds, without pages of files. The least of several looks: a line of the
// running table takes some for a moment.
long own_kb(const Process& process) {
    long least = LONG_MAX;
    for (int look = 0; look < 10; ++look) {
        std::ifstream file("/proc/" + std::to_string(process.pid()) + "/status");
        for (std::string line; std::getline(file, line);)
            if (line.starts_with("RssAnon:")) least = std::min(least, std::stol(line.substr(8)));
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return least;
}

// Seconds that the last line of a running table stands for.
double table_at(const Process& process) {
    const std::string text = process.err();
    const std::size_t end = text.rfind(" s] "), begin = text.rfind('[', end);
    return end == text.npos || begin == text.npos ? 0 : std::stod(text.substr(begin + 1));
}

// From when everything has been allocated, which the running tables tell, for five seconds.
TEST_F(VmaPerf, MemoryStaysTheSame) {
    // AddressSanitizer keeps what was freed, up to 256 MB, unless it is told otherwise.
    if (kSanitized)
        program = {"env",
                   "ASAN_OPTIONS=detect_leaks=0:quarantine_size_mb=1:thread_local_quarantine_size_kb=64",
                   vma_perf()};
    start_server();
    Process ping = start("pingpong -T 6.5 -r 50000 -w 16 -s 16-1400 --stages -i 0.2 --log /dev/null --json");
    Process way = start("throughput -T 6.5 -r 50000 --stages -i 0.2 --json");
    Process* const all[] = {&ping, &way, &server};
    const auto reach = [&](double seconds) {
        const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20) * patience();
        while (table_at(ping) < seconds || table_at(way) < seconds) {
            ASSERT_LT(std::chrono::steady_clock::now(), deadline) << ping.err() << way.err();
            std::this_thread::sleep_for(std::chrono::milliseconds(20));
        }
    };
    ASSERT_NO_FATAL_FAILURE(reach(1));
    long first[3], later[3];
    for (int i = 0; i < 3; ++i) first[i] = own_kb(*all[i]);
    ASSERT_NO_FATAL_FAILURE(reach(6));
    for (int i = 0; i < 3; ++i) later[i] = own_kb(*all[i]);
    for (int i = 0; i < 3; ++i) {
        EXPECT_GT(first[i], 100);
        // A copy of a histogram or two, 220 KB each, goes back to the system or does not. Three bytes kept of
        // each message are more.
        EXPECT_LE(later[i], first[i] + (kSanitized ? 8192 : 512)) << i;
    }
    EXPECT_EQ(ping.wait().code, 0);
    EXPECT_EQ(way.wait().code, 0);
}

// ---- race ----

class VmaPerfRace : public testing::Test {
  protected:
    Exit race(Words words) const {
        words.insert(words.begin(), {vma_perf(), "race", "--library", library()});
        return Process::run(words, {}).wait(milliseconds(60000));
    }
    Scratch scratch;
};

TEST_F(VmaPerfRace, BothStacksInEachRound) {
    if (kSanitized) GTEST_SKIP() << "the preloaded library would need the sanitizer's";
    Exit exit = race({"--rounds", "3", "--json", scratch.path("r"), "--plot", scratch.path("r.svg"), "--",
                      "pingpong", "-T", "0.2"});
    EXPECT_EQ(exit.code, 0) << exit.err;
    EXPECT_THAT(exit.out, AllOf(HasSubstr("medians of 3 rounds"), HasSubstr("times better"),
                                HasSubstr("p99.9, us"), HasSubstr(" to ")));
    const json r = json::parse(scratch.read("r"));
    ASSERT_EQ(r["rounds"].size(), 3u);
    for (const json& round : r["rounds"]) {
        EXPECT_EQ(round["kernel"][0]["client"], "kernel");
        EXPECT_EQ(round["libvma"][0]["client"], "libvma");
        EXPECT_EQ(round["libvma"][0]["server"], "libvma");
    }
    EXPECT_THAT(scratch.read("r.svg"),
                AllOf(HasSubstr(">kernel udp, 64 bytes<"), HasSubstr(">libvma udp, 64 bytes<")));
    exit = race({"--rounds", "1", "--sides", "client", "--json", scratch.path("s"), "--", "throughput", "-t",
                 "tcp", "-T", "0.2", "-s", "64,128"});
    EXPECT_EQ(exit.code, 0) << exit.err;
    const json s = json::parse(scratch.read("s"));
    EXPECT_EQ(s["rounds"][0]["libvma"].size(), 2u);
    EXPECT_EQ(s["rounds"][0]["libvma"][1]["client"], "libvma");
    EXPECT_EQ(s["rounds"][0]["libvma"][1]["server"], "kernel");
}

// race fails where the kernel carried the datagrams.
TEST_F(VmaPerfRace, GroupsPastTheKernel) {
    if (kSanitized) GTEST_SKIP() << "the preloaded library would need the sanitizer's";
    for (const Words& words :
         {Words{"throughput", "--group-sockets", "3", "-r", "5000"}, Words{"pingpong"}}) {
        Words all{"--rounds", "1", "-q", "--json", scratch.path("r"), "--"};
        all.insert(all.end(), words.begin(), words.end());
        all.insert(all.end(), {"-n", "1000", "--group", "239.1.1.1,239.1.1.2"});
        const Exit exit = race(all);
        EXPECT_EQ(exit.code, 0) << exit.err;
        const json round = json::parse(scratch.read("r"))["rounds"][0];
        EXPECT_EQ(round["libvma"][0]["server"], "libvma");
        for (const char* stack : {"kernel", "libvma"})
            for (const json& group : round[stack][0]["groups"]) {
                EXPECT_GT(group["sent"], 0) << group;
                EXPECT_EQ(group["lost"], 0) << group;
            }
    }
}

TEST_F(VmaPerfRace, OnGivenProcessorsAndTheServerAlone) {
    if (kSanitized) GTEST_SKIP() << "the preloaded library would need the sanitizer's";
    const Exit exit = race({"--rounds", "1", "--sides", "server", "-q", "--json", scratch.path("r"), "--",
                            "pingpong", "-T", "0.1", "--cpus", "0", "--server-cpus", "0"});
    EXPECT_EQ(exit.code, 0) << exit.err;
    const json round = json::parse(scratch.read("r"))["rounds"][0];
    EXPECT_EQ(round["libvma"][0]["client"], "kernel");
    EXPECT_EQ(round["libvma"][0]["server"], "libvma");
    EXPECT_EQ(round["kernel"][0]["params"]["server_cpus"], json::array({0}));
}

TEST_F(VmaPerfRace, Interrupted) {
    Process running =
        Process::run({vma_perf(), "race", "--library", library(), "--", "pingpong", "-T", "60"}, {});
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    running.kill(SIGINT);
    const Exit exit = running.wait();
    EXPECT_EQ(exit.code, 130) << exit.err;
    EXPECT_THAT(exit.err, HasSubstr("vma_perf: interrupted"));
}

TEST_F(VmaPerfRace, WhatItRefuses) {
    const auto refused = [&](Words words, int code, const std::string& text) {
        const Exit exit = race(words);
        EXPECT_EQ(exit.code, code) << exit.err;
        EXPECT_THAT(exit.err, HasSubstr(text));
    };
    refused({"--", "pingpong", "--frobnicate"}, 2, "--frobnicate");
    refused({"--", "pingpong", "--json"}, 2, "outputs are race's own");
    refused({"--", "server"}, 2, "race takes pingpong or throughput");
    refused({"--", "pingpong", "-t", "raw"}, 2, "--transport udp or tcp");
    refused({"--plot", "/dev/null", "--", "throughput"}, 2, "no latencies to draw");
    refused({"--json", "/no/such/dir/x", "--", "pingpong"}, 1, "/no/such/dir/x: No such file");
    refused({"--", "pingpong", "-n", "5", "--server-cpus", "1023"}, 7,
            "--server-cpus: cannot run on processor 1023");
    const Exit unprivileged = Process::run({"setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin",
                                            vma_perf(), "race", "--library", library(), "--", "pingpong"},
                                           {})
                                  .wait();
    EXPECT_EQ(unprivileged.code, 7) << unprivileged.err;
    EXPECT_THAT(unprivileged.err, HasSubstr("needs root"));
    if (kSanitized) return;
    const Exit exit =
        Process::run({vma_perf(), "race", "--library", "/no/such", "--", "pingpong"}, {}).wait();
    EXPECT_EQ(exit.code, 2);
    EXPECT_THAT(exit.err, HasSubstr("/no/such: no such file"));
    // A library that leaves everything to the kernel.
    scratch.write(
        "os.conf",
        "application-id * *\nuse os udp_sender *:*\nuse os udp_receiver *:*\nuse os udp_connect *:*\n");
    const Exit kernel = Process::run({vma_perf(), "race", "--library", library(), "--rounds", "1", "--",
                                      "pingpong", "-T", "0.2"},
                                     {.env = {"VMA_CONFIG_FILE=" + scratch.path("os.conf")}})
                            .wait(milliseconds(30000));
    EXPECT_EQ(kernel.code, 8) << kernel.err;
    EXPECT_THAT(kernel.err, HasSubstr("not offloaded"));
}

}  // namespace
