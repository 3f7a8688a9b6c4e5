#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace bellows::comm {

/// Expands SLURM's short form of a node list: "gpu[01-03,7],login" becomes gpu01, gpu02, gpu03, gpu7 and login. If a
/// name has several brackets, all combinations are generated, and the last bracket varies fastest.
/// Throws: c10::ValueError if brackets do not match, if a range is invalid or descending, or if there are more than
///         100,000 names
/// Ref:    scontrol show hostnames
std::vector<std::string> expand_node_list(std::string_view list);

}  // namespace bellows::comm
