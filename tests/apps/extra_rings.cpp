// SPDX-License-Identifier: BSD-2-Clause
// Uses what the extra API has for the choice of rings: profiles, and SO_VMA_RING_ALLOC_LOGIC. The far side is
// "extra_rings peer", on the kernel.
#include <thread>

#include "extra_api.h"

namespace {

using namespace extra;

constexpr std::uint32_t kBoth = VMA_RING_ALLOC_MASK_RING_INGRESS | VMA_RING_ALLOC_MASK_RING_ENGRESS;

int choose(int fd, int logic, std::uint32_t mask = kBoth, std::uint32_t user_id = 0,
           std::uint32_t profile = 0) {
    vma_ring_alloc_logic_attr wanted{};
    wanted.comp_mask = mask;
    wanted.ring_alloc_logic = static_cast<ring_logic_t>(logic);
    wanted.user_id = user_id;
    wanted.ring_profile_key = profile;
    wanted.ingress = wanted.engress = 1;
    return setsockopt(fd, SOL_SOCKET, SO_VMA_RING_ALLOC_LOGIC, &wanted, sizeof wanted);
}
int unbound() {
    const int fd = socket(AF_INET, SOCK_DGRAM, 0);
    CHECK(fd >= 0);
    limit(fd, 5000);
    return fd;
}
int connected(int fd) {
    const sockaddr_in here = at(own, 0), there = at(peer, kUdpPort);
    CHECK(bind(fd, raw(here), sizeof here) == 0 && connect(fd, raw(there), sizeof there) == 0);
    return fd;
}
int ring_of(int fd) {
    int ring = -1;
    CHECK(api->get_socket_rings_fds(fd, &ring, 1) == 1);
    CHECK(api->get_socket_tx_ring_fd(fd, nullptr, 0) == ring);
    return ring;
}
void echoes(int fd, std::uint32_t seed) {
    char bytes[200];
    request(fd, 100, seed);
    CHECK(recv(fd, bytes, sizeof bytes, 0) == 100 && std::string(bytes, 100) == made(100, seed));
}

void profiles() {
    vma_ring_type_attr type{};
    int one = 0, two = 0;
    CHECK(api->vma_add_ring_profile(&type, &one) == 0 && one > 0);
    CHECK(api->vma_add_ring_profile(&type, &two) == 0 && two == one);
    type.ring_type = VMA_RING_EXTERNAL_MEM;
    CHECK_FAILS(api->vma_add_ring_profile(&type, &two), EOPNOTSUPP);
    CHECK_FAILS(api->vma_add_ring_profile(nullptr, &two), EINVAL);
    CHECK_FAILS(api->vma_add_ring_profile(&type, nullptr), EINVAL);
    const int fd = unbound();
    const std::uint32_t key = VMA_RING_ALLOC_MASK_RING_PROFILE_KEY | kBoth;
    CHECK_FAILS(choose(fd, RING_LOGIC_PER_SOCKET, key, 0, 4711), EINVAL);
    CHECK(choose(fd, RING_LOGIC_PER_SOCKET, key, 0, static_cast<std::uint32_t>(one)) == 0);
    echoes(connected(fd), 1);
}

void mistakes() {
    const int fd = unbound();
    for (const int logic : {2, 12, 21, 32, 4711, -1}) CHECK_FAILS(choose(fd, logic), EINVAL);
    for (const std::uint32_t mask : {0u, 16u, kBoth | 32u}) CHECK_FAILS(choose(fd, 10, mask), EINVAL);
    for (const socklen_t length : {0u, 4u, 19u, 21u})
        CHECK_FAILS(setsockopt(fd, SOL_SOCKET, SO_VMA_RING_ALLOC_LOGIC, &own, length), EINVAL);
    CHECK_FAILS(setsockopt(fd, SOL_SOCKET, SO_VMA_RING_ALLOC_LOGIC, nullptr, 20), EINVAL);
}

// Each socket says whose ring it is to have, in a process without such parameters.
void users() {
    const std::uint32_t mask = VMA_RING_ALLOC_MASK_RING_USER_ID | kBoth;
    int fds[4] = {unbound(), unbound(), unbound(), unbound()};
    const std::uint32_t ids[] = {7, 8, 7, 8};
    for (int i = 0; i < 4; i++) CHECK(choose(fds[i], RING_LOGIC_PER_USER_ID, mask, ids[i]) == 0);
    for (const int fd : fds) connected(fd);
    CHECK(ring_of(fds[0]) == ring_of(fds[2]) && ring_of(fds[1]) == ring_of(fds[3]));
    CHECK(ring_of(fds[0]) != ring_of(fds[1]));
    const int ordinary = udp();
    CHECK(ring_of(ordinary) != ring_of(fds[0]) && ring_of(ordinary) != ring_of(fds[1]));
    const int alone = unbound(), same_user = unbound();
    CHECK(choose(alone, RING_LOGIC_PER_SOCKET) == 0);
    connected(alone);
    for (const int fd : fds) CHECK(ring_of(alone) != ring_of(fd));
    CHECK(choose(same_user, RING_LOGIC_PER_USER_ID, VMA_RING_ALLOC_MASK_RING_USER_ID, 7) == 0);
    CHECK(ring_of(connected(same_user)) == ring_of(fds[0]));
    // A socket that has its ring moves.
    const int before = ring_of(ordinary);
    CHECK(choose(ordinary, RING_LOGIC_PER_USER_ID, mask, 8) == 0);
    CHECK(ring_of(ordinary) == ring_of(fds[1]) && ring_of(ordinary) != before);
    const int stream = tcp();
    CHECK(ring_of(stream) == before);
    echoes(stream, 3);
    CHECK(choose(stream, RING_LOGIC_PER_USER_ID, mask, 7) == 0 && ring_of(stream) == ring_of(fds[0]));
    echoes(stream, 4);
    std::uint32_t seed = 0;
    for (const int fd : {fds[0], fds[1], fds[2], fds[3], ordinary, alone, same_user}) echoes(fd, seed++);
}

// Two sockets with one rule (SO_REUSEADDR) cannot be told apart by the device.
void shared() {
    const int first = unbound(), second = unbound(), on = 1;
    CHECK(choose(first, RING_LOGIC_PER_SOCKET) == 0 && choose(second, RING_LOGIC_PER_SOCKET) == 0);
    const sockaddr_in here = at(own, 7100);
    for (const int fd : {first, second}) {
        CHECK(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0);
        CHECK(bind(fd, raw(here), sizeof here) == 0);
    }
    CHECK_FAILS(choose(first, RING_LOGIC_PER_SOCKET), EBUSY);
    close(second);
    CHECK(choose(first, RING_LOGIC_PER_SOCKET) == 0);
    const int listener = socket(AF_INET, SOCK_STREAM, 0);
    const sockaddr_in local = at(own, 7101);
    CHECK(bind(listener, raw(local), sizeof local) == 0 && listen(listener, 5) == 0);
    CHECK_FAILS(choose(listener, RING_LOGIC_PER_SOCKET), EBUSY);
}

}  // namespace

int main(int argc, char** argv) {
    return extra::run(argc, argv,
                      {{"profiles", profiles}, {"mistakes", mistakes}, {"users", users}, {"shared", shared}});
}
