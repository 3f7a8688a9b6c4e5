#pragma once

#include <ATen/core/ivalue.h>

#include <string_view>
#include <vector>

namespace bellows::models::exported {

/// A Python function on sizes, which torch.export writes into the graph between operators.
using SizeFunction = c10::IValue (*)(const std::vector<c10::IValue>& arguments);

/// A function with the number of its arguments.
struct NamedSizeFunction {
  std::string_view name;
  size_t arguments;
  SizeFunction function;
};

/// Returns null if the function is unknown. Integers stay integers.
/// Params: target – such as "_operator.floordiv", "torch.sym_max" or "math.trunc"
const NamedSizeFunction* find_size_function(std::string_view target);

}  // namespace bellows::models::exported
