// SPDX-License-Identifier: BSD-2-Clause
// Data that goes between files, pipes and connections without passing the program, and the ioctls that count
// what is queued.
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>

#include "tcp_harness.h"

namespace parity::tcp {
namespace {

int file_of(size_t length) {
    int fd = memfd_create("file", 0);
    auto data = bytes(length, 21);
    if (write(fd, data.data(), data.size()) != static_cast<long>(length)) say("cannot write the file");
    lseek(fd, 0, SEEK_SET);
    return fd;
}

long value_of(int fd, unsigned long request) {
    int value = -1;
    return ioctl(fd, request, &value) == 0 ? value : -errno;
}

}  // namespace

TCP_PAIR_CASE(file, sendfile) {
    int fd = connection();
    at_left([&] {
        int file = file_of(10'000);
        SHOW("whole", sendfile(fd, file, nullptr, 10'000));
        say("position %ld", static_cast<long>(lseek(file, 0, SEEK_CUR)));
        SHOW("at the end", sendfile(fd, file, nullptr, 10'000));
        off_t offset = 100;
        SHOW("from an offset", sendfile(fd, file, &offset, 50));
        say("offset %ld position %ld", static_cast<long>(offset),
            static_cast<long>(lseek(file, 0, SEEK_CUR)));
        offset = 9990;
        SHOW("beyond the end", sendfile(fd, file, &offset, 100));
        say("offset %ld", static_cast<long>(offset));
        offset = -1;
        SHOW("negative offset", sendfile(fd, file, &offset, 100));
        offset = 20'000;
        SHOW("behind the end", sendfile(fd, file, &offset, 100));
        SHOW("nothing", sendfile(fd, file, nullptr, 0));
        SHOW("bad offset pointer", sendfile(fd, file, reinterpret_cast<off_t*>(8), 10));
        SHOW("bad file", sendfile(fd, 999, nullptr, 10));
        SHOW("write only file", sendfile(fd, open("/dev/null", O_WRONLY), nullptr, 10));
        SHOW("from a socket", sendfile(fd, stream(), nullptr, 10));
        off64_t offset64 = 5;
        SHOW("sendfile64", sendfile64(fd, file, &offset64, 10));
        shutdown(fd, SHUT_WR);
    });
    at_right([&] { show_rest("recv", fd); });
}

TCP_PAIR_CASE(file, sendfile_large) {
    int fd = connection();
    if (left()) {
        int file = file_of(3'000'000);
        SHOW("sendfile", sendfile(fd, file, nullptr, 3'000'000));
        shutdown(fd, SHUT_WR);
        show_read("end", fd, 1);
    } else {
        show_rest("recv", fd);
        close(fd);
    }
}

TCP_PAIR_CASE(file, sendfile_nonblocking) {
    int fd = connection();
    long total = 0;
    at_left([&] {
        int file = file_of(20'000'000);
        nonblocking(fd);
        long n = sendfile(fd, file, nullptr, 20'000'000);
        say("partly %d", n > 0 && n < 20'000'000);
        for (; n > 0; n = sendfile(fd, file, nullptr, 20'000'000)) total += n;
        say("then %s", strerrorname_np(errno));
        say("position agrees %d", lseek(file, 0, SEEK_CUR) == total);
    });
    long other = exchange(total);
    at_right([&] {
        std::vector<uint8_t> data(static_cast<size_t>(other));
        say("all %d", recv(fd, data.data(), data.size(), MSG_WAITALL) == other);
        auto expected = bytes(20'000'000, 21);
        say("same %d", memcmp(data.data(), expected.data(), data.size()) == 0);
    });
}

TCP_PAIR_CASE(file, sendfile_from_socket_to_file) {
    int fd = connection();
    at_left([&] { put(fd, "data"); });
    at_right([&] {
        await_bytes(fd, 4);
        SHOW("socket to file", sendfile(file_of(0), fd, nullptr, 4));
        show_read("still there", fd, 10);
    });
}

TCP_PAIR_CASE(file, splice_pipe_to_socket) {
    int fd = connection(), p[2];
    ok(pipe(p));
    at_left([&] {
        ok(write(p[1], "through a pipe", 14));
        SHOW("splice", splice(p[0], nullptr, fd, nullptr, 7, SPLICE_F_MORE));
        SHOW("splice", splice(p[0], nullptr, fd, nullptr, 100, 0));
        SHOW("empty", splice(p[0], nullptr, fd, nullptr, 100, SPLICE_F_NONBLOCK));
        loff_t offset = 0;
        SHOW("offset", splice(p[0], nullptr, fd, &offset, 100, 0));
        close(p[1]);
        SHOW("end of the pipe", splice(p[0], nullptr, fd, nullptr, 100, 0));
        shutdown(fd, SHUT_WR);
    });
    at_right([&] { show_rest("recv", fd); });
}

TCP_PAIR_CASE(file, splice_socket_to_pipe) {
    int fd = connection(), p[2];
    ok(pipe(p));
    at_left([&] { put(fd, "into a pipe"); });
    at_right([&] {
        await_bytes(fd, 11);
        char text[100] = {};
        SHOW("splice", splice(fd, nullptr, p[1], nullptr, 4, 0));
        SHOW("read", read(p[0], text, 100));
        SHOW("splice", splice(fd, nullptr, p[1], nullptr, 100, 0));
        SHOW("read", read(p[0], text + 4, 96));
        say("\"%s\"", text);
        nonblocking(fd);  // SPLICE_F_NONBLOCK is about the pipe
        SHOW("nothing", splice(fd, nullptr, p[1], nullptr, 100, 0));
        nonblocking(fd, false);
    });
    at_left([&] { shutdown(fd, SHUT_WR); });
    at_right([&] {
        await_events(fd, POLLRDHUP);
        SHOW("end", splice(fd, nullptr, p[1], nullptr, 100, 0));
        SHOW("socket to socket", splice(fd, nullptr, fd, nullptr, 100, 0));
    });
}

TCP_PAIR_CASE(file, splice_large) {
    int fd = connection();
    if (left()) {
        put_bytes(fd, 500'000, 31);
        shutdown(fd, SHUT_WR);
    } else {
        int p[2], out = file_of(0);
        ok(pipe(p));
        long total = 0;
        for (long n; (n = splice(fd, nullptr, p[1], nullptr, 65536, SPLICE_F_MOVE)) > 0; total += n)
            for (long done = 0; done < n;)
                done += splice(p[0], nullptr, out, nullptr, static_cast<size_t>(n - done), 0);
        std::vector<uint8_t> data(static_cast<size_t>(total));
        ok(pread(out, data.data(), data.size(), 0));
        say("%s", digest(data.data(), total).c_str());
    }
}

TCP_PAIR_CASE(file, vmsplice_and_tee) {
    int fd = connection(), p[2];
    ok(pipe(p));
    at_left([&] {
        iovec iov{const_cast<char*>("from memory"), 11};
        SHOW("vmsplice", vmsplice(p[1], &iov, 1, 0));
        SHOW("splice", splice(p[0], nullptr, fd, nullptr, 11, 0));
        shutdown(fd, SHUT_WR);
    });
    at_right([&] { show_rest("recv", fd); });
}

TCP_PAIR_CASE(file, copy_file_range) {
    int fd = connection();
    at_left([&] {
        int file = file_of(100);
        SHOW("copy_file_range", copy_file_range(file, nullptr, fd, nullptr, 100, 0));
        SHOW("lseek", lseek(fd, 0, SEEK_CUR));
        SHOW("pread", pread(fd, &file, 1, 0));
        SHOW("pwrite", pwrite(fd, &file, 1, 0));
        SHOW("ftruncate", ftruncate(fd, 0));
        SHOW("fsync", fsync(fd));
        SHOW("fchmod", fchmod(fd, 0600));
        struct stat s;
        SHOW("fstat", fstat(fd, &s));
        say("socket %d", S_ISSOCK(s.st_mode));
        say("mmap %d",
            mmap(nullptr, 4096, PROT_READ, MAP_SHARED, fd, 0) == MAP_FAILED ? errno == ENODEV : -1);
    });
}

TCP_PAIR_CASE(file, queue_lengths) {
    int fd = connection();
    say("FIONREAD %ld SIOCOUTQ %ld SIOCOUTQNSD %ld", value_of(fd, FIONREAD), value_of(fd, SIOCOUTQ),
        value_of(fd, SIOCOUTQNSD));
    sync();
    at_left([&] {
        put_bytes(fd, 2500, 1);
        await_acked(fd);
        say("SIOCOUTQ %ld SIOCOUTQNSD %ld", value_of(fd, SIOCOUTQ), value_of(fd, SIOCOUTQNSD));
    });
    at_right([&] {
        await_bytes(fd, 2500);
        say("FIONREAD %ld", value_of(fd, FIONREAD));
        show_read("recv", fd, 1000);
        say("FIONREAD %ld", value_of(fd, FIONREAD));
        show_read("peek", fd, 1000, MSG_PEEK);
        say("FIONREAD %ld", value_of(fd, FIONREAD));
    });
    at_left([&] { shutdown(fd, SHUT_WR); });
    at_right([&] {
        await_events(fd, POLLRDHUP);
        say("the end is no byte: %ld", value_of(fd, FIONREAD));
        show_read("recv", fd, 2000);
        say("FIONREAD %ld", value_of(fd, FIONREAD));
        SHOW("bad pointer", ioctl(fd, FIONREAD, 8));
        SHOW("bad pointer", ioctl(fd, SIOCOUTQ, 8));
        SHOW("unknown", ioctl(fd, 0xdead, 0));
    });
}

TCP_PAIR_CASE(file, unsent_is_counted) {
    int fd = connection();
    long total = 0;
    at_left([&] {
        total = static_cast<long>(fill(fd));
        long queued = value_of(fd, SIOCOUTQ), unsent = value_of(fd, SIOCOUTQNSD);
        say("queued %d unsent %d order %d", queued > 0 && queued <= total, unsent > 0, unsent <= queued);
    });
    long other = exchange(total);
    at_right([&] { drain(fd, static_cast<size_t>(other)); });
    at_left([&] {
        await_acked(fd);
        say("SIOCOUTQ %ld SIOCOUTQNSD %ld", value_of(fd, SIOCOUTQ), value_of(fd, SIOCOUTQNSD));
    });
}

TCP_PAIR_CASE(file, fionbio) {
    int fd = connection(), on = 1, off = 0;
    SHOW("FIONBIO", ioctl(fd, FIONBIO, &on));
    say("flags %d", (fcntl(fd, F_GETFL) & O_NONBLOCK) != 0);
    show_read("nothing", fd, 10);
    SHOW("FIONBIO", ioctl(fd, FIONBIO, &off));
    say("flags %d", (fcntl(fd, F_GETFL) & O_NONBLOCK) != 0);
    SHOW("bad pointer", ioctl(fd, FIONBIO, 8));
    SHOW("FIOCLEX", ioctl(fd, FIOCLEX));
    say("cloexec %d", fcntl(fd, F_GETFD));
    SHOW("FIONCLEX", ioctl(fd, FIONCLEX));
    say("cloexec %d", fcntl(fd, F_GETFD));
}

TCP_KERNEL_PAIR_CASE(file, stdio) {
    int fd = connection();
    if (left()) {
        FILE* f = fdopen(fd, "r+");
        fprintf(f, "line %d\nline %d\n", 1, 2);
        fflush(f);
        char line[100];
        while (fgets(line, sizeof line, f) != nullptr)
            say("answer %.*s", static_cast<int>(strcspn(line, "\n")), line);
        SHOW("fclose", fclose(f));
    } else {
        FILE* f = fdopen(fd, "r+");
        char line[100];
        for (int i = 0; i < 2; i++) {
            if (fgets(line, sizeof line, f) == nullptr) break;
            fprintf(f, "got %s", line);
            fflush(f);
        }
        SHOW("fclose", fclose(f));
    }
    sync();
}

}  // namespace parity::tcp
