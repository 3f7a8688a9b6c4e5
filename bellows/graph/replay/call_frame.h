#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <string>
#include <vector>

namespace bellows::graph {

/// When a region replays calls. A replayed call runs the program of the previous call without calling the function.
struct ReplayOptions {
  /// Number of consecutive identical calls after which calls are replayed; at least 2. 0 turns replay off.
  int after = 0;
  /// Every `verify_every`-th call runs the function, to check that it still does the same; at least 2.
  int verify_every = 64;
};

/// The parts of a call that a region needs for a replay, in addition to the tensor arguments.
struct CallFrame {
  /// The bytes of all arguments that are not tensors. A replay requires that they are the same.
  std::string values{};
  /// The reason why the call cannot be replayed, such as an argument or a result of an unsupported type. Empty if there
  /// is none.
  std::string unsupported{};
  /// The tensors that the function returned. The function sets them, and the caller keeps exactly one other reference to
  /// each of them. A replay sets them instead of the function.
  std::vector<at::Tensor> returned{};
  std::vector<size_t> lengths{};  ///< of the lists among the returned tensors, in order
};

}  // namespace bellows::graph
