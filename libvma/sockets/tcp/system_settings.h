// SPDX-License-Identifier: BSD-2-Clause
// The system's settings for TCP (sysctl), in the network namespace of the thread that reads them.
//
// The kernel reads most of them whenever it needs one. Here a socket looks when it is made, connects, listens
// or accepts. To read all files takes some 50 us, so one reading serves for kSettingsFresh. A look that finds
// the settings unchanged costs a look at the clock.
#pragma once

#include <cstdint>

#include "libvma/runtime/clock.h"

namespace vma::sockets {

struct SystemSettings {
#define VMA_TCP_SETTING(name, file, otherwise) long name = otherwise;
#include "libvma/sockets/tcp/system_settings.def"
    bool operator==(const SystemSettings&) const = default;
};

inline constexpr clock::Msec kSettingsFresh{10};

// A number that changes with the settings; never 0. Reads them, if the last reading is older than
// kSettingsFresh. Any thread, signal handlers too; errno untouched.
std::uint32_t settings_number() noexcept;
SystemSettings system_settings() noexcept;

}  // namespace vma::sockets
