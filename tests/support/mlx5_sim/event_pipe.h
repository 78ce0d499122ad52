// SPDX-License-Identifier: BSD-2-Clause
// A pipe on which the program reads events as the kernel delivers them: a completion channel, or a context's
// asynchronous events.
//
// The kernel keeps account of events: when a CQ or QP is destroyed it takes its unread events off the queue
// and tells how many were read, and libibverbs waits until so many are acknowledged. A pipe cannot take
// something back, so forget() reads what is there, drops what is the object's and writes the rest again.
#pragma once

#include <sys/types.h>

#include <array>
#include <cstdint>
#include <deque>
#include <expected>
#include <map>
#include <memory>
#include <mutex>

namespace mlx5_sim {

class Engine;

class EventPipe : public std::enable_shared_from_this<EventPipe> {
  public:
    using Record =
        std::array<std::uint64_t, 2>;  // the object (user handle); then what the kind of event has beside it

    struct Opened;
    // A pipe for records of 8 bytes (completion events: the object alone) or 16. An errno when it cannot be
    // made.
    static std::expected<Opened, int> open(Engine& engine, std::size_t record_bytes);
    EventPipe(Engine& engine, std::size_t record_bytes) : engine_(engine), record_bytes_(record_bytes) {}
    ~EventPipe();
    EventPipe(const EventPipe&) = delete;
    EventPipe& operator=(const EventPipe&) = delete;

    // An event of `object`. From any thread, also with the model's lock held.
    void post(std::uint64_t object, std::uint64_t rest = 0);
    // The object is no more: drops its unread events. How many were read.
    std::uint32_t forget(std::uint64_t object);
    // Is `fd` the program's end of this pipe?
    bool is(int fd) const;

  private:
    void flush();  // writes what waits; where the private descriptor is, with the lock

    Engine& engine_;
    const std::size_t record_bytes_;
    int fd_ = -1;  // private
    dev_t dev_ = 0;
    ino_t inode_ = 0;
    std::mutex mutex_;
    std::deque<Record> waiting_;  // not in the pipe yet
    std::map<std::uint64_t, std::uint32_t> posted_;
};

struct EventPipe::Opened {
    std::shared_ptr<EventPipe> pipe;
    int fd = -1;  // the program's end
};

}  // namespace mlx5_sim
