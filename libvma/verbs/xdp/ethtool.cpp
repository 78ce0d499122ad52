// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/verbs/xdp/ethtool.h"

#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <sys/socket.h>

#include <cstring>

#include "libvma/os/calls.h"
#include "libvma/os/raw_syscall.h"
#include "libvma/runtime/internal_fd.h"

namespace vma::verbs::xdp {
namespace {

// `question` begins with an ETHTOOL_* command, and gets the answer. False: there is none.
template <class Question>
bool ask_driver(const std::string& name, Question& question) noexcept {
    const InternalFd fd(os::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    ifreq request{};
    name.copy(request.ifr_name, sizeof request.ifr_name - 1);
    request.ifr_data = reinterpret_cast<char*>(&question);
    return fd && os::raw_syscall(SYS_ioctl, fd.get(), SIOCETHTOOL, &request) == 0;
}

}  // namespace

unsigned queues_in_use(const std::string& name) noexcept {
    ethtool_channels channels{};
    channels.cmd = ETHTOOL_GCHANNELS;
    return ask_driver(name, channels) ? channels.rx_count + channels.combined_count : 0;
}

std::string driver_of(const std::string& name) {
    ethtool_drvinfo info{};
    info.cmd = ETHTOOL_GDRVINFO;
    if (!ask_driver(name, info)) return {};
    return {info.driver, strnlen(info.driver, sizeof info.driver)};
}

bool segments_tcp(const std::string& name) noexcept {
    ethtool_value value{.cmd = ETHTOOL_GTSO, .data = 0};
    return ask_driver(name, value) && value.data != 0;
}

}  // namespace vma::verbs::xdp
