#pragma once

#include <string>
#include <vector>

#include "bench/support/bench.h"

namespace bellows::bench {

/// Returns the rows as a Markdown table for bench/results: one column per side, the ratio to the best other
/// side, the limit, and notes below.
std::string markdown_table(const std::vector<Row>& rows);

}  // namespace bellows::bench
