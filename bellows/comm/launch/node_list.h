#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace bellows::comm {

/// The names behind SLURM's short form of a list: "gpu[01-03,7],login" are gpu01, gpu02, gpu03, gpu7 and login. Several
/// brackets in one name give every combination, the last one fastest.
/// Throws: c10::ValueError – brackets that do not match, ranges that are none or run backwards, more than 100,000 names
/// Ref:    scontrol show hostnames
std::vector<std::string> expand_node_list(std::string_view list);

}  // namespace bellows::comm
