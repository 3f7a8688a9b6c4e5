#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bellows/comm/shard_spec.h"

namespace bellows::checkpoint {

/// Elements of a tensor.
/// Throws: c10::ValueError – a negative size, more than an int64 counts; the text begins with `where`
int64_t checked_numel(const std::vector<int64_t>& sizes, const std::string& where);

/// Begin and count, where the part is one run of elements in row-major order.
std::optional<std::pair<int64_t, int64_t>> single_run(const comm::ShardSpec& spec);

/// Checks that the parts, all of them inside one tensor, hold every element of it exactly once.
/// Params: where – begins messages; who – names the holder of a part in them
/// Throws: c10::ValueError – which elements are held by nobody, or by whom twice
void check_tiling(const std::vector<const comm::ShardSpec*>& parts, const std::vector<int64_t>& sizes,
                  const std::string& where, const std::function<std::string(size_t)>& who);

}  // namespace bellows::checkpoint
