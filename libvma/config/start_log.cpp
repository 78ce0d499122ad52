// SPDX-License-Identifier: BSD-2-Clause
// Opening the log needs parameters, and reading parameters needs the log for its complaints. So the log takes
// plain settings (runtime/log.h), and the parameters, a layer above, hand them down here.
#include <atomic>

#include "libvma/config/params.h"
#include "libvma/runtime/log.h"

namespace vma::log {

void start() noexcept {
    static constinit std::atomic<bool> done{false};
    const config::Params& params =
        config::get();  // the first get() of the process comes back here, and is then done
    if (done.exchange(true)) return;
    configure({.level = parse_level(params.tracelevel).value_or(Level::info),
               .details = static_cast<int>(params.log_details),
               .colors = params.log_colors != 0,
               .file = params.log_file});
}

}  // namespace vma::log
