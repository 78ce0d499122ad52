// SPDX-License-Identifier: BSD-2-Clause
// The preload layer by itself: which symbols it shows, how it behaves where a run without the library has no
// counterpart.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>
#include <set>
#include <sstream>

#include "tests/support/hosts/process.h"

namespace {

using namespace testing_support;

std::string file(const std::string& path) {
    std::ifstream in(std::string(VMA_SOURCE_DIR) + "/" + path);
    return {std::istreambuf_iterator<char>(in), {}};
}

std::set<std::string> words(const std::string& text) {
    std::istringstream in(text);
    return {std::istream_iterator<std::string>(in), {}};
}

// What preload/exports.map lists as global.
std::set<std::string> listed() {
    std::string text = std::regex_replace(file("libvma/preload/exports.map"), std::regex("#[^\n]*"), "");
    std::size_t begin = text.find("global:"), end = text.find("local:");
    if (begin == text.npos || end == text.npos) return {};
    begin += sizeof "global:" - 1;
    return words(std::regex_replace(text.substr(begin, end - begin), std::regex(";"), " "));
}

std::set<std::string> exported() {
    std::istringstream in(tool({"nm", "-D", "--defined-only", library()}));
    std::set<std::string> names;
    for (std::string line; std::getline(in, line);) {
        std::string name = line.substr(line.find_last_of(' ') + 1);
        names.insert(name.substr(0, name.find('@')));
    }
    return names;
}

TEST(PreloadSymbols, ExportsExactlyTheDocumentedList) {
    std::set<std::string> documented = listed(), real = exported();
    ASSERT_FALSE(documented.empty());
    for (const auto& name : real)
        EXPECT_TRUE(documented.contains(name)) << name << " is exported but not listed";
#if defined(__x86_64__)
    for (const auto& name : documented)
        EXPECT_TRUE(real.contains(name)) << name << " is listed but not exported";
#endif
}

TEST(PreloadSymbols, ContainsWhatProgramsOfThisKindExpect) {
    std::set<std::string> real = exported();
    for (const auto& name : words("socket socketpair pipe close shutdown dup dup2 open creat __res_iclose "
                                  "bind listen accept accept4 connect "
                                  "getsockname getpeername setsockopt getsockopt fcntl fcntl64 ioctl read "
                                  "__read_chk readv recv __recv_chk "
                                  "recvfrom __recvfrom_chk recvmsg recvmmsg write writev send sendto sendmsg "
                                  "sendmmsg sendfile sendfile64 select "
                                  "pselect poll __poll_chk ppoll __ppoll_chk epoll_create epoll_create1 "
                                  "epoll_ctl epoll_wait epoll_pwait fork "
                                  "daemon sigaction signal vma_exit splice dup3 pipe2 __sendmmsg open64 "
                                  "creat64 epoll_pwait2 siginterrupt "
                                  "bsd_signal sysv_signal __sysv_signal close_range closefrom fclose preadv2 "
                                  "pwritev2 _Fork clone __read __write "
                                  "__close __connect __poll __select __send __fcntl __dup2 __pipe __open "
                                  "__open64 __fork __clone __sigaction"))
        EXPECT_TRUE(real.contains(name)) << name;
}

// A library that dlopen(3) loads gets 1,664 bytes of static thread storage at most (glibc's surplus), and
// shares them with all others that came so. With more the program cannot load it: "cannot allocate memory in
// static TLS block".
TEST(PreloadSymbols, ThreadStorageLeavesRoomForDlopen) {
    constexpr unsigned long kSurplus = 1664, kOfOthers = 256;
    std::istringstream in(tool({"readelf", "-lW", library()}));
    unsigned long size = 0;
    for (std::string line; std::getline(in, line);) {
        std::istringstream fields(line);
        std::string type, offset, address, physical, in_file, in_memory;
        if (fields >> type >> offset >> address >> physical >> in_file >> in_memory && type == "TLS")
            size = std::stoul(in_memory, nullptr, 16);
    }
    EXPECT_GT(size, 0u);
    EXPECT_LE(size, kSurplus - kOfOthers);
}

// Every wrapped name must exist in libc too, or it would be an addition to the program's name space.
TEST(PreloadSymbols, EachNameIsLibcsOrOurOwn) {
    void* libc = dlopen("libc.so.6", RTLD_NOW);
    ASSERT_NE(libc, nullptr);
    for (const auto& name : exported()) {
        if (name.starts_with("vma_")) continue;
        if (name.starts_with("io_uring_")) continue;    // liburing's
        if (name.starts_with("pidfd_spawn")) continue;  // from glibc 2.39 on
        EXPECT_NE(dlsym(libc, name.c_str()), nullptr) << name;
    }
    dlclose(libc);
}

TEST(PreloadLayer, WorksWhenOpenedWithDlopen) {
    RunOptions options;
    if (sanitized()) {
        std::string value = preload_value();
        options.env = {"LD_PRELOAD=" + value.substr(0, value.find(' '))};
    }
    Exit e = Process::run({app("preload_names"), library()}, options).wait();
    EXPECT_TRUE(e.ok()) << e.out << e.err;
    EXPECT_EQ(e.out, "missing: 0\nbind: 0\nsendto: 8\npoll: 1\nrecv: 8\nclose: 0\n");
}

TEST(PreloadLayer, StaysWhenClosedWithDlclose) {
    RunOptions options;
    if (sanitized()) {
        std::string value = preload_value();
        options.env = {"LD_PRELOAD=" + value.substr(0, value.find(' '))};
    }
    Exit e = Process::run({app("preload_unload"), library()}, options).wait();
    EXPECT_TRUE(e.ok()) << e.code << e.out << e.err;
    EXPECT_EQ(e.out, "dlclose: 0\nfork: 7\nclose: 0\n");
}

#if defined(__x86_64__)
TEST(PreloadLayer, VforkThroughSyscallKeepsItsParent) {
    RunOptions options;
    options.preload = true;
    Exit e = Process::run({app("preload_processes"), "syscall-vfork"}, options).wait();
    EXPECT_TRUE(e.ok()) << e.out << e.err;
    EXPECT_NE(e.out.find("syscall vfork and exec: exit 7\n"), std::string::npos) << e.out;
    EXPECT_NE(e.out.find("'after syscall vfork'"), std::string::npos) << e.out;
}
#endif

// A buffer shorter than the length given to a _FORTIFY_SOURCE form must end the program.
TEST(PreloadLayer, FortifiedCallsStillAbort) {
    char dir[] = "/tmp/vma-fortify-XXXXXX";
    ASSERT_NE(mkdtemp(dir), nullptr);
    std::string source = std::string(dir) + "/x.c", program = std::string(dir) + "/x";
    std::ofstream(source) << R"(#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>
int main(int argc, char** argv) {
    char small[4];
    struct pollfd one[1];
    size_t length = (size_t)atoi(argv[2]);
    int fd = socket(AF_INET, SOCK_DGRAM, 0);
    switch (atoi(argv[1])) {
        case 0: return read(fd, small, length) == 99;
        case 1: return recv(fd, small, length, MSG_DONTWAIT) == 99;
        case 2: return recvfrom(fd, small, length, MSG_DONTWAIT, 0, 0) == 99;
        case 3: return poll(one, length, 0) == 99;
        case 4: return ppoll(one, length, 0, 0) == 99;
    }
    return argc;
}
)";
    tool({"gcc", "-O2", "-w", "-D_GNU_SOURCE", "-U_FORTIFY_SOURCE", "-D_FORTIFY_SOURCE=2", "-o", program,
          source});
    for (const char* which : {"0", "1", "2", "3", "4"}) {
        RunOptions options;
        options.preload = true;
        Exit e = Process::run({program, which, "100"}, options).wait();
        EXPECT_EQ(e.signal, SIGABRT) << which << e.out << e.err;
        EXPECT_NE(e.err.find("buffer overflow detected"), std::string::npos) << which << e.err;
    }
    std::filesystem::remove_all(dir);
}

TEST(PreloadLayer, SilentInProgramsWithoutSockets) {
    RunOptions options;
    options.preload = true;
    Exit e = Process::run({"true"}, options).wait();
    EXPECT_TRUE(e.ok());
    EXPECT_EQ(e.out, "");
    EXPECT_EQ(e.err, "");
}

}  // namespace
