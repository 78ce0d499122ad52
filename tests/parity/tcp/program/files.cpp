// SPDX-License-Identifier: BSD-2-Clause
// Data that goes between files, pipes and connections without passing the program, and the ioctls that count
// what is queued.
#include <aio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>

#include "tests/parity/pair/tcp_harness.h"

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

TCP_KERNEL_PAIR_CASE(file, stdio, 31) {
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

TCP_PAIR_CASE(file, formatted) {
    int fd = connection();
    at_left([&] {
        SHOW("dprintf", dprintf(fd, "%s %d\n", "line", 1));
        std::string text(5000, 'x');
        SHOW("long dprintf", dprintf(fd, "%s", text.c_str()));
        SHOW("nothing", dprintf(fd, "%s", ""));
    });
    at_right([&] {
        show_read("recv", fd, 5007, MSG_WAITALL);
        SHOW("dprintf", dprintf(fd, "back"));
        shutdown(fd, SHUT_WR);
        count_sigpipe();
        SHOW("after shutdown", dprintf(fd, "%d", 1));
        say("signals %d", sigpipes());
    });
    at_left([&] { show_rest("recv", fd); });
}

TCP_KERNEL_PAIR_CASE(file, asynchronous_io, 40) {
    int fd = connection();
    char text[3][20] = {"by aio_write ", "by lio_listio "};
    auto control = [&](int i, int opcode, size_t length) {
        aiocb cb{};
        cb.aio_fildes = fd;
        cb.aio_lio_opcode = opcode;
        cb.aio_buf = text[i];
        cb.aio_nbytes = length;
        return cb;
    };
    auto finish = [](const char* what, aiocb& cb) {
        const aiocb* list[] = {&cb};
        while (aio_error(&cb) == EINPROGRESS) aio_suspend(list, 1, nullptr);
        say("%s: %s, %ld", what, strerrorname_np(aio_error(&cb)), static_cast<long>(aio_return(&cb)));
    };
    at_left([&] {
        count_sigpipe();
        aiocb one = control(0, LIO_WRITE, 13), two = control(1, LIO_WRITE, 14);
        SHOW("aio_write", aio_write(&one));
        finish("aio_write", one);
        aiocb* list[] = {&two, nullptr};
        SHOW("lio_listio", lio_listio(LIO_WAIT, list, 2, nullptr));
        finish("lio_listio", two);
        say("signals %d", sigpipes());
    });
    at_right([&] {
        show_read("recv", fd, 27, MSG_WAITALL);
        put(fd, "answer");
    });
    at_left([&] {
        aiocb three = control(2, LIO_READ, 6);
        SHOW("aio_read", aio_read(&three));
        finish("aio_read", three);
        say("%.6s", text[2]);
    });
}

// What programs do with a connection that they make their standard streams.
TCP_KERNEL_PAIR_CASE(file, standard_streams, 60) {
    int fd = connection();
    at_left([&] {
        count_sigpipe();
        const int in = fcntl(0, F_DUPFD, 80), out = fcntl(1, F_DUPFD, 80), err = fcntl(2, F_DUPFD, 80);
        fflush(stdout);
        dup2(fd, 1);
        printf("by printf\n");
        fflush(stdout);
        dup2(out, 1);
        dup3(fd, 2, 0);
        fprintf(stderr, "by fprintf\n");
        errno = EAGAIN;
        perror("by perror");
        dup2(err, 2);
        say("signals %d", sigpipes());
        for (int copy : {out, err}) close(copy);
        (void)in;
    });
    at_right([&] {
        const std::string expected =
            std::string("by printf\nby fprintf\nby perror: ") + strerror(EAGAIN) + "\n";
        show_read("recv", fd, expected.size(), MSG_WAITALL);
        put(fd, "line for stdin\n");
    });
    at_left([&] {
        const int in = fcntl(0, F_DUPFD, 80);
        dup2(fd, 0);
        char line[100] = "";
        say("fgets %d \"%.14s\"", fgets(line, sizeof line, stdin) != nullptr, line);
        dup2(in, 0);
        put(fd, "still a socket");
    });
    at_right([&] { show_read("recv", fd, 100); });
}

// Programs that have closed their standard streams get connections under those numbers.
TCP_KERNEL_PAIR_CASE(file, connection_becomes_standard_input, 40) {
    const int in = fcntl(0, F_DUPFD, 80);
    close(0);
    int fd = connection();
    at_left([&] { put(fd, "a line\n"); });
    at_right([&] {
        char line[100] = "";
        FILE* f = fd == 0 ? stdin : fdopen(dup(fd), "r");
        say("fgets %d \"%.6s\"", fgets(line, sizeof line, f) != nullptr, line);
    });
    close(fd);
    dup2(in, 0);
}

}  // namespace parity::tcp
