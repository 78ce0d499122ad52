// SPDX-License-Identifier: BSD-2-Clause
// The connection or the listener that a TCP descriptor stands for, and the calls that use it.
//
// Data calls take no lock: each announces itself by a Pin. A connection or a listener that was replaced is
// retired, and released when no announced call can know it any more. The socket's state lock guards every
// change.
#pragma once

#include <atomic>
#include <vector>

#include "libvma/tcp/connection.h"
#include "libvma/tcp/handshake/listener.h"

namespace vma::sockets {

// While one lives, the thread is inside the connection's code: a signal handler that runs meanwhile must not
// wait for the connection, which will not become ready.
class ConnectionScope {
  public:
    explicit ConnectionScope(const tcp::Connection& c) noexcept;
    ~ConnectionScope();
    ConnectionScope(const ConnectionScope&) = delete;
    ConnectionScope& operator=(const ConnectionScope&) = delete;
    // Did the calling signal handler interrupt its thread inside the code of `c`?
    static bool interrupted(const tcp::Connection& c) noexcept;

  private:
    const tcp::Connection* const before_;
};

class TcpTransport {
  public:
    // A data call that looks at connection or listener. While one is under way, neither is released.
    struct Pin {
        explicit Pin(const TcpTransport& t) noexcept : transport(t) {
            transport.users_.fetch_add(1, std::memory_order_seq_cst);
            connection = transport.connection_.load(std::memory_order_seq_cst);
            listener = transport.listener_.load(std::memory_order_seq_cst);
        }
        ~Pin() {
            if (transport.users_.fetch_sub(1, std::memory_order_seq_cst) == 1 &&
                __builtin_expect(transport.close_pending_.load(std::memory_order_seq_cst), false))
                transport.finish_close();
        }
        Pin(const Pin&) = delete;
        Pin& operator=(const Pin&) = delete;
        // What the socket has now: nothing that it had since the constructor goes before the destructor.
        void look_again() noexcept {
            connection = transport.connection();
            listener = transport.listener();
        }
        const TcpTransport& transport;
        tcp::Connection* connection;
        tcp::Listener* listener;
    };

    ~TcpTransport();

    // Without a Pin or the state lock: to compare only.
    tcp::Connection* connection() const noexcept { return connection_.load(std::memory_order_acquire); }
    tcp::Listener* listener() const noexcept { return listener_.load(std::memory_order_acquire); }
    // Takes over a reference.
    void set(tcp::Connection* connection) noexcept {
        connection_.store(connection, std::memory_order_seq_cst);
    }
    void set(tcp::Listener* listener) noexcept { listener_.store(listener, std::memory_order_seq_cst); }
    // What it had; no call finds that from here on. To be retired.
    tcp::Connection* take_connection() noexcept {
        return connection_.exchange(nullptr, std::memory_order_seq_cst);
    }
    tcp::Listener* take_listener() noexcept { return listener_.exchange(nullptr, std::memory_order_seq_cst); }
    // Releases it once no call uses it. Null: nothing.
    void retire(tcp::Connection* connection) noexcept { retire({connection, nullptr}); }
    void retire(tcp::Listener* listener) noexcept { retire({nullptr, listener}); }
    // What was retired goes, if no call is under way.
    void release_retired() noexcept;

    // close(): the connection is closed now, or by the last call of another thread that is under way, as in
    // the kernel. `reset`: SO_LINGER of 0. `now`: in a handler that interrupted such a call. True: it was
    // now.
    bool close(bool reset, bool now) noexcept;

  private:
    struct Retired {
        tcp::Connection* connection;
        tcp::Listener* listener;
    };
    void retire(Retired retired) noexcept;
    void finish_close() const noexcept;

    std::atomic<tcp::Connection*> connection_{nullptr};
    std::atomic<tcp::Listener*> listener_{nullptr};
    mutable std::atomic<unsigned> users_{0};
    mutable std::atomic<bool> close_pending_{false};
    bool reset_ = false;  // written before close_pending_
    std::vector<Retired> retired_;
};

}  // namespace vma::sockets
