// SPDX-License-Identifier: BSD-2-Clause
// A TCP/IPv4 socket of the program: descriptor semantics on top of tcp::Connection and tcp::Listener. This
// layer has its life, names, options and close; see core.h for the others.
#pragma once

#include <cstdint>

#include "libvma/runtime/clock.h"
#include "libvma/runtime/internal_fd.h"
#include "libvma/sockets/tcp/extra.h"

namespace vma::sockets {

class TcpSocket final : public TcpExtra {
  public:
    // For the kernel socket `fd` just created with these type flags. Null when there is no memory.
    static TcpSocket* create(Stack& stack, int fd, int type) noexcept;
    // Memory for a socket, before accept() takes a connection from the queue; null: there is none.
    static void* take_memory() noexcept;
    static void give_memory(void* memory) noexcept;
    // In such memory: the socket of a connection that `listener` has accepted, for the kernel socket `fd`.
    static TcpSocket* accepted(void* memory, TcpListening& listener, tcp::Connection* c, int fd,
                               int flags) noexcept;

    int bind(int fd, const sockaddr* addr, socklen_t len) override;
    int shutdown(int fd, int how) override;
    int setsockopt(int fd, int level, int name, const void* value, socklen_t len) override;
    int getsockopt(int fd, int level, int name, void* value, socklen_t* len) override;
    int getsockname(int fd, sockaddr* addr, socklen_t* len) override;
    int getpeername(int fd, sockaddr* addr, socklen_t* len) override;
    int ioctl(int fd, unsigned long request, void* arg) override;
    void leave_to_kernel(int fd, LeaveCause why) noexcept override;
    void ring_failed(int fd, ring::Ring& ring) noexcept override;
    void before_last_close(int fd) noexcept override;
    void before_process_end(int fd) noexcept override;

  protected:
    void last_fd_closed() noexcept override { last_number_closed(-1); }
    void last_number_closed(int fd) noexcept override;
    void recycle() noexcept override;

  private:
    TcpSocket(Stack& stack, int type) noexcept : TcpExtra(stack, type) {}
    ~TcpSocket() override;

    // ---- control.cpp ----
    int bind_again(int fd, const sockaddr* addr, socklen_t len) noexcept;

    // ---- options.cpp ----
    void apply(int fd, int level, int name) noexcept;  // takes over what the shadow now has
    template <class F>
    void edit_options(F&& edit) noexcept;
    int listener_info(int fd, const Pin& pin, void* value, socklen_t* len);
    int get_from_connection(int fd, int level, int name, void* value, socklen_t* len, bool& known);

    // ---- close.cpp ----
    friend class LateLinger;
    void linger() noexcept;
    bool linger_later() noexcept;  // false: this thread does not close later

    struct Lingering {
        clock::Nsec longest{};
        InternalFd port;            // a copy of the shadow
        TcpSocket* next = nullptr;  // of a LateLinger
    };
    Lingering lingering_;  // the thread that closes
};

}  // namespace vma::sockets
