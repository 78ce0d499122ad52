// SPDX-License-Identifier: BSD-2-Clause
// Uses the rest of the extra API: the table, rings, settings, socket options, dummy sends. Each case is a
// function; the far side is "extra_settings peer", on the kernel.
#include <dlfcn.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include <thread>

#include "extra_api.h"
#include "include/mellanox/vma_extra.hpp"
#include "include/mellanox/vma_extra2.h"

namespace {

using namespace extra;

constexpr std::uint64_t bit(unsigned n) { return std::uint64_t{1} << n; }

// Receives by the library now?
bool zero_copy(int fd) {
    for (int i = 0; i < 10; i++) {
        request(fd, 64, 1);
        Packet packet;
        CHECK(packet.receive(fd) >= 0);
        if (packet.held()) return packet.give_back(fd) == 0;
    }
    return false;
}

void table() {
    // As sockperf --load-vma finds it.
    using Getsockopt = int (*)(int, int, int, void*, socklen_t*);
    auto* const ask = reinterpret_cast<Getsockopt>(dlsym(RTLD_DEFAULT, "getsockopt"));
    vma_api_t* same = nullptr;
    socklen_t length = sizeof same;
    CHECK(ask(-1, SOL_SOCKET, SO_VMA_GET_API, &same, &length) == 0 && same == api && length == sizeof same);
    length = 4;
    CHECK_FAILS(getsockopt(-1, SOL_SOCKET, SO_VMA_GET_API, &same, &length), EBADF);
    CHECK_FAILS(getsockopt(-1, SOL_SOCKET, SO_ERROR, &same, &length), EBADF);
    CHECK_FAILS(getsockopt(-1, IPPROTO_IP, SO_VMA_GET_API, &same, &length), EBADF);

    const std::uint64_t works = bit(0) | bit(1) | bit(2) | bit(3) | bit(4) | bit(5) | bit(10) | bit(11) |
                                bit(12) | bit(13) | bit(16) | bit(20) | bit(21);
    CHECK(api->vma_extra_supported_mask == works);
    vma_completion_t completion;
    vma_packet_desc_t packets{};
    vma_buff_t buffer{};
    std::uint32_t memory_key = 0;
    int key = 0;
    CHECK_FAILS(api->socketxtreme_poll(3, &completion, 1, 0), EOPNOTSUPP);
    CHECK_FAILS(api->socketxtreme_free_vma_packets(&packets, 1), EOPNOTSUPP);
    CHECK_FAILS(api->socketxtreme_ref_vma_buff(&buffer), EOPNOTSUPP);
    CHECK_FAILS(api->socketxtreme_free_vma_buff(&buffer), EOPNOTSUPP);
    CHECK_FAILS(api->get_ring_direct_descriptors(3, nullptr), EOPNOTSUPP);
    CHECK_FAILS(api->register_memory_on_ring(3, &key, 4, &memory_key), EOPNOTSUPP);
    CHECK_FAILS(api->deregister_memory_on_ring(3, &key, 4), EOPNOTSUPP);
    CHECK_FAILS(api->ioctl(&key, sizeof key), EINVAL);
}

// ---- the program's memory for packets ----

std::size_t g_asked = 0;
int g_given = 0, g_freed = 0;
char* g_memory = nullptr;
void* give(std::size_t bytes) {
    g_given++;
    g_asked = bytes;
    g_memory = static_cast<char*>(mmap(nullptr, bytes + 4096, PROT_READ | PROT_WRITE,
                                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    return g_memory + 24;  // as from malloc(3): not where a page begins
}
void* give_nothing(std::size_t) { return nullptr; }
void* give_read_only(std::size_t bytes) {
    return mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}
void free_memory(void*) { g_freed++; }

struct Request {
    alignas(cmsghdr) char bytes[CMSG_SPACE(sizeof(vma_cmsg_ioctl_user_alloc_t))]{};
    explicit Request(vma_cmsg_ioctl_user_alloc_t what) {
        head().cmsg_level = SOL_SOCKET;
        head().cmsg_type = CMSG_VMA_IOCTL_USER_ALLOC;
        head().cmsg_len = CMSG_LEN(sizeof what);
        memcpy(bytes + CMSG_LEN(0), &what, sizeof what);
    }
    cmsghdr& head() { return *reinterpret_cast<cmsghdr*>(bytes); }
    int send() { return api->ioctl(bytes, sizeof bytes); }
};

void memory_errors() {
    constexpr std::uint8_t kBoth = VMA_IOCTL_USER_ALLOC_TX | VMA_IOCTL_USER_ALLOC_RX;
    CHECK_FAILS(api->ioctl(nullptr, 40), EINVAL);
    CHECK_FAILS(api->ioctl(reinterpret_cast<void*>(4096), sizeof(Request)), EFAULT);
    for (const vma_cmsg_ioctl_user_alloc_t wrong : {vma_cmsg_ioctl_user_alloc_t{0, give, free_memory},
                                                    vma_cmsg_ioctl_user_alloc_t{4, give, free_memory},
                                                    vma_cmsg_ioctl_user_alloc_t{kBoth, nullptr, free_memory},
                                                    vma_cmsg_ioctl_user_alloc_t{kBoth, give, nullptr}})
        CHECK_FAILS(Request(wrong).send(), EINVAL);
    Request message({kBoth, give, free_memory});
    for (const std::size_t length : {std::size_t{0}, sizeof(cmsghdr), sizeof message.bytes + 1, SIZE_MAX})
        CHECK_FAILS(api->ioctl(message.bytes, length), EINVAL);
    message.head().cmsg_len--;
    CHECK_FAILS(message.send(), EINVAL);
    Request other({kBoth, give, free_memory});
    other.head().cmsg_type++;
    CHECK_FAILS(other.send(), EINVAL);
    CHECK(g_given == 0);
    CHECK_FAILS(Request({kBoth, give_nothing, free_memory}).send(), ENOMEM);
    // Memory that cannot be written is left alone, and the library has its own.
    CHECK(Request({kBoth, give_read_only, free_memory}).send() == 0);
    CHECK_FAILS(Request({kBoth, give, free_memory}).send(), EINVAL);  // once
    CHECK(zero_copy(udp()));
}

void memory() {
    Request message({VMA_IOCTL_USER_ALLOC_RX, give, free_memory});
    CHECK(message.send() == 0 && g_given == 1);
    const int fd = udp();
    CHECK(zero_copy(fd));
    for (std::uint32_t i = 0; i < 20; i++) {
        request(fd, 1000, i);
        Packet packet;
        CHECK(packet.receive(fd) == 1000 && packet.held() && packet.content() == made(1000, i));
        const auto* const at = static_cast<char*>(packet.first().iov[0].iov_base);
        CHECK(at >= g_memory && at < g_memory + 24 + g_asked);
        CHECK(packet.give_back(fd) == 0);
    }
    CHECK_FAILS(message.send(), EINVAL);  // too late
    CHECK(g_given == 1 && g_freed == 0);
    // A child has none of it, and goes on.
    const pid_t child = fork();
    if (child == 0) {
        zero_copy(udp());  // by which way does not matter
        _exit(0);
    }
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(zero_copy(fd));
}

void rings() {
    int fds[4] = {-1, -1, -1, -1};
    const int unbound = socket(AF_INET, SOCK_DGRAM, 0), plain = socket(AF_UNIX, SOCK_STREAM, 0);
    CHECK(api->get_socket_rings_num(unbound) == 0);
    CHECK(api->get_socket_rings_fds(unbound, fds, 4) == 0 && fds[0] == -1);
    CHECK_FAILS(api->get_socket_rings_num(plain), EINVAL);
    CHECK_FAILS(api->get_socket_rings_num(999), EINVAL);
    CHECK_FAILS(api->get_socket_rings_fds(unbound, nullptr, 4), EINVAL);
    CHECK_FAILS(api->get_socket_rings_fds(unbound, fds, 0), EINVAL);
    CHECK_FAILS(api->get_socket_rings_fds(plain, fds, 4), EINVAL);
    const int stream = socket(AF_INET, SOCK_STREAM, 0);
    const sockaddr_in here = at(own, 7001);
    CHECK(bind(stream, raw(here), sizeof here) == 0 && api->get_socket_rings_num(stream) == 0);
    CHECK(listen(stream, 5) == 0 && api->get_socket_rings_num(stream) == 1);

    const int fd = udp(), connection = tcp();
    CHECK(zero_copy(fd));
    CHECK(api->get_socket_rings_num(fd) == 1 && api->get_socket_rings_fds(fd, fds, 4) == 1);
    CHECK(api->get_socket_rings_num(connection) == 1);
    const int ring = fds[0];
    CHECK(ring >= 0 && ring != fd);
    // Readable when something has come.
    vma_modify_ring_attr modify{};
    modify.comp_bit_mask = VMA_MODIFY_RING_CQ_ARM;
    modify.ring_fd = ring;
    CHECK(api->vma_modify_ring(&modify) == 0);
    request(fd, 64, 1);
    pollfd wait{ring, POLLIN, 0};
    CHECK(poll(&wait, 1, 5000) == 1);
    const int set = epoll_create1(0);
    epoll_event event{EPOLLIN, {.fd = ring}};
    CHECK(epoll_ctl(set, EPOLL_CTL_ADD, ring, &event) == 0 && epoll_wait(set, &event, 1, 5000) == 1);
    Packet packet;
    CHECK(packet.receive(fd) == 64 && packet.give_back(fd) == 0);
    modify.comp_bit_mask = VMA_MODIFY_RING_CQ_MODERATION;
    modify.cq_moderation = {8, 50};
    CHECK(api->vma_modify_ring(&modify) == 0);
    CHECK(zero_copy(fd));
    modify.comp_bit_mask = 4;
    CHECK_FAILS(api->vma_modify_ring(&modify), EOPNOTSUPP);
    modify.comp_bit_mask = 0;
    CHECK_FAILS(api->vma_modify_ring(&modify), EINVAL);
    modify = {VMA_MODIFY_RING_CQ_ARM, fd, {}};
    CHECK_FAILS(api->vma_modify_ring(&modify), EINVAL);
    CHECK_FAILS(api->vma_modify_ring(nullptr), EINVAL);

    sockaddr_in to = at(peer, kUdpPort), local = at("127.0.0.1", 1), nobody = at("0.0.0.0", 0);
    auto* const name = reinterpret_cast<sockaddr*>(&to);
    CHECK(api->get_socket_tx_ring_fd(fd, nullptr, 0) == ring);
    CHECK(api->get_socket_tx_ring_fd(fd, name, sizeof to) == ring);
    CHECK_FAILS(api->get_socket_tx_ring_fd(fd, reinterpret_cast<sockaddr*>(&local), sizeof local), ENODATA);
    CHECK_FAILS(api->get_socket_tx_ring_fd(fd, reinterpret_cast<sockaddr*>(&nobody), sizeof nobody), EINVAL);
    CHECK_FAILS(api->get_socket_tx_ring_fd(fd, name, 3), EINVAL);
    CHECK_FAILS(api->get_socket_tx_ring_fd(unbound, nullptr, 0), EINVAL);
    CHECK_FAILS(api->get_socket_tx_ring_fd(plain, name, sizeof to), EINVAL);

    unsigned char header[128];
    for (const auto& [socket, size, protocol] :
         {std::tuple{fd, std::uint16_t{42}, 17}, {connection, std::uint16_t{54}, 6}}) {
        std::uint16_t length = 0;
        CHECK(api->get_socket_network_header(socket, nullptr, &length) == 0 && length == size);
        length = static_cast<std::uint16_t>(size - 1);
        CHECK_FAILS(api->get_socket_network_header(socket, header, &length), ENOBUFS);
        length = sizeof header;
        CHECK(api->get_socket_network_header(socket, header, &length) == 0 && length == size);
        CHECK(header[12] == 8 && header[13] == 0 && header[14] == 0x45 && header[23] == protocol);
        const sockaddr_in there = at(peer, protocol == 17 ? kUdpPort : kTcpPort);
        CHECK(memcmp(header + 30, &there.sin_addr, 4) == 0 && memcmp(header + 36, &there.sin_port, 2) == 0);
    }
    std::uint16_t length = sizeof header;
    CHECK_FAILS(api->get_socket_network_header(unbound, header, &length), ENOTCONN);
    CHECK_FAILS(api->get_socket_network_header(fd, header, nullptr), EINVAL);
    CHECK_FAILS(api->get_socket_network_header(plain, header, &length), EINVAL);
}

void settings() {
    CHECK_FAILS(api->add_conf_rule(nullptr), EINVAL);
    for (const char* wrong :
         {"", "# nothing", "use os udp_sender", "use os udp_postman *:53", "log { min-level 1 }"})
        CHECK_FAILS(api->add_conf_rule(wrong), EINVAL);
    const int before = udp();
    CHECK(zero_copy(before));
    CHECK(api->add_conf_rule("use os udp_connect *:6000") == 0);
    const int after = udp();
    CHECK(!zero_copy(after));
    CHECK(zero_copy(before));
    CHECK(api->add_conf_rule("use vma udp_connect *:6000") == 0);  // before the other one
    CHECK(zero_copy(udp()));

    CHECK(api->thread_offload(0, pthread_self()) == 0);
    const int kernels = udp();
    CHECK(!zero_copy(kernels));
    CHECK_FAILS(api->get_socket_rings_num(kernels), EINVAL);
    std::thread([] { CHECK(zero_copy(udp())); }).join();
    CHECK(api->thread_offload(1, pthread_self()) == 0);
    CHECK(zero_copy(udp()));

    CHECK(api->dump_fd_stats(before, 4) == 0);
    CHECK(api->dump_fd_stats(0, 4) == 0);
    CHECK_FAILS(api->dump_fd_stats(999, 4), EINVAL);
    CHECK_FAILS(api->dump_fd_stats(before, 1000), EINVAL);
    CHECK_FAILS(api->dump_fd_stats(-1, 4), EINVAL);

    vma_ring_alloc_logic_attr logic{};
    auto set = [&](int name, const void* value, socklen_t length) {
        return setsockopt(before, SOL_SOCKET, name, value, length);
    };
    logic.comp_mask = VMA_RING_ALLOC_MASK_RING_INGRESS;
    logic.ingress = 1;
    CHECK(set(SO_VMA_RING_ALLOC_LOGIC, &logic, sizeof logic) == 0);
    CHECK_FAILS(set(SO_VMA_RING_ALLOC_LOGIC, &logic, sizeof logic - 1), EINVAL);
    logic.ring_alloc_logic = RING_LOGIC_PER_SOCKET;  // the interface was opened for one ring: it is shared
    CHECK(set(SO_VMA_RING_ALLOC_LOGIC, &logic, sizeof logic) == 0);
    logic.comp_mask = 32;
    CHECK_FAILS(set(SO_VMA_RING_ALLOC_LOGIC, &logic, sizeof logic), EINVAL);
    const std::uint32_t tag = 7;
    CHECK(set(SO_VMA_FLOW_TAG, &tag, sizeof tag) == 0);
    CHECK_FAILS(set(SO_VMA_FLOW_TAG, &tag, 2), EINVAL);
    CHECK_FAILS(set(SO_VMA_USER_DATA, &tag, sizeof tag), EINVAL);
    CHECK_FAILS(set(SO_VMA_USER_DATA, &logic, sizeof(void*)), EOPNOTSUPP);
    // Frames come to the kernel's socket from then on; see options() of extra_poll.cpp.
    const int shut = udp();
    CHECK(setsockopt(shut, SOL_SOCKET, SO_VMA_SHUTDOWN_RX, &tag, sizeof tag) == 0 && !zero_copy(shut));
    CHECK(zero_copy(before));
}

// Nothing arrives of it: the next real message is the next one that comes back.
void dummy() {
    const int fd = udp(), stream = tcp();
    CHECK(zero_copy(fd));
    char bytes[200];
    for (int i = 0; i < 100; i++) {
        CHECK(send(fd, bytes, sizeof bytes, VMA_SND_FLAGS_DUMMY) == sizeof bytes);
        CHECK(send(stream, bytes, sizeof bytes, VMA_SND_FLAGS_DUMMY) == sizeof bytes);
    }
    request(fd, 77, 5);
    CHECK(recv(fd, bytes, sizeof bytes, 0) == 77 && std::string(bytes, 77) == made(77, 5));
    request(stream, 77, 5);
    CHECK(recv(stream, bytes, sizeof bytes, 0) == 77 && std::string(bytes, 77) == made(77, 5));
    CHECK(recv(fd, bytes, sizeof bytes, MSG_DONTWAIT) < 0 &&
          recv(stream, bytes, sizeof bytes, MSG_DONTWAIT) < 0);
    const pid_t child = fork();
    if (child == 0) _exit(api->get_socket_rings_num(999) < 0 ? 0 : 1);
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

// Many datagrams with one call, and the C++ types.
void many() {
    vma_api2_t* const api2 = vma_get_api2();
    CHECK(api2 != nullptr && VMA_API2_HAS(api2, sendmany));
    const int fd = udp();
    CHECK(zero_copy(fd));
    std::vector<std::string> sent;
    std::vector<iovec> datagrams;
    for (std::uint32_t i = 0; i < 32; i++) sent.push_back(made(100 + i, i));
    for (std::string& datagram : sent) datagrams.push_back({datagram.data(), datagram.size()});
    const sockaddr_in to = at(peer, kUdpPort);
    for (int round = 0; round < 20; round++) {
        const bool named = round % 2 == 0;
        CHECK(api2->sendmany(fd, datagrams.data(), 32, 0, named ? raw(to) : nullptr, named ? sizeof to : 0) ==
              32);
        for (const std::string& datagram : sent) {
            vma_extra::Packet packet;
            CHECK(vma_extra::Receiver(api, fd).receive(packet) == static_cast<int>(datagram.size()));
            CHECK(packet.bytes() == datagram.size() && packet.pieces().size() == 1);
            CHECK(memcmp(packet.pieces()[0].iov_base, datagram.data(), datagram.size()) == 0);
            vma_extra::Packet other(std::move(packet));
            CHECK(other && !packet);
        }
    }
    CHECK(api2->sendmany(fd, datagrams.data(), 0, 0, nullptr, 0) == 0);
    CHECK_FAILS(api2->sendmany(fd, nullptr, 3, 0, nullptr, 0), EFAULT);
    CHECK_FAILS(api2->sendmany(999, datagrams.data(), 3, 0, nullptr, 0), EBADF);
    datagrams[3] = {nullptr, 10};
    CHECK(api2->sendmany(fd, datagrams.data(), 32, 0, nullptr, 0) == 3);
    CHECK_FAILS(api2->sendmany(fd, datagrams.data() + 3, 2, 0, nullptr, 0), EFAULT);
    for (int i = 0; i < 3; i++) {
        char bytes[200];
        CHECK(recv(fd, bytes, sizeof bytes, 0) == 100 + i);
    }
    int seen = 0;
    {
        vma_extra::Callback judge(api, fd, [&](std::span<iovec>, vma_info_t&) {
            seen++;
            return VMA_PACKET_RECV;
        });
        CHECK(judge.registered());
        request(fd, 10, 1);
        char bytes[200];
        CHECK(recv(fd, bytes, sizeof bytes, 0) == 10 && seen == 1);
    }
    request(fd, 10, 1);
    char bytes[200];
    CHECK(recv(fd, bytes, sizeof bytes, 0) == 10 && seen == 1);
}

}  // namespace

int main(int argc, char** argv) {
    return extra::run(argc, argv,
                      {{"table", table},
                       {"memory", memory},
                       {"memory_errors", memory_errors},
                       {"rings", rings},
                       {"settings", settings},
                       {"dummy", dummy},
                       {"many", many}});
}
