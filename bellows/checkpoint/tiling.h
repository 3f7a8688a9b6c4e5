#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bellows/comm/shard_spec.h"

namespace bellows::checkpoint {

/// Returns the number of elements of a tensor.
/// Throws: c10::ValueError if a size is negative or the product exceeds an int64. `where` is the start of the message
int64_t checked_numel(const std::vector<int64_t>& sizes, const std::string& where);

/// If the part is a single run of elements in row-major order, returns the begin and count of the run. Otherwise,
/// returns nothing.
std::optional<std::pair<int64_t, int64_t>> single_run(const comm::ShardSpec& spec);

/// Checks that the parts of a tensor contain each of its elements exactly once. All parts must be inside the tensor.
/// Params: where – start of the error messages
///         who – returns the name of the process or file that holds a part, for error messages
/// Throws: c10::ValueError if elements are missing or in two parts. The message states the elements and who holds them
void check_tiling(const std::vector<const comm::ShardSpec*>& parts, const std::vector<int64_t>& sizes,
                  const std::string& where, const std::function<std::string(size_t)>& who);

}  // namespace bellows::checkpoint
