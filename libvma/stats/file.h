// SPDX-License-Identifier: BSD-2-Clause
// The statistics file on disk, or rather in a memory file system: made so that nobody can trick the library
// into writing somewhere else, and that nobody finds it half made.
//
// The directory may be reached through symlinks (/dev/shm is one in places), so it is what they lead to that
// counts: it must belong to root or to this process's user, and where others may write to it, it must be
// sticky. Inside, names are never followed: the file is made under a temporary name with O_EXCL and
// O_NOFOLLOW, and renamed. No descriptor is kept, so there is nothing that the program could close or hand on
// by mistake.
//
// One hazard remains. Whoever may open the file for writing (its owner and root, mode 0600) can truncate it,
// and then the next counter that is written raises SIGBUS. The seal that would forbid it (F_SEAL_SHRINK)
// exists for memfd files alone, which have no name in a directory; a file of tmpfs comes with F_SEAL_SEAL.
// The same users can kill the process, so nothing is lost.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <functional>
#include <string>

#include "libvma/runtime/error.h"

namespace vma::stats {

// Makes <directory>/<name> of `size` bytes and maps it: at `at` in place of what is mapped there, or anywhere
// where that is null. `fill` writes its contents before the file gets its name. A file of that name which
// belongs to this user is replaced. EEXIST: there is something else of that name. Calls the kernel directly.
Result<void*> make_file(const std::string& directory, const std::string& name, std::size_t size, void* at,
                        const std::function<void(void*)>& fill);

// Removes <directory>/<name> if it is a file of this user.
void remove_file(const std::string& directory, const std::string& name) noexcept;

}  // namespace vma::stats
