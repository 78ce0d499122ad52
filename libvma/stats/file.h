// SPDX-License-Identifier: BSD-2-Clause
// Makes the statistics file on disk, or rather in a memory file system. No other user can trick the library
// into writing elsewhere, and no reader finds the file half made.
//
// The directory may be reached through symlinks (/dev/shm is one in places), so their target counts. It must
// belong to root or to this process's user. Where others may write to it, it must be sticky. Inside, names
// are never followed: the file is made under a temporary name with O_EXCL and O_NOFOLLOW, and renamed. The
// library keeps no descriptor that the program could close or pass on by mistake.
//
// One hazard remains. The file's owner and root may open it for writing (mode 0600) and can truncate it. Then
// the next write to a counter raises SIGBUS. The seal against that (F_SEAL_SHRINK) exists for memfd files
// alone, which have no name in a directory; a file of tmpfs comes with F_SEAL_SEAL. The same users can kill
// the process, so the hazard gives them nothing new.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <functional>
#include <string>

#include "libvma/runtime/error.h"

namespace vma::stats {

// Makes <directory>/<name> of `size` bytes and maps it: at `at` in place of the old mapping, or anywhere if
// `at` is null. `fill` writes its contents before the file gets its name. The new file replaces a file of
// that name which belongs to this user. EEXIST: the name is another user's file, or a directory. Calls the
// kernel directly.
Result<void*> make_file(const std::string& directory, const std::string& name, std::size_t size, void* at,
                        const std::function<void(void*)>& fill);

// Removes <directory>/<name> if it is a file of this user.
void remove_file(const std::string& directory, const std::string& name) noexcept;

}  // namespace vma::stats
