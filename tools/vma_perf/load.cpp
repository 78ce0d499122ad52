// SPDX-License-Identifier: BSD-2-Clause
#include "tools/vma_perf/load.h"

namespace vma_perf {

Load::Load(Lane& lane, const Params& params, const Work& work)
    : lane_(lane),
      params_(params),
      work_(work),
      writer_(params, work.thread),
      schedule_(params.rate * params.lane_connections(work.thread) / params.connections, params.burst,
                static_cast<double>(work.thread) / params.threads) {}

Span Load::run(Recorder& recorder) {
    recorder_ = nullptr;
    if (params_.warmup > 0) start_part(params_.warmup, 0);
    recorder_ = &recorder;
    return start_part(params_.seconds, work_.iterations);
}

Span Load::start_part(double seconds, std::uint64_t iterations) {
    now_ = now();
    end_ = iterations == 0 ? now_ + static_cast<std::int64_t>(seconds * 1e9) : INT64_MAX;
    left_ = iterations == 0 ? kUnlimited : iterations;
    schedule_.start(now_);
    if (recorder_ != nullptr) recorder_->begin(now_);
    return part();
}

std::unique_ptr<Load> make_load(Lane& lane, const Params& params, const Work& work) {
    return params.throughput ? make_throughput(lane, params, work) : make_pingpong(lane, params, work);
}

}  // namespace vma_perf
