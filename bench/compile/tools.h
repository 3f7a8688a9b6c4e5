#pragma once

#include "bench/support/bench.h"

namespace bellows::bench {

/// Forward passes and training steps of whole models, compiled, beside plain ones and the tools that Python has for it
/// (bench/peers/compile_tools.py).
void add_tool_rows(Report& report, const Options& options);

}  // namespace bellows::bench
