#pragma once

#include <cstdint>
#include <string>

#include "bellows/report/trace_writer.h"

namespace bellows {

/// The rank whose trace is written.
struct TensorboardRank {
  int rank = 0, ranks = 1;
  int64_t time_ms = 0;  ///< Unix time that distinguishes the traces of a folder. All ranks need the same one
};

/// Returns a trace of inspect::StepTracer in the form that torch.profiler writes, with its categories and names. The time
/// in the scope "load" is that of a DataLoader, and recorded collectives are those of Gloo.
std::string tensorboard_trace(const TraceWriter& trace, const TensorboardRank& rank);

/// Writes this trace to `<folder>/rank_<rank>.<time>.pt.trace.json`. TensorBoard shows the folder with the plugin
/// torch-tb-profiler. Creates a missing folder.
/// Returns: the path of the file
/// Throws:  c10::Error if writing fails (the message has the path and the reason)
/// Ref:     torch.profiler.tensorboard_trace_handler
std::string write_tensorboard_trace(const std::string& folder, const TraceWriter& trace, const TensorboardRank& rank);

}  // namespace bellows
