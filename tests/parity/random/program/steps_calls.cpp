// SPDX-License-Identifier: BSD-2-Clause
// Steps that are one call, or a few, none of which waits long.
#include <fcntl.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>

#include "steps.h"

namespace random_program {
namespace {

constexpr long kMostUnread = 30'000;  // less than any window

}  // namespace

bool World::open_udp(Draw& draw) {
    const int link = static_cast<int>(draw.below(2)), actor = any_actor(draw, 0), any = draw.one_in(2),
              connect = draw.one_in(2), nonblocking = draw.one_in(4);
    if (count(Kind::udp) >= 3 || next_port_ >= kPorts) return false;
    const int o = add_object(Kind::udp, link);
    Object& object = objects_[static_cast<size_t>(o)];
    object.port = g_base + next_port_++;  // no run meets what another has left
    ask_peer("opens", {Wish::open, o, link, object.port, 0, 0});
    const Result r = show(actor, "socket udp",
                          {.what = What::socket, .a = SOCK_DGRAM | (nonblocking ? SOCK_NONBLOCK : 0)});
    if (r.value < 0) return true;
    object.nonblocking = nonblocking;
    add_handle(0, r.value, o);
    const int fd = static_cast<int>(r.value);
    show(actor, "bind", {.what = What::bind, .fd = fd, .a = any ? -1 : link, .b = object.port});
    if (connect) {
        show(actor, "connect", {.what = What::connect, .fd = fd, .a = link, .b = object.port});
        object.connected = true;
    }
    return true;
}

bool World::open_tcp(Draw& draw) {
    const int link = static_cast<int>(draw.below(2)), actor = any_actor(draw, 0),
              nonblocking = draw.one_in(3), nodelay = !draw.one_in(5);
    if (count(Kind::tcp) >= 6) return false;
    const int o = add_object(Kind::tcp, link);
    const Result r = show(actor, "socket tcp",
                          {.what = What::socket, .a = SOCK_STREAM | (nonblocking ? SOCK_NONBLOCK : 0)});
    if (r.value < 0) return true;
    const int fd = static_cast<int>(r.value);
    if (nodelay)
        show(actor, "TCP_NODELAY",
             {.what = What::set_option, .fd = fd, .a = IPPROTO_TCP, .b = TCP_NODELAY, .c = 1});
    show(actor, "connect", {.what = What::connect, .fd = fd, .a = link, .b = g_base});
    Object& object = objects_[static_cast<size_t>(o)];
    ask_peer("accepts", {Wish::accept, o, 0, 0, object.rx_key, object.tx_key});
    if (nonblocking) {
        show(actor, "poll", {.what = What::poll, .count = 1, .a = 5000, .list = {fd, POLLOUT}});
        show(actor, "SO_ERROR", {.what = What::get_option, .fd = fd, .a = SOL_SOCKET, .b = SO_ERROR});
        object.nonblocking = true;
    }
    add_handle(0, fd, o);
    return true;
}

bool World::open_listener(Draw& draw) {
    const int link = static_cast<int>(draw.below(2)), actor = any_actor(draw, 0), any = draw.one_in(2),
              nonblocking = draw.one_in(2);
    if (count(Kind::listener) >= 2 || next_port_ >= kPorts) return false;
    const int o = add_object(Kind::listener, link);
    Object& object = objects_[static_cast<size_t>(o)];
    object.port = g_base + next_port_++;  // no run meets what another has left
    const Result r = show(actor, "socket tcp", {.what = What::socket, .a = SOCK_STREAM});
    if (r.value < 0) return true;
    const int fd = static_cast<int>(r.value);
    show(actor, "SO_REUSEADDR",
         {.what = What::set_option, .fd = fd, .a = SOL_SOCKET, .b = SO_REUSEADDR, .c = 1});
    show(actor, "TCP_NODELAY",
         {.what = What::set_option, .fd = fd, .a = IPPROTO_TCP, .b = TCP_NODELAY, .c = 1});
    show(actor, "bind", {.what = What::bind, .fd = fd, .a = any ? -1 : link, .b = object.port});
    show(actor, "listen", {.what = What::listen, .fd = fd, .a = 16});
    if (nonblocking) {
        show(actor, "O_NONBLOCK", {.what = What::nonblock, .fd = fd, .a = 1});
        object.nonblocking = true;
    }
    add_handle(0, fd, o);
    return true;
}

bool World::accept_one(Draw& draw) {
    const int h = pick(draw, [](auto&, auto& o) { return o.kind == Kind::listener; });
    if (h < 0 || count(Kind::tcp) >= 6) return false;
    const Handle handle = handles_[static_cast<size_t>(h)];
    const int actor = any_actor(draw, handle.process), four = draw.one_in(2), nonblocking = draw.one_in(3),
              early_data = draw.one_in(3);
    const int link = objects_[static_cast<size_t>(handle.object)].link,
              port = objects_[static_cast<size_t>(handle.object)].port;
    if (objects_[static_cast<size_t>(handle.object)].nonblocking && draw.one_in(4))
        show(actor, "accept", {.what = What::accept, .fd = handle.fd, .a = 0, .b = four});  // nobody is there
    const int o = add_object(Kind::tcp, link);
    Object& object = objects_[static_cast<size_t>(o)];
    if (ask_peer("connects", {Wish::connect, o, link, port, object.rx_key, object.tx_key}).value < 0)
        return true;
    if (early_data) {
        ask_peer("sends", {Wish::send, o, 100, 0, 0, 0});
        object.in_queue = 100;
    }
    show(actor, "poll", {.what = What::poll, .count = 1, .a = 5000, .list = {handle.fd, POLLIN}});
    const Result r = show(
        actor, "accept",
        {.what = What::accept, .fd = handle.fd, .a = four && nonblocking ? SOCK_NONBLOCK : 0, .b = four});
    if (r.value < 0) {
        ask_peer("closes", {Wish::end, o, 2, 0, 0, 0});
        return true;
    }
    object.nonblocking = four && nonblocking;
    object.was_shared = handle.process != 0;
    add_handle(handle.process, r.value, o);
    settle(o);
    return true;
}

void World::trigger_data(int object, long length) {
    Object& o = objects_[static_cast<size_t>(object)];
    ask_peer("sends", {Wish::send, o.id, length, 0, 0, 0});
    o.in_queue += length;
}

bool World::peer_sends(Draw& draw) {
    const int h = pick(draw, [](auto&, auto& o) {
        if (o.kind == Kind::udp) return o.datagrams < 3;
        return o.kind == Kind::tcp && !o.dead && !o.peer_ended && !o.read_shut && o.in_queue < kMostUnread;
    });
    if (h < 0) return false;
    const int number = handles_[static_cast<size_t>(h)].object;
    Object& o = objects_[static_cast<size_t>(number)];
    if (o.kind == Kind::udp) {
        if (o.was_shared && !allowed("shared_udp")) return false;
        // Fragments take another way than whole frames; nobody promises the order.
        const bool in_fragments = o.datagrams == 0 && draw.one_in(12);
        const long length = in_fragments ? 3000 : static_cast<long>(draw.below(1473));
        ask_peer("sends",
                 {Wish::send_to, o.id, length, o.port, draw.number(), static_cast<uint64_t>(o.link)});
        const int fd = handles_[static_cast<size_t>(h)].fd,
                  process = handles_[static_cast<size_t>(h)].process;
        show(any_actor(draw, process), "poll",
             {.what = What::poll, .count = 1, .a = 3000, .list = {fd, POLLIN}});
        // It waits in the kernel's queue, where select() and its kin look less often: so it is received now.
        if (in_fragments)
            show(any_actor(draw, process), "receive fragments",
                 {.what = What::receive, .fd = fd, .a = 4000, .b = MSG_DONTWAIT, .c = 1});
        else
            o.datagrams++;
        return true;
    }
    trigger_data(number, draw.length(20'000));
    settle(number);
    return true;
}

bool World::peer_reads(Draw& draw) {
    const int h = pick(draw, [](auto&, auto& o) {
        return o.kind == Kind::tcp && o.out_queue > 0 && !o.peer_closed && !o.dead;
    });
    if (h < 0) return false;
    const int number = handles_[static_cast<size_t>(h)].object;
    Object& o = objects_[static_cast<size_t>(number)];
    const long length =
        draw.one_in(2) ? o.out_queue : 1 + static_cast<long>(draw.below(static_cast<unsigned>(o.out_queue)));
    ask_peer("reads", {Wish::read, o.id, length, 0, 0, 0}, false);
    o.out_queue -= length;
    return true;
}

void World::trigger_end(int object, int how) {
    Object& o = objects_[static_cast<size_t>(object)];
    if (how == 1 && (o.out_queue > 0 || o.in_queue > 0) && o.out_queue > 0)
        how = 3;  // the kernel resets then
    ask_peer("ends", {Wish::end, o.id, how == 3 ? 1 : how, 0, 0, 0});
    if (how >= 2) {
        o.dead = o.peer_closed = true;
    } else {
        o.peer_ended = true;
        o.peer_closed = how == 1;
    }
}

bool World::peer_ends(Draw& draw) {
    const int how = static_cast<int>(draw.below(3));
    const int h = pick(draw, [&](auto&, auto& o) {
        return o.kind == Kind::tcp && !o.peer_closed && !o.dead && (how != 0 || !o.peer_ended);
    });
    if (h < 0) return false;
    const int number = handles_[static_cast<size_t>(h)].object;
    tell("the peer of %d ends %d", number, how);
    trigger_end(number, how);
    settle(number);
    return true;
}

void World::after_receive(Object& o, const Result& r) {
    o.received += static_cast<uint64_t>(r.moved);
    o.in_queue = std::max(0L, o.in_queue - r.moved);
}

bool World::receive(Draw& draw) {
    const int h = pick(draw, [](auto&, auto& o) { return o.kind == Kind::tcp; });
    if (h < 0) return false;
    const Handle handle = handles_[static_cast<size_t>(h)];
    Object& o = objects_[static_cast<size_t>(handle.object)];
    const long room = draw.length(20'000);
    const int manner = static_cast<int>(draw.below(6));
    int flags = 0;
    if (draw.one_in(4)) flags |= MSG_PEEK;
    if (draw.one_in(4)) flags |= MSG_DONTWAIT;
    if (draw.one_in(4)) flags |= MSG_WAITALL;
    if (draw.one_in(12)) flags |= MSG_TRUNC;
    const bool flagless = manner == 0 || manner == 3;
    if (flagless) flags = 0;
    if (!o.nonblocking && !(flags & MSG_DONTWAIT)) {
        if (!readable(o) && flagless) return false;
        if (!readable(o)) flags |= MSG_DONTWAIT;
        if (flags & MSG_WAITALL && o.in_queue < room && !o.peer_ended && !o.dead && !o.read_shut)
            flags &= ~MSG_WAITALL;
    }
    const int actor = any_actor(draw, handle.process);
    char name[60];
    snprintf(name, sizeof name, "receive %ld flags %x manner %d", room, static_cast<unsigned>(flags), manner);
    const Result r = show(actor, name,
                          {.what = What::receive,
                           .fd = handle.fd,
                           .a = room,
                           .b = flags,
                           .c = manner,
                           .key = o.rx_key,
                           .at = o.received});
    after_receive(o, r);
    settle(handle.object);
    return true;
}

void World::after_send(int object, const Result& r) {
    Object& o = objects_[static_cast<size_t>(object)];
    if (r.value > 0) {
        o.sent += static_cast<uint64_t>(r.value);
        if (o.peer_closed)
            o.dead = true;  // it answers with a reset
        else
            o.out_queue += r.value;
    }
    settle(object);
}

bool World::send(Draw& draw) {
    const int h = pick(draw, [](auto&, auto& o) { return o.kind == Kind::tcp && o.out_queue < kMostUnread; });
    if (h < 0) return false;
    const Handle handle = handles_[static_cast<size_t>(h)];
    Object& o = objects_[static_cast<size_t>(handle.object)];
    const long length = draw.length(15'000);
    const int manner = static_cast<int>(draw.below(6));
    // The reset that answers data to a closed peer may come between the parts.
    if (manner == 5 && o.peer_closed) return false;
    int flags = 0;
    if (draw.one_in(4)) flags |= MSG_DONTWAIT;
    if (draw.one_in(8)) flags |= MSG_EOR;
    const int actor = any_actor(draw, handle.process);
    char name[60];
    snprintf(name, sizeof name, "send %ld flags %x manner %d", length, static_cast<unsigned>(flags), manner);
    const Result r = show(actor, name,
                          {.what = What::send,
                           .fd = handle.fd,
                           .a = length,
                           .b = flags,
                           .c = manner,
                           .key = o.tx_key,
                           .at = o.sent});
    after_send(handle.object, r);
    return true;
}

bool World::shut_down(Draw& draw) {
    const int how = static_cast<int>(draw.below(4));  // 3 is none
    const int h = pick(draw, [&](auto&, auto& o) {
        return o.kind == Kind::tcp && (how == 3 || o.in_queue == 0 || how == SHUT_WR);
    });
    if (h < 0) return false;
    const Handle handle = handles_[static_cast<size_t>(h)];
    Object& o = objects_[static_cast<size_t>(handle.object)];
    const Result r = show(any_actor(draw, handle.process), "shutdown",
                          {.what = What::shutdown, .fd = handle.fd, .a = how});
    if (r.value == 0) {
        if (how != SHUT_RD) o.we_ended = true;
        if (how != SHUT_WR) o.read_shut = true;
    }
    settle(handle.object);
    return true;
}

bool World::close_one(Draw& draw) {
    const int h = pick(draw, [](auto&, auto&) { return true; });
    if (h < 0) return false;
    const Handle handle = handles_[static_cast<size_t>(h)];
    const Object& o = objects_[static_cast<size_t>(handle.object)];
    const int actor = any_actor(draw, handle.process);
    if (o.kind == Kind::tcp && draw.one_in(5))
        show(actor, "SO_LINGER", {.what = What::linger, .fd = handle.fd, .a = 1, .b = draw.of({0, 0, 5})});
    show(actor, "close", {.what = What::close, .fd = handle.fd});
    if (draw.one_in(8)) show(actor, "close again", {.what = What::close, .fd = handle.fd});
    remove_handle(static_cast<size_t>(h));
    return true;
}

bool World::duplicate(Draw& draw) {
    const int h = pick(draw, [](auto&, auto&) { return true; });
    if (h < 0 || handles_.size() > 24) return false;
    const Handle handle = handles_[static_cast<size_t>(h)];
    const int actor = any_actor(draw, handle.process), number = 60 + static_cast<int>(draw.below(12));
    Call call{.what = What::dup, .fd = handle.fd};
    const char* name = "dup";
    int replaced = -1;
    switch (draw.below(5)) {
        case 0:
            break;
        case 1:
        case 2:
            call.what = draw.one_in(2) ? What::dup2 : What::dup3;
            name = call.what == What::dup2 ? "dup2" : "dup3";
            call.a = number;
            call.b = call.what == What::dup3 && draw.one_in(2) ? O_CLOEXEC : 0;
            if (draw.one_in(3)) {
                replaced = pick(draw, [&](auto& other, auto&) {
                    return other.process == handle.process && other.object != handle.object;
                });
                if (replaced >= 0) call.a = handles_[static_cast<size_t>(replaced)].fd;
            } else {
                for (size_t i = 0; i < handles_.size(); i++)
                    if (handles_[i].process == handle.process && handles_[i].fd == number)
                        replaced = static_cast<int>(i);
            }
            break;
        default:
            call.what = draw.one_in(2) ? What::dupfd : What::dupfd_cloexec;
            name = "F_DUPFD";
            call.a = draw.of({0, 30, 60});
            break;
    }
    char text[40];
    snprintf(text, sizeof text, "%s to %ld", name, call.a);
    const Result r = show(actor, text, call);
    if (r.value < 0) return true;
    if (replaced >= 0 && static_cast<int>(r.value) == handle.fd) return true;  // onto itself
    add_handle(handle.process, r.value, handle.object);
    if (replaced >= 0) remove_handle(static_cast<size_t>(replaced));
    return true;
}

bool World::blocking_mode(Draw& draw) {
    const int on = static_cast<int>(draw.below(2)), by_ioctl = static_cast<int>(draw.below(2));
    const int h = pick(draw, [](auto&, auto& o) { return o.kind != Kind::set; });
    if (h < 0) return false;
    const Handle handle = handles_[static_cast<size_t>(h)];
    const int actor = any_actor(draw, handle.process);
    show(actor, on ? "sets O_NONBLOCK" : "clears O_NONBLOCK",
         {.what = by_ioctl ? What::nonblock_ioctl : What::nonblock, .fd = handle.fd, .a = on});
    objects_[static_cast<size_t>(handle.object)].nonblocking = on;
    show(any_actor(draw, handle.process), "F_GETFL", {.what = What::status_flags, .fd = handle.fd});
    return true;
}

bool World::options(Draw& draw) {
    struct Option {
        const char* name;
        int level, number;
        std::vector<int> values;
        bool tcp, udp;
    };
    static const std::vector<Option> kOptions = {
        {"TCP_NODELAY", IPPROTO_TCP, TCP_NODELAY, {1}, true, false},
        {"SO_KEEPALIVE", SOL_SOCKET, SO_KEEPALIVE, {0, 1}, true, true},
        {"TCP_KEEPIDLE", IPPROTO_TCP, TCP_KEEPIDLE, {0, 1000, 40000}, true, false},
        {"TCP_KEEPCNT", IPPROTO_TCP, TCP_KEEPCNT, {0, 5, 200}, true, false},
        {"TCP_USER_TIMEOUT", IPPROTO_TCP, TCP_USER_TIMEOUT, {-1, 0, 60000}, true, false},
        {"TCP_QUICKACK", IPPROTO_TCP, TCP_QUICKACK, {1}, true, false},
        {"TCP_MAXSEG", IPPROTO_TCP, TCP_MAXSEG, {1, 40000}, true, false},
        {"SO_PRIORITY", SOL_SOCKET, SO_PRIORITY, {0, 3, 6}, true, true},
        {"IP_TOS", IPPROTO_IP, IP_TOS, {0, 8, 16}, true, true},
        {"IP_TTL", IPPROTO_IP, IP_TTL, {0, 64, 200}, true, true},
        {"SO_REUSEADDR", SOL_SOCKET, SO_REUSEADDR, {1, 0}, true, true},
        {"SO_BROADCAST", SOL_SOCKET, SO_BROADCAST, {0, 1}, true, true},
        {"SO_OOBINLINE", SOL_SOCKET, SO_OOBINLINE, {0, 1}, true, false},
        {"SO_RCVLOWAT", SOL_SOCKET, SO_RCVLOWAT, {1, 0}, true, true},
        {"SO_TIMESTAMP", SOL_SOCKET, SO_TIMESTAMP, {0}, true, true},
        {"IP_PKTINFO", IPPROTO_IP, IP_PKTINFO, {0}, false, true},
        {"SO_ERROR", SOL_SOCKET, SO_ERROR, {0}, true, true},
        {"SO_TYPE", SOL_SOCKET, SO_TYPE, {3}, true, true},
        {"SO_ACCEPTCONN", SOL_SOCKET, SO_ACCEPTCONN, {1}, true, true},
        {"SO_INCOMING_CPU", SOL_SOCKET, 0x7fff, {1}, true, true},
    };
    const Option& option = kOptions[draw.below(static_cast<unsigned>(kOptions.size()))];
    const int h = pick(draw, [&](auto&, auto& o) {
        return o.kind == Kind::udp ? option.udp
                                   : (o.kind == Kind::tcp || o.kind == Kind::listener) && option.tcp;
    });
    const int value = option.values[draw.below(static_cast<unsigned>(option.values.size()))];
    if (h < 0) return false;
    const Handle handle = handles_[static_cast<size_t>(h)];
    const int actor = any_actor(draw, handle.process);
    char name[60];
    snprintf(name, sizeof name, "sets %s to %d", option.name, value);
    show(actor, name,
         {.what = What::set_option, .fd = handle.fd, .a = option.level, .b = option.number, .c = value});
    snprintf(name, sizeof name, "gets %s", option.name);
    show(any_actor(draw, handle.process), name,
         {.what = What::get_option, .fd = handle.fd, .a = option.level, .b = option.number});
    return true;
}

bool World::names(Draw& draw) {
    const int h = pick(draw, [](auto&, auto& o) { return o.kind != Kind::set; });
    if (h < 0) return false;
    const Handle handle = handles_[static_cast<size_t>(h)];
    show(any_actor(draw, handle.process), "getsockname", {.what = What::own_name, .fd = handle.fd});
    show(any_actor(draw, handle.process), "getpeername", {.what = What::peer_name, .fd = handle.fd});
    return true;
}

bool World::look(Draw& draw) {
    const int process = processes_[1].alive && draw.one_in(3) ? 1 : 0;
    Call call{.what = draw.one_in(2) ? What::poll : What::select};
    for (const Handle& h : handles_) {
        if (h.process != process || call.count == 8 || draw.one_in(3)) continue;
        if (process != 0 && !serves_child(objects_[static_cast<size_t>(h.object)])) continue;
        call.list[2 * call.count] = h.fd;
        call.list[2 * call.count + 1] =
            draw.of({POLLIN, POLLOUT, POLLIN | POLLOUT, POLLIN | POLLOUT | POLLRDHUP, POLLPRI | POLLIN});
        call.count++;
    }
    if (call.count == 0) return false;
    std::string name = call.what == What::poll ? "poll" : "select";
    for (int i = 0; i < call.count; i++)
        name += " " + std::to_string(call.list[2 * i]) + ":" + std::to_string(call.list[2 * i + 1]);
    show(any_actor(draw, process), name.c_str(), call);
    return true;
}

bool World::udp_send(Draw& draw) {
    const int h = pick(draw, [](auto&, auto& o) { return o.kind == Kind::udp; });
    if (h < 0) return false;
    const Handle handle = handles_[static_cast<size_t>(h)];
    const Object& o = objects_[static_cast<size_t>(handle.object)];
    int manner = static_cast<int>(draw.below(6));
    if (!o.connected && (manner < 2 || manner == 3)) manner = 2;
    const bool addressed = manner == 2 || manner >= 4 ? !o.connected || draw.one_in(2) : false;
    const long length = draw.one_in(12) ? 3000 : static_cast<long>(draw.below(1473));
    char name[60];
    snprintf(name, sizeof name, "send %ld manner %d", length, manner);
    const Result r = show(any_actor(draw, handle.process), name,
                          {.what = What::send,
                           .fd = handle.fd,
                           .a = length,
                           .b = draw.one_in(3) ? MSG_DONTWAIT : 0,
                           .c = manner,
                           .d = addressed ? o.port : 0,
                           .key = draw.number(),
                           .list = {o.link}});
    if (r.value < 0) return true;
    for (int i = 0; i < (manner == 5 ? 3 : 1); i++)
        ask_peer("receives", {Wish::receive, o.id, 0, 0, 0, 0}, false);
    return true;
}

bool World::udp_receive(Draw& draw) {
    const int h = pick(draw, [](auto&, auto& o) { return o.kind == Kind::udp; });
    if (h < 0) return false;
    const Handle handle = handles_[static_cast<size_t>(h)];
    Object& o = objects_[static_cast<size_t>(handle.object)];
    if (o.was_shared && !allowed("shared_udp")) return false;
    const int actor = any_actor(draw, handle.process);
    int manner = static_cast<int>(draw.below(6));
    if (o.datagrams > 0)  // it may still be under way when there was one before it
        call(actor, {.what = What::poll, .count = 1, .a = 3000, .list = {handle.fd, POLLIN}});
    int flags = draw.of({0, 0, MSG_PEEK, MSG_TRUNC, MSG_PEEK | MSG_TRUNC});
    // How many of several have come is the network's to say.
    if (manner == 5 && o.datagrams > 1) manner = 4;
    if (manner == 5 && flags & MSG_PEEK) flags = 0;
    if (o.datagrams == 0) {
        if (!o.nonblocking) flags |= MSG_DONTWAIT;
        if (manner == 0 || manner == 3) manner = 1;
    }
    const bool taken = manner == 0 || manner == 3 || !(flags & MSG_PEEK);
    const long room = draw.one_in(3) ? 100 : 4000;
    char name[60];
    snprintf(name, sizeof name, "receive %ld flags %x manner %d", room, static_cast<unsigned>(flags), manner);
    // What is cut off by MSG_TRUNC is not to be looked at.
    const Result r =
        show(actor, name, {.what = What::receive, .fd = handle.fd, .a = room, .b = flags, .c = manner});
    if (r.value >= 0 && taken) o.datagrams = std::max(0L, o.datagrams - 1);
    return true;
}

bool World::udp_connect(Draw& draw) {
    const int h = pick(draw, [](auto&, auto& o) { return o.kind == Kind::udp && o.datagrams == 0; });
    const int dissolve = draw.one_in(2);
    if (h < 0) return false;
    const Handle handle = handles_[static_cast<size_t>(h)];
    Object& o = objects_[static_cast<size_t>(handle.object)];
    if (o.was_shared && !allowed("shared_udp")) return false;
    const Result r = show(any_actor(draw, handle.process), dissolve ? "dissolves" : "connect",
                          {.what = What::connect, .fd = handle.fd, .a = dissolve ? -1 : o.link, .b = o.port});
    if (r.value == 0) o.connected = !dissolve;
    return true;
}

bool World::new_set(Draw& draw) {
    if (count(Kind::set) >= 3) return false;
    const int o = add_object(Kind::set, 0);
    const Result r =
        show(any_actor(draw, 0), "epoll_create1", {.what = What::new_set, .a = draw.of({0, EPOLL_CLOEXEC})});
    if (r.value >= 0) add_handle(0, r.value, o);
    return true;
}

bool World::change_set(Draw& draw) {
    const int s = pick(draw, [](auto&, auto& o) { return o.kind == Kind::set; });
    if (s < 0) return false;
    const Handle set = handles_[static_cast<size_t>(s)];
    if (objects_[static_cast<size_t>(set.object)].was_shared && !allowed("shared_set")) return false;
    const int m = pick(draw, [&](auto& h, auto& o) {
        return h.process == set.process && o.kind != Kind::set && (allowed("shared_set") || !o.was_shared);
    });
    if (m < 0) return false;
    const int operation =
        draw.of({EPOLL_CTL_ADD, EPOLL_CTL_ADD, EPOLL_CTL_ADD, EPOLL_CTL_MOD, EPOLL_CTL_DEL});
    uint32_t events = 0;
    for (uint32_t bit : {EPOLLIN, EPOLLIN, EPOLLOUT, EPOLLRDHUP, EPOLLPRI})
        if (draw.one_in(2)) events |= bit;
    switch (draw.below(6)) {
        case 0:
            events |= EPOLLET;
            break;
        case 1:
            events |= EPOLLONESHOT;
            break;
        case 2:
            events |= EPOLLET | EPOLLONESHOT;
            break;
        default:
            break;
    }
    const int member = handles_[static_cast<size_t>(m)].fd;
    char name[80];
    snprintf(name, sizeof name, "epoll_ctl %d of %d events %x", operation, member, events);
    show(any_actor(draw, set.process), name,
         {.what = What::change_set,
          .fd = set.fd,
          .a = operation,
          .b = member,
          .c = static_cast<long>(events),
          .at = step_});
    return true;
}

bool World::wait_set(Draw& draw) {
    const int s = pick(draw, [&](auto&, auto& o) {
        return o.kind == Kind::set && (!o.was_shared || allowed("shared_set"));
    });
    if (s < 0) return false;
    const Handle set = handles_[static_cast<size_t>(s)];
    show(any_actor(draw, set.process), "epoll_wait", {.what = What::wait_set, .fd = set.fd, .a = 0});
    return true;
}

}  // namespace random_program
