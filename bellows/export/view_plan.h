#pragma once

#include <optional>
#include <string>
#include <vector>

#include "bellows/export/sizes.h"
#include "bellows/graph/recording/geometry.h"

namespace bellows::export_detail {

/// How a view is computed from the tensor whose memory it shows, in steps that do not depend on memory: transpose,
/// reshape, slice, transpose, insert dims of size 1, expand. Steps that change nothing are empty.
struct ViewPlan {
  /// A part of one dim: `size` elements from `start` on, `step` apart.
  struct Slice {
    int64_t start = 0, size = 0, step = 1, of = 0;
    bool select = false;  ///< a single element, and the dim is removed
    bool whole() const { return start == 0 && size == of && step == 1 && !select; }
  };

  std::vector<int64_t> memory_order{};          ///< dims of the tensor in the order of their strides
  std::optional<std::vector<int64_t>> sizes{};  ///< after the reshape
  std::vector<Slice> slices{};                  ///< one for each dim after the reshape; empty if all are whole
  std::vector<int64_t> order{};                 ///< dims after the slices, in the order of the view
  std::vector<int64_t> inserted{};              ///< positions of dims of size 1 in the view
  std::vector<int64_t> expanded{};              ///< sizes of the view

  bool is_identity() const {
    return memory_order.empty() && !sizes && slices.empty() && order.empty() && inserted.empty() && expanded.empty();
  }
};

/// Plans a view of a tensor with the geometry `base`.
/// Returns: nothing if the view is not composed of these steps, for example if its elements overlap
std::optional<ViewPlan> plan_view(const graph::Geometry& base, const graph::Geometry& view);

}  // namespace bellows::export_detail
