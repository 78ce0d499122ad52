// SPDX-License-Identifier: BSD-2-Clause
// The control connection: JSON messages over TCP, each behind its length, after an exchange of versions.
//
// The first bytes of both directions stay as they are for ever: kMagic, then a message with at least
// {"protocol", "version"}. So programs of other protocols can still say that they do not match.
//
// No thread waits on this socket during a measurement: under libvma the waiting thread would poll the device
// and disturb the result. Both sides look at the socket without waiting, a few times a second.
#pragma once

#include <netinet/in.h>

#include <atomic>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "tools/common/fd.h"
#include "tools/vma_perf/sockets/connect.h"
#include "tools/vma_perf/status.h"

namespace vma_perf {

inline constexpr char kMagic[] = "VMAPERF\n";  // without the final zero
inline constexpr int kProtocol = 1;            // of everything after the hello
inline constexpr std::uint16_t kDefaultPort = 18600;
inline constexpr std::size_t kMaxControl = 1 << 22;  // bytes of a message

class Control {
  public:
    Control(tools::Fd fd, std::string peer_name);

    // Exchanges versions. Throws Failure with kVersion when the other side is something else or speaks
    // another protocol.
    void hello(Clock::time_point deadline, const std::atomic<bool>* stop);
    // Sends a message. Throws Failure with kPeerEnded.
    void send(const nlohmann::json& message);
    // The next message; waits for it. Throws Failure: kPeerEnded when the connection ends or the time is
    // over, and, if it is
    // {"error", "status"}, what it says.
    nlohmann::json receive(Clock::time_point deadline, const std::atomic<bool>* stop);
    // The next message if it is there already. Throws as receive().
    std::optional<nlohmann::json> look();
    // The field of the next message, which must have it. Throws as receive(), and Failure with kVersion.
    nlohmann::json expect(const char* field, Clock::time_point deadline, const std::atomic<bool>* stop);

    const std::string& peer() const noexcept { return peer_; }
    int fd() const noexcept { return fd_.get(); }

  private:
    bool read_some();
    std::optional<nlohmann::json> next_message();
    void send_bytes(const char* data, std::size_t length);
    nlohmann::json check_error(nlohmann::json message) const;

    tools::Fd fd_;
    std::string peer_;
    std::string buffer_;
    bool closed_ = false;
};

// {"error", "status"}: what the other side is told when something fails here.
nlohmann::json error_message(const Failure& failure);

}  // namespace vma_perf
