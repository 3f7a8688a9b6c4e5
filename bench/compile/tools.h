#pragma once

#include "bench/support/bench.h"

namespace bellows::bench {

/// Forward passes and training steps of whole models, compiled, beside plain ones and the tools that Python has for it
/// (bench/peers/compile_tools.py). A tool that does not do a task is left out, and a task that fails is a row that says so.
/// Kernels are kept in a folder of this run alone.
void add_tool_rows(Report& report, const Options& options);

/// The other side of the rows' "ready after", a process of its own: answers each line on its standard input with the seconds from the first call
/// of the task's compiled function until nothing more is being made, and those of as many plain calls.
int serve_ready(const std::string& task);

}  // namespace bellows::bench
