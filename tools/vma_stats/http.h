// SPDX-License-Identifier: BSD-2-Clause
// The port that Prometheus scrapes: GET /metrics, and nothing else.
#pragma once

#include <expected>
#include <functional>
#include <string>

#include "tools/common/fd.h"

namespace vma_stats {

class HttpServer {
  public:
    // "PORT", "ADDRESS:PORT" or "[ADDRESS]:PORT"; without an address 127.0.0.1. Port 0 lets the kernel
    // choose. The error is a sentence.
    static std::expected<HttpServer, std::string> listen(const std::string& where);
    // Is it of that form?
    static bool valid(const std::string& where);

    std::string address() const { return address_; }  // as it listens, "127.0.0.1:9100"

    // Serves until `stop` returns true; asks it several times a second, and when a signal comes. Slow and
    // silent clients delay no others: the server closes their connections after a few seconds.
    void run(const std::function<std::string()>& metrics, const std::function<bool()>& stop) const;

  private:
    tools::Fd socket_;
    std::string address_;
};

// The whole answer to a request with a complete head.
std::string http_answer(const std::string& request, const std::function<std::string()>& metrics);

}  // namespace vma_stats
