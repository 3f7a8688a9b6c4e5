#pragma once

#include "bench/support/bench.h"

namespace bellows::bench {

/// Compares compiled forward passes and training steps of complete models with plain ones and with Python's compilers
/// (bench/peers/compile_tools.py). A compiler that does not support a task is left out. If a task fails, its row contains the error.
/// Kernels are stored in a folder that only this run uses.
void add_tool_rows(Report& report, const Options& options);

/// The process that measures "time until ready". For each line on its standard input, it answers with two times in seconds: from the first
/// call of the task's compiled function until all compilation is finished, and the time of the same number of plain calls.
int serve_ready(const std::string& task);

}  // namespace bellows::bench
