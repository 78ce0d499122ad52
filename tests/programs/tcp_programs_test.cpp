// SPDX-License-Identifier: BSD-2-Clause
// Real programs as TCP servers and clients, unmodified, with the library on the server, on the client, or on
// both. What is judged is the data: every test knows what must arrive, and that programs end as they do on
// the kernel.
#include <signal.h>
#include <stdlib.h>

#include <sstream>
#include <thread>

#include "tests/support/hosts/programs.h"

namespace {

using namespace testing_support;

const char* const kSupport = VMA_SOURCE_DIR "/tests/programs/scripts/";

std::vector<Sides> all_sides() {
    return {{.server = true}, {.client = true}, {.server = true, .client = true}};
}
std::string side_name(const ::testing::TestParamInfo<Sides>& info) { return name_of(info.param); }

bool has(const std::string& text, const std::string& part) { return text.find(part) != text.npos; }

// The number behind the first `label` in `text`, -1 without it.
long number_after(const std::string& text, const std::string& label) {
    auto at = text.find(label);
    return at == text.npos ? -1 : atol(text.c_str() + at + label.size());
}

// ---- redis ----

class Redis : public ProgramTest {
  protected:
    static constexpr int kKeys = 5000;
    const std::string port_ = "6379";

    void SetUp() override {
        ProgramTest::SetUp();
        if (!HasFatalFailure()) need({"redis-server", "redis-cli", "redis-benchmark"});
    }

    std::vector<std::string> server_line(const std::string& at, const std::string& dump) const {
        return {"redis-server", "--bind", at,
                "--port",       port_,    "--protected-mode",
                "no",           "--save", "",
                "--appendonly", "no",     "--daemonize",
                "no",           "--dir",  scratch->path(""),
                "--dbfilename", dump};
    }
    std::vector<std::string> cli(std::vector<std::string> words) const {
        words.insert(words.begin(), {"redis-cli", "-h", address, "-p", port_});
        return words;
    }
    // Without the library, whatever the test's sides are.
    std::string ask_from_kernel(std::vector<std::string> words) const {
        Exit end = hosts->run(Host::a, cli(std::move(words))).wait();
        EXPECT_TRUE(end.ok()) << end.out << end.err;
        return end.out;
    }

    static std::string value(int key) {
        return "value-" + std::to_string(key) + "-" + std::string(static_cast<std::size_t>(key % 200), 'x');
    }
    // Commands for redis-cli --pipe, in the protocol's own form.
    static std::string setting_all() {
        std::ostringstream text;
        for (int i = 0; i < kKeys; i++) {
            const std::string key = "known:" + std::to_string(i), content = value(i);
            text << "*3\r\n$3\r\nSET\r\n$" << key.size() << "\r\n"
                 << key << "\r\n$" << content.size() << "\r\n"
                 << content << "\r\n";
        }
        return text.str();
    }
    void make_scripts() const {
        scratch->write("set-all", setting_all());
        std::string get, expected;
        for (int i = 0; i < kKeys; i++) {
            get += "GET known:" + std::to_string(i) + "\n";
            expected += value(i) + "\n";
        }
        scratch->write("get-all", get);
        scratch->write("expected", expected);
    }
};

TEST_P(Redis, AnswersTheBenchmark) {
    auto redis = server(server_line(address, "unused.rdb"));
    ASSERT_TRUE(redis.wait_listening(6379)) << redis.process().out() << redis.process().err();
    for (const char* pipeline : {"1", "16"}) {
        SCOPED_TRACE(pipeline);
        std::string out = expect_client({"redis-benchmark", "-h", address, "-p", port_, "-n", "4000", "-c",
                                         "20", "-P", pipeline, "-d", "1000", "-r", "500", "-t",
                                         "set,get,incr,lpush,lrange_100,mset", "--csv"});
        for (const char* test : {"SET", "GET", "INCR", "LPUSH", "LRANGE_100", "MSET"})
            EXPECT_TRUE(has(out, std::string("\"") + test)) << out;
        EXPECT_FALSE(has(out, "rror")) << out;
    }
    EXPECT_EQ(ask_from_kernel({"GET", "counter:000000000000"}).empty(), false);
    hosts->run(Host::a, cli({"SHUTDOWN", "NOSAVE"})).wait();
    Exit end = redis.process().wait();
    EXPECT_TRUE(end.ok()) << end.code << end.out << end.err;
}

TEST_P(Redis, SavesInAChildUnderLoad) {
    make_scripts();
    auto redis = server(server_line(address, "dump.rdb"));
    ASSERT_TRUE(redis.wait_listening(6379)) << redis.process().out() << redis.process().err();

    Fd commands = scratch->open_to_read("set-all");
    std::string piped = expect_client(cli({"--pipe"}), milliseconds(30000), {.fds = {{commands.get(), 0}}});
    EXPECT_TRUE(has(piped, "errors: 0, replies: " + std::to_string(kKeys))) << piped;

    Process load = client({"redis-benchmark", "-h", address, "-p", port_, "-l", "-n", "5000", "-c", "10",
                           "-r", "1000", "-d", "200", "-t", "set,get", "-q"});
    for (int save = 0; save < 3; save++) {
        EXPECT_TRUE(has(ask_from_kernel({"BGSAVE"}), "Background saving started"));
        std::string state;
        for (int i = 0; i < 400 * patience(); i++) {
            state = ask_from_kernel({"INFO", "persistence"});
            if (has(state, "rdb_bgsave_in_progress:0")) break;
            std::this_thread::sleep_for(milliseconds(10));
        }
        EXPECT_TRUE(has(state, "rdb_bgsave_in_progress:0")) << state;
        EXPECT_TRUE(has(state, "rdb_last_bgsave_status:ok")) << state << redis.process().out();
    }
    EXPECT_TRUE(load.running()) << "the load did not survive the children\n" << load.out() << load.err();
    load.kill(SIGTERM);
    load.wait();

    Fd reading = scratch->open_to_read("get-all");
    const std::string read = expect_client(cli({}), milliseconds(30000), {.fds = {{reading.get(), 0}}});
    EXPECT_TRUE(read == scratch->read("expected")) << "the server's values changed";
    hosts->run(Host::a, cli({"SHUTDOWN", "NOSAVE"})).wait();
    Exit end = redis.process().wait();
    EXPECT_TRUE(end.ok()) << end.code << end.out << end.err;

    // What the child wrote, in a server on the kernel.
    Server again(hosts->run(Host::b, server_line(address, "dump.rdb")));
    ASSERT_TRUE(again.wait_listening(6379)) << again.process().out();
    Fd once_more = scratch->open_to_read("get-all");
    Exit saved = hosts->run(Host::a, cli({}), {.fds = {{once_more.get(), 0}}}).wait();
    EXPECT_TRUE(saved.out == scratch->read("expected")) << "the saved values are not the server's";
    EXPECT_EQ(again.end(SIGTERM).code, 0);
}

INSTANTIATE_TEST_SUITE_P(TcpPrograms, Redis, ::testing::ValuesIn(all_sides()), side_name);

// ---- memcached ----

class Memcached : public ProgramTest {};

TEST_P(Memcached, KeepsWhatItIsGiven) {
    need({"memcached", "python3"});
    auto memcached =
        server({"memcached", "-u", "root", "-l", address, "-p", "11211", "-U", "0", "-t", "2", "-m", "512"});
    ASSERT_TRUE(memcached.wait_listening(11211)) << memcached.process().err();
    EXPECT_EQ(expect_client({"python3", "-B", std::string(kSupport) + "memcached_client.py", address, "11211",
                             "8", "400"}),
              "verified 3200 keys\n");
    Exit end = memcached.end(SIGTERM);
    EXPECT_TRUE(end.ok()) << end.code << end.out << end.err;
}

INSTANTIATE_TEST_SUITE_P(TcpPrograms, Memcached, ::testing::ValuesIn(all_sides()), side_name);

// ---- nginx ----

constexpr const char* kCurlHangs = "curl hangs with a preloaded AddressSanitizer, also without the library";

class Nginx : public ProgramTest {
  protected:
    void SetUp() override {
        if (curl_hangs()) GTEST_SKIP() << kCurlHangs;
        ProgramTest::SetUp();
        if (HasFatalFailure()) return;
        need({"nginx", "wrk", "curl"});
        scratch->write("empty", "");
        scratch->write("one", "x");
        scratch->fill("page", 1000);
        scratch->fill("medium", 100'000);
        scratch->fill("large", 10'000'000);
    }

    // `workers` 0: one process that is master and worker.
    Server start(int workers) {
        std::ostringstream text;
        text << "daemon off; pid " << scratch->path("nginx.pid") << "; error_log stderr;\n";
        if (workers == 0)
            text << "master_process off;\n";
        else
            text << "worker_processes " << workers << ";\n";
        text << "events { worker_connections 512; }\nhttp { access_log off; log_not_found off; sendfile on; "
                "tcp_nopush on;\n";
        for (const char* kind : {"client_body", "proxy", "fastcgi", "uwsgi", "scgi"})
            text << kind << "_temp_path " << scratch->path(std::string("temp_") + kind) << ";\n";
        text << "server { listen " << address << ":8080; root " << scratch->path("") << "; } }\n";
        scratch->write("nginx.conf", text.str());
        return server({"nginx", "-e", "stderr", "-p", scratch->path(""), "-c", scratch->path("nginx.conf")});
    }

    void expect_files() {
        const std::string base = "http://" + address + ":8080/";
        // One connection for all of them.
        std::vector<std::string> line = {"curl", "-sSf"};
        const std::vector<std::string> names = {"empty", "one", "page", "medium", "large", "page"};
        for (std::size_t i = 0; i < names.size(); i++)
            line.insert(line.end(), {"-o", scratch->path("got-" + std::to_string(i)), base + names[i]});
        expect_client(line);
        for (std::size_t i = 0; i < names.size(); i++)
            EXPECT_TRUE(scratch->same("got-" + std::to_string(i), names[i])) << names[i];

        // A part of a file, what does not exist, and headers only.
        expect_client({"curl", "-sSf", "-r", "5000000-", "-o", scratch->path("got-part"), base + "large"});
        EXPECT_TRUE(scratch->read("got-part") == scratch->read("large").substr(5'000'000));
        EXPECT_EQ(expect_client({"curl", "-sS", "-o", "/dev/null", "-w", "%{http_code}", base + "nothing"}),
                  "404");
        EXPECT_TRUE(has(expect_client({"curl", "-sSI", base + "large"}), "Content-Length: 10000000"));
    }

    void expect_load(const std::string& file, bool close_each = false) {
        SCOPED_TRACE(file + (close_each ? ", a connection for each request" : ""));
        std::vector<std::string> line = {
            "wrk", "-t", "2", "-c", "20", "-d", "1", "-s", std::string(kSupport) + "wrk_verify.lua"};
        if (close_each) line.insert(line.end(), {"-H", "Connection: close"});
        line.insert(line.end(), {"http://" + address + ":8080/" + file, "--", scratch->path(file)});
        std::string out = expect_client(line);
        EXPECT_GT(number_after(out, "verified "), 0) << out;
        EXPECT_EQ(number_after(out, " bad "), 0) << out;
        EXPECT_FALSE(has(out, "Socket errors")) << out;
    }

    void expect_end(Server& nginx) {
        Exit end = nginx.end(SIGQUIT);
        EXPECT_TRUE(end.ok()) << end.code << end.err;
        for (const char* word : {"[alert]", "[crit]", "[emerg]", "[error] "})
            EXPECT_FALSE(has(end.err, word)) << end.err;
    }
};

TEST_P(Nginx, OneProcess) {
    auto nginx = start(0);
    ASSERT_TRUE(nginx.wait_listening(8080)) << nginx.process().err();
    expect_files();
    expect_load("page");
    expect_load("medium");
    expect_load("page", true);
    expect_end(nginx);
}

TEST_P(Nginx, MasterAndWorkers) {
    server_may_use_kernel_ = true;
    auto nginx = start(2);
    ASSERT_TRUE(nginx.wait_listening(8080)) << nginx.process().err();
    expect_files();
    expect_load("page");
    expect_load("page", true);
    expect_end(nginx);
}

INSTANTIATE_TEST_SUITE_P(TcpPrograms, Nginx, ::testing::ValuesIn(all_sides()), side_name);

// ---- iperf3 ----

class Iperf3 : public ProgramTest {
  protected:
    void expect_transfer(const std::vector<std::string>& options, int streams) {
        std::string title;
        for (const auto& word : options) title += word + " ";
        SCOPED_TRACE(title);
        auto iperf3 = server({"iperf3", "-s", "-1", "-B", address, "-p", "5201"});
        ASSERT_TRUE(iperf3.wait_listening(5201)) << iperf3.process().out() << iperf3.process().err();
        std::vector<std::string> line = {"iperf3", "-c", address, "-p", "5201", "-t", "1", "-J"};
        line.insert(line.end(), options.begin(), options.end());
        scratch->write("result", expect_client(line));
        bool ok = false;
        std::istringstream result(
            tool({"jq", "-r",
                  "(.error // \"none\"), (.start.connected | length), (.end.streams | length), "
                  ".end.sum_sent.bytes, .end.sum_received.bytes",
                  scratch->path("result")},
                 &ok));
        EXPECT_TRUE(ok) << scratch->read("result");
        std::string error;
        int connected = 0, reported = 0;
        long long sent = 0, received = 0;
        std::getline(result, error);
        result >> connected >> reported >> sent >> received;
        EXPECT_EQ(error, "none");
        EXPECT_EQ(connected, streams);
        EXPECT_EQ(reported, streams);
        // A second's worth: a hundredth of what the slowest of these paths carries on an idle machine.
        EXPECT_GE(received, 1 << 20);
        EXPECT_LE(received, sent);
        Exit end = iperf3.process().wait();
        EXPECT_TRUE(end.ok()) << end.code << end.out << end.err;
    }
};

TEST_P(Iperf3, MovesDataBothWays) {
    need({"iperf3", "jq"});
    expect_transfer({}, 1);
    expect_transfer({"-R"}, 1);
    expect_transfer({"-P", "4"}, 4);
    expect_transfer({"-P", "4", "-R"}, 4);
}

INSTANTIATE_TEST_SUITE_P(TcpPrograms, Iperf3, ::testing::ValuesIn(all_sides()), side_name);

// ---- netcat ----

class Netcat : public ProgramTest {
  protected:
    void SetUp() override {
        ProgramTest::SetUp();
        if (HasFatalFailure()) return;
        need({"nc"});
        scratch->fill("up", 50'000'000, 1);
        scratch->fill("down", 50'000'000, 2);
    }

    // Files the client and the server send; empty: nothing. The end of a file is the end of that direction
    // (-N), except the client's when both send: a listening nc stops sending when its peer does. The client
    // then closes when both files are through.
    void transfer(const std::string& up, const std::string& down) {
        auto files = [&](const std::string& in, const Fd& input, const Fd& output) {
            RunOptions options{.fds = {{output.get(), 1}}};
            if (!in.empty()) options.fds.emplace_back(input.get(), 0);
            return options;
        };
        auto words = [&](bool shut, std::vector<std::string> line) {
            line.insert(line.begin(), "nc");
            if (shut) line.insert(line.begin() + 1, "-N");
            return line;
        };
        Fd from_server = scratch->open_to_read(down), at_server = scratch->open_to_write("at-server");
        Fd from_client = scratch->open_to_read(up), at_client = scratch->open_to_write("at-client");
        auto listener =
            server(words(!down.empty(), {"-l", address, "5000"}), files(down, from_server, at_server));
        ASSERT_TRUE(listener.wait_listening(5000)) << listener.process().err();
        expect_client(words(!up.empty() && down.empty(), {address, "5000"}), milliseconds(30000),
                      files(up, from_client, at_client));
        Exit end = listener.process().wait();
        EXPECT_TRUE(end.ok()) << end.code << end.err;
        if (!up.empty()) {
            EXPECT_TRUE(scratch->same("at-server", up));
        }
        if (!down.empty()) {
            EXPECT_TRUE(scratch->same("at-client", down));
        }
    }
};

TEST_P(Netcat, ClientToServer) { transfer("up", ""); }
TEST_P(Netcat, ServerToClient) { transfer("", "down"); }
TEST_P(Netcat, BothWaysAtOnce) { transfer("up", "down"); }

INSTANTIATE_TEST_SUITE_P(TcpPrograms, Netcat, ::testing::ValuesIn(all_sides()), side_name);

// ---- python3 -m http.server ----

class PythonHttp : public ProgramTest {
  protected:
    void SetUp() override {
        if (curl_hangs()) GTEST_SKIP() << kCurlHangs;
        ProgramTest::SetUp();
    }
};

TEST_P(PythonHttp, ServesALargeFileToCurl) {
    need({"python3", "curl"});
    // The gigabyte once; what it shows that the smaller file does not are counters that wrap.
    const bool both = GetParam().server && GetParam().client;
    scratch->fill("file", both ? 1'000'000'000 : 100'000'000);
    auto python = server(
        {"python3", "-u", "-m", "http.server", "--bind", address, "--directory", scratch->path(""), "8000"});
    ASSERT_TRUE(python.wait_listening(8000)) << python.process().err();
    expect_client({"curl", "-sSf", "-o", scratch->path("got"), "http://" + address + ":8000/file"},
                  milliseconds(120000));
    EXPECT_TRUE(scratch->same("got", "file"));
    EXPECT_TRUE(has(python.process().err(), "\"GET /file HTTP/1.1\" 200")) << python.process().err();
    Exit end = python.end(SIGINT);
    EXPECT_TRUE(end.ok()) << end.code << end.err;
}

INSTANTIATE_TEST_SUITE_P(TcpPrograms, PythonHttp, ::testing::ValuesIn(all_sides()), side_name);

// ---- Boost.Asio ----

class Asio : public ProgramTest {
  protected:
    void expect_echo(const std::string& server_kind, const std::string& client_kind, int connections,
                     int messages) {
        auto echo = server({app("asio_echo"), "server", server_kind, address, "7000", "4"});
        ASSERT_TRUE(echo.wait_listening(7000)) << echo.process().err();
        EXPECT_EQ(expect_client({app("asio_echo"), "client", client_kind, address, "7000", "4",
                                 std::to_string(connections), std::to_string(messages)},
                                milliseconds(60000)),
                  "verified " + std::to_string(connections) + " connections, 0 failed\n");
        Exit end = echo.end(SIGTERM);
        EXPECT_TRUE(end.ok()) << end.code << end.out << end.err;
        EXPECT_TRUE(has(end.out, "served " + std::to_string(connections) + " connections")) << end.out;
    }
};

TEST_P(Asio, SyncServerSyncClient) { expect_echo("sync", "sync", 100, 30); }
TEST_P(Asio, AsyncServerAsyncClient) { expect_echo("async", "async", 400, 30); }
TEST_P(Asio, AsyncServerSyncClient) { expect_echo("async", "sync", 100, 30); }
TEST_P(Asio, SyncServerAsyncClient) { expect_echo("sync", "async", 200, 30); }

INSTANTIATE_TEST_SUITE_P(TcpPrograms, Asio, ::testing::ValuesIn(all_sides()), side_name);

}  // namespace
