// SPDX-License-Identifier: BSD-2-Clause
#include "tests/support/mlx5_sim/event_pipe.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#include "tests/support/mlx5_sim/engine.h"
#include "tests/support/mlx5_sim/own_calls.h"

namespace mlx5_sim {

std::expected<EventPipe::Opened, int> EventPipe::open(Engine& engine, std::size_t record_bytes) {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) return std::unexpected(errno);
    auto pipe = std::make_shared<EventPipe>(engine, record_bytes);
    struct stat status {};
    int error = ::fstat(ends[0], &status) == 0 ? 0 : errno;
    pipe->dev_ = status.st_dev;
    pipe->inode_ = status.st_ino;
    if (error == 0) {
        engine.run([&] {
            pipe->fd_ = engine.adopt(ends[0]);
            error = pipe->fd_ < 0 ? errno : 0;
        });
    }
    ::close(ends[1]);
    if (error != 0) {
        ::close(ends[0]);
        return std::unexpected(error);
    }
    return Opened{std::move(pipe), ends[0]};
}

EventPipe::~EventPipe() {
    if (fd_ < 0) return;
    // Perhaps with the model's lock, so without waiting. Not by close(2) of libc, which is interposed.
    const auto close = [fd = fd_] { own_call(SYS_close, fd); };
    if (engine_.here()) {
        close();
    } else {
        engine_.later(close);
    }
}

void EventPipe::post(std::uint64_t object, std::uint64_t rest) {
    const std::lock_guard lock(mutex_);
    ++posted_[object];
    waiting_.push_back({object, rest});
    if (engine_.here()) {
        flush();
    } else {
        engine_.later([self = shared_from_this()] {
            const std::lock_guard inner(self->mutex_);
            self->flush();
        });
    }
}

void EventPipe::flush() {
    while (!waiting_.empty()) {
        // Writes of this size are atomic: all or nothing.
        if (own_call(SYS_write, fd_, waiting_.front().data(), record_bytes_) < 0) {
            if (errno == EINTR) continue;
            break;
        }
        waiting_.pop_front();
    }
    if (waiting_.empty() || errno != EAGAIN) return;
    // A full pipe: the program is behind by thousands of events. Again in the next turn.
    engine_.later([self = shared_from_this()] {
        const std::lock_guard lock(self->mutex_);
        self->flush();
    });
}

std::uint32_t EventPipe::forget(std::uint64_t object) {
    std::uint32_t read = 0;
    engine_.run([&] {
        const std::lock_guard lock(mutex_);
        std::deque<Record> unread;
        Record record{};
        while (own_call(SYS_read, fd_, record.data(), record_bytes_) == static_cast<long>(record_bytes_))
            unread.push_back(record);
        unread.insert(unread.end(), waiting_.begin(), waiting_.end());
        const auto dropped = std::erase_if(unread, [&](const Record& event) { return event[0] == object; });
        waiting_ = std::move(unread);
        flush();
        const auto posted = posted_.find(object);
        if (posted == posted_.end()) return;
        read = posted->second - static_cast<std::uint32_t>(dropped);
        posted_.erase(posted);
    });
    return read;
}

bool EventPipe::is(int fd) const {
    if (fd == fd_ && !engine_.private_table()) return false;  // our own end
    struct stat status {};
    return ::fstat(fd, &status) == 0 && status.st_dev == dev_ && status.st_ino == inode_;
}

}  // namespace mlx5_sim
