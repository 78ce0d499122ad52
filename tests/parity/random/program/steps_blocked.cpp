// SPDX-License-Identifier: BSD-2-Clause
// Steps in which an actor waits in a call, and something ends its wait: data, an end, a signal, a handler
// that jumps, pthread_cancel(). Signals are sent again and again until the call has ended, so it does not
// matter whether the first one came too early.
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>

#include "steps.h"

namespace random_program {
namespace {

enum class By : int {
    data,
    end,
    reset,
    signal,
    restart,
    handler_send,
    handler_close,
    jump,
    cancel,
    shutdown
};
const char* const kBy[] = {
    "data", "end",    "reset",   "signal", "restarting signal", "sending handler", "closing handler",
    "jump", "cancel", "shutdown"};

}  // namespace

// Ends the thread of an actor inside its call, and gives the actor a new one.
void World::cancel(int actor, const char* name) {
    pthread_cancel(threads_[actor]);
    void* value = nullptr;
    timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 20;
    if (pthread_timedjoin_np(threads_[actor], &value, &until) != 0) give_up("is not cancelled", actor);
    start_thread(actor);
    tell("A%d %s: %s", actor, name, value == PTHREAD_CANCELED ? "cancelled" : "NOT cancelled");
}

// The call is one of recv's kin on a connection without data.
bool World::blocked_receive(Draw& draw) {
    const By by = static_cast<By>(draw.below(10));
    const int h = pick(draw, [&](auto&, auto& o) {
        return o.kind == Kind::tcp && talks(o) && !readable(o) && !o.nonblocking;
    });
    if (h < 0 || !allowed(kBy[static_cast<int>(by)])) return false;
    const Handle handle = handles_[static_cast<size_t>(h)];
    const int actor = any_thread(draw, handle.process);
    if (by == By::cancel && !is_thread(actor)) return false;
    Object& o = objects_[static_cast<size_t>(handle.object)];
    const int manner = static_cast<int>(draw.below(5));
    const bool all = manner != 0 && manner != 3 && draw.one_in(3);
    const long room = draw.length(5000), length = all ? room : draw.length(5000);
    const unsigned delay = draw.below(3) * draw.below(600);
    Page& page = g_pages[actor];
    page.in_handler = 0;
    page.handler_fd = handle.fd;
    page.handler_key = o.tx_key;
    page.handler_at = o.sent;
    if (by == By::jump) page.in_handler = static_cast<int>(InHandler::jump);
    if (by == By::handler_send) page.in_handler = static_cast<int>(InHandler::send);
    if (by == By::handler_close) page.in_handler = static_cast<int>(InHandler::close);
    begin(actor, {.what = What::receive,
                  .fd = handle.fd,
                  .a = room,
                  .b = all ? MSG_WAITALL : 0,
                  .c = manner,
                  .key = o.rx_key,
                  .at = o.received});
    usleep(delay);
    char name[80];
    snprintf(name, sizeof name, "waits for %ld%s manner %d, %s", room, all ? " all" : "", manner,
             kBy[static_cast<int>(by)]);
    bool removed = false;
    switch (by) {
        case By::data:
            trigger_data(handle.object, length);
            break;
        case By::end:
            trigger_end(handle.object, draw.of({0, 1}));
            break;
        case By::reset:
            trigger_end(handle.object, 2);
            break;
        case By::signal:
        case By::jump:
        case By::handler_close:
            for (int i = 0; i < 5000 && !finished(actor, 1); i++)
                signal_actor(actor, by == By::signal ? SIGUSR1 : SIGUSR2);
            removed = by == By::handler_close;
            break;
        case By::restart:
        case By::handler_send:
            for (int i = 0; i < 3 && !finished(actor, 1); i++) signal_actor(actor, SIGUSR2);
            if (by == By::handler_send) {
                const long end = milliseconds() + 3000;
                while (page.in_handler != 0 && milliseconds() < end) usleep(200);
                o.sent += 40;
                o.out_queue += 40;
            }
            trigger_data(handle.object, length);
            break;
        case By::shutdown:
            show(any_actor(draw, 0) == actor ? 0 : 0, "shutdown",
                 {.what = What::shutdown, .fd = handle.process == 0 ? handle.fd : -1, .a = SHUT_RDWR});
            if (handle.process != 0) trigger_data(handle.object, length);
            if (handle.process == 0) o.we_ended = o.read_shut = true;
            break;
        case By::cancel:
            cancel(actor, name);
            settle(handle.object);
            return true;
    }
    Result r = finish(actor);
    page.in_handler = 0;
    after_receive(o, r);
    // The first segment may end the wait, or all that belong together: the rest is read now.
    const long wanted = std::min(room, r.moved + o.in_queue);
    if (r.value > 0 && r.moved < wanted) {
        const Result rest = call(actor, {.what = What::receive,
                                         .fd = handle.fd,
                                         .a = wanted - r.moved,
                                         .b = MSG_WAITALL,
                                         .c = 1,
                                         .key = o.rx_key,
                                         .at = o.received});
        after_receive(o, rest);
        if (rest.value != wanted - r.moved) show_result(actor, "the rest", handle.fd, rest);
        r.value += rest.moved;
    }
    show_result(actor, name, handle.fd, r);
    if (removed) remove_handle(static_cast<size_t>(h));
    if (has_handle(handle.object)) settle(handle.object);
    return true;
}

// poll, select or epoll_wait on several, one of which becomes ready.
bool World::blocked_wait(Draw& draw) {
    static constexpr By kPossible[] = {By::data,   By::data,    By::end,  By::reset,
                                       By::signal, By::restart, By::jump, By::cancel};
    const By by = kPossible[draw.below(8)];
    const int h = pick(draw, [&](auto&, auto& o) {
        if (o.kind == Kind::udp)
            return o.datagrams == 0 && by != By::end && by != By::reset &&
                   (!o.was_shared || allowed("shared_udp"));
        return o.kind == Kind::tcp && talks(o) && !readable(o);
    });
    if (h < 0 || !allowed(kBy[static_cast<int>(by)])) return false;
    const Handle handle = handles_[static_cast<size_t>(h)];
    const int actor = any_thread(draw, handle.process);
    if (by == By::cancel && !is_thread(actor)) return false;
    const bool has_end = by == By::signal || by == By::restart || by == By::jump || by == By::cancel;
    Call waiting{.fd = handle.fd, .count = 1, .a = 10'000, .list = {handle.fd, POLLIN}};
    static const char* const kHow[] = {"poll", "select", "epoll_wait"};
    const unsigned how = draw.below(3);
    int set = -1;
    if (how == 2) {
        const Result r = call(actor, {.what = What::new_set});
        set = static_cast<int>(r.value);
        call(actor, {.what = What::change_set,
                     .fd = set,
                     .a = EPOLL_CTL_ADD,
                     .b = handle.fd,
                     .c = EPOLLIN | (draw.one_in(2) ? static_cast<long>(EPOLLET) : 0l),
                     .at = 5});
        waiting.what = What::wait_set;
        waiting.fd = set;
    } else {
        waiting.what = how == 0 ? What::poll : What::select;
        // Others that are not ready.
        for (const Handle& other : handles_) {
            const Object& object = objects_[static_cast<size_t>(other.object)];
            if (other.process != handle.process || waiting.count == 6 || other.object == handle.object)
                continue;
            if (object.kind == Kind::udp &&
                (object.datagrams > 0 || (object.was_shared && !allowed("shared_udp"))))
                continue;
            if (object.kind == Kind::tcp && (!talks(object) || readable(object))) continue;
            if (object.kind == Kind::set) continue;
            waiting.list[2 * waiting.count] = other.fd;
            waiting.list[2 * waiting.count + 1] = POLLIN;
            waiting.count++;
        }
    }
    Page& page = g_pages[actor];
    page.in_handler = by == By::jump ? static_cast<int>(InHandler::jump) : 0;
    Object& o = objects_[static_cast<size_t>(handle.object)];
    begin(actor, waiting);
    usleep(draw.below(3) * draw.below(600));
    char name[80];
    snprintf(name, sizeof name, "waits in %s, %s", kHow[how], kBy[static_cast<int>(by)]);
    if (!has_end) {
        if (o.kind == Kind::udp) {
            ask_peer("sends",
                     {Wish::send_to, o.id, 50, o.port, draw.number(), static_cast<uint64_t>(o.link)});
            o.datagrams++;
        } else if (by == By::data) {
            trigger_data(handle.object, draw.length(3000));
        } else {
            trigger_end(handle.object, by == By::end ? 0 : 2);
        }
    } else if (by == By::cancel) {
        cancel(actor, name);
    } else {
        for (int i = 0; i < 5000 && !finished(actor, 1); i++)
            signal_actor(actor, by == By::signal ? SIGUSR1 : SIGUSR2);
    }
    if (by != By::cancel) {
        const Result r = finish(actor);
        page.in_handler = 0;
        show_result(actor, name, handle.fd, r);
    }
    if (set >= 0) call(actor, {.what = What::close, .fd = set});
    settle(handle.object);
    return true;
}

// More than fits is written; the peer reads it, or a signal ends the wait.
bool World::blocked_send(Draw& draw) {
    const By by = draw.one_in(2) ? By::data : draw.one_in(2) ? By::signal : By::reset;
    const int h = pick(draw, [&](auto&, auto& o) {
        return o.kind == Kind::tcp && talks(o) && !o.nonblocking && o.out_queue == 0;
    });
    if (h < 0) return false;
    const Handle handle = handles_[static_cast<size_t>(h)];
    const int actor = any_thread(draw, handle.process), manner = draw.of({0, 1, 3, 4});
    Object& o = objects_[static_cast<size_t>(handle.object)];
    const long length = 4'000'000;  // more than both buffers have room for
    begin(actor,
          {.what = What::send, .fd = handle.fd, .a = length, .c = manner, .key = o.tx_key, .at = o.sent});
    ask_peer("awaits", {Wish::await, o.id, 10'000, 0, 0, 0});
    usleep(draw.below(3) * draw.below(600));
    const int pipes = *g_sigpipes;
    if (by == By::data) {
        ask_peer("reads", {Wish::read, o.id, length, 0, 0, 0}, false);
    } else if (by == By::signal) {
        for (int i = 0; i < 5000 && !finished(actor, 1); i++) signal_actor(actor, SIGUSR1);
    } else {
        trigger_end(handle.object, 2);
    }
    Result r = finish(actor);
    if (r.value > 0) o.sent += static_cast<uint64_t>(r.value);
    char name[60];
    snprintf(name, sizeof name, "sends much manner %d, %s", manner, kBy[static_cast<int>(by)]);
    if (by == By::data) {
        show_result(actor, name, handle.fd, r);
    } else {
        // How much went before is not to be foreseen; that all of it comes is seen now.
        tell("A%d %s: %s", actor, name,
             r.value > 0         ? "a part"
             : r.value == length ? "all"
                                 : strerrorname_np(r.error));
        if (by == By::signal && r.value > 0 &&
            ask_peer("reads", {Wish::read, o.id, r.value, 0, 0, 0}).value != r.value)
            tell("the peer has not got all: LOST");
    }
    if (*g_sigpipes != pipes) tell("SIGPIPE %d", *g_sigpipes - pipes);
    settle(handle.object);
    return true;
}

bool World::blocked_accept(Draw& draw) {
    const By by = draw.one_in(2)
                      ? By::data
                      : static_cast<By>(draw.of({static_cast<int>(By::signal), static_cast<int>(By::restart),
                                                 static_cast<int>(By::jump), static_cast<int>(By::cancel)}));
    const int h = pick(draw, [&](auto&, auto& o) { return o.kind == Kind::listener && !o.nonblocking; });
    if (h < 0 || count(Kind::tcp) >= 6 || !allowed(kBy[static_cast<int>(by)])) return false;
    if (by == By::cancel && !allowed("cancel in accept")) return false;
    const Handle handle = handles_[static_cast<size_t>(h)];
    const int actor = any_thread(draw, handle.process);
    if (by == By::cancel && !is_thread(actor)) return false;
    const int link = objects_[static_cast<size_t>(handle.object)].link,
              port = objects_[static_cast<size_t>(handle.object)].port;
    Page& page = g_pages[actor];
    page.in_handler = by == By::jump ? static_cast<int>(InHandler::jump) : 0;
    begin(actor, {.what = What::accept, .fd = handle.fd, .b = draw.one_in(2)});
    usleep(draw.below(3) * draw.below(600));
    char name[60];
    snprintf(name, sizeof name, "waits in accept, %s", kBy[static_cast<int>(by)]);
    if (by == By::cancel) {
        cancel(actor, name);
        return true;
    }
    if (by == By::signal || by == By::jump) {
        for (int i = 0; i < 5000 && !finished(actor, 1); i++)
            signal_actor(actor, by == By::signal ? SIGUSR1 : SIGUSR2);
        show_result(actor, name, handle.fd, finish(actor));
        page.in_handler = 0;
        return true;
    }
    if (by == By::restart)
        for (int i = 0; i < 3 && !finished(actor, 1); i++) signal_actor(actor, SIGUSR2);
    const int o = add_object(Kind::tcp, link);
    Object& object = objects_[static_cast<size_t>(o)];
    ask_peer("connects", {Wish::connect, o, link, port, object.rx_key, object.tx_key});
    const Result r = finish(actor);
    show_result(actor, name, handle.fd, r);
    if (r.value < 0) return true;
    object.was_shared = handle.process != 0;
    add_handle(handle.process, r.value, o);
    settle(o);
    return true;
}

}  // namespace random_program
