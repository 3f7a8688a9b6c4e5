#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bellows/comm/shard_spec.h"

namespace bellows::checkpoint {

/// Number of elements of a tensor.
/// Throws: c10::ValueError if a size is negative or the product exceeds an int64; `where` is the start of the message
int64_t checked_numel(const std::vector<int64_t>& sizes, const std::string& where);

/// Returns begin and count if the part is a single run of elements in row-major order.
std::optional<std::pair<int64_t, int64_t>> single_run(const comm::ShardSpec& spec);

/// Checks that the parts of a tensor contain each of its elements exactly once. All parts must be inside the tensor.
/// Params: where – start of the messages; who – names the holder of a part in them
/// Throws: c10::ValueError if elements are missing or held twice (the message has the elements and the holders)
void check_tiling(const std::vector<const comm::ShardSpec*>& parts, const std::vector<int64_t>& sizes,
                  const std::string& where, const std::function<std::string(size_t)>& who);

}  // namespace bellows::checkpoint
