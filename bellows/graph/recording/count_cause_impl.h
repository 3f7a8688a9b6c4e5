#pragma once

#include <string>
#include <vector>

#include "bellows/graph/program/explanation.h"

namespace bellows::graph::detail {

void count_cause(std::vector<Explanation::Cause>& causes, const std::string& op, const std::string& why,
                 const std::string& site, int64_t times = 1);

}  // namespace bellows::graph::detail
