#pragma once

#include <string>
#include <vector>

#include "bench/support/bench.h"

namespace bellows::bench {

/// Rows as a Markdown table, as it stands in bench/results: a column a side, the ratio to the best of the others, the limit; notes below.
std::string markdown_table(const std::vector<Row>& rows);

}  // namespace bellows::bench
