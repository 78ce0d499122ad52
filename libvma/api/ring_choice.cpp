// SPDX-License-Identifier: BSD-2-Clause
// Which rings a program's sockets get, where it says so itself: profiles, and SO_VMA_RING_ALLOC_LOGIC.
#include <string.h>

#include "libvma/api/calls.h"
#include "libvma/sockets/ring_place.h"

namespace vma::api {
namespace {

using sockets::UserMemory;

// All profiles that ask for an ordinary ring are one, as in VMA.
constexpr int kPacketProfile = 1;

bool known_logic(int logic) noexcept {
    switch (logic) {
        case RING_LOGIC_PER_INTERFACE:
        case RING_LOGIC_PER_IP:
        case RING_LOGIC_PER_SOCKET:
        case RING_LOGIC_PER_USER_ID:
        case RING_LOGIC_PER_THREAD:
        case RING_LOGIC_PER_CORE:
        case RING_LOGIC_PER_CORE_ATTACH_THREADS:
            return true;
        default:
            return false;
    }
}

}  // namespace

// A ring over memory of the program would have no buffers that the library may copy to, so there is none.
int vma_add_ring_profile(vma_ring_type_attr* profile, int* key) noexcept {
    preload::NotCancelled inside;
    if (!UserMemory::readable(profile, sizeof *profile) || !UserMemory::writable(key, sizeof *key))
        return answer(-EINVAL);
    vma_ring_type_attr wanted;
    memcpy(&wanted, profile, sizeof wanted);
    if (wanted.ring_type == VMA_RING_EXTERNAL_MEM) return answer(-EOPNOTSUPP);
    if (wanted.ring_type != VMA_RING_PACKET) return answer(-EINVAL);
    *key = kPacketProfile;
    return 0;
}

int choose_ring(int fd, const void* value, socklen_t length) noexcept {
    constexpr std::uint32_t kKnown = VMA_RING_ALLOC_MASK_RING_PROFILE_KEY | VMA_RING_ALLOC_MASK_RING_USER_ID |
                                     VMA_RING_ALLOC_MASK_RING_INGRESS | VMA_RING_ALLOC_MASK_RING_ENGRESS;
    vma_ring_alloc_logic_attr wanted;
    if (length != sizeof wanted || !UserMemory::readable(value, length)) return -EINVAL;
    memcpy(&wanted, value, sizeof wanted);
    auto given = [&](std::uint32_t bit) { return (wanted.comp_mask & bit) != 0; };
    if ((wanted.comp_mask & ~kKnown) != 0 || wanted.comp_mask == 0) return -EINVAL;
    int logic;
    memcpy(&logic, &wanted.ring_alloc_logic, sizeof logic);  // the program's value may be none of the enum's
    if (!known_logic(logic)) return -EINVAL;
    sockets::OwnRing own;
    own.choice.logic = static_cast<ring::Logic>(logic);
    own.profile_given = given(VMA_RING_ALLOC_MASK_RING_PROFILE_KEY);
    own.user_id_given = given(VMA_RING_ALLOC_MASK_RING_USER_ID);
    if (own.profile_given && wanted.ring_profile_key != kPacketProfile) return -EINVAL;
    if (own.profile_given) own.choice.profile = wanted.ring_profile_key;
    if (own.user_id_given) own.choice.user_id = wanted.user_id;
    const bool rx = given(VMA_RING_ALLOC_MASK_RING_INGRESS) && wanted.ingress;
    const bool tx = given(VMA_RING_ALLOC_MASK_RING_ENGRESS) && wanted.engress;
    own.rx = rx || !tx;
    own.tx = tx || !rx;
    preload::NotCancelled inside;
    auto socket = preload::ours(fd);
    sockets::ExtraSocket* const extra = socket ? socket->extra() : nullptr;
    return extra != nullptr ? extra->choose_ring(own) : -EINVAL;
}

}  // namespace vma::api
