#pragma once

#include <optional>
#include <string>
#include <vector>

#include "bellows/export/sizes.h"
#include "bellows/export/view_plan.h"

namespace bellows::export_detail {

/// A part of one dim, in all recordings.
struct VariedSlice {
  size_t dim = 0;
  Varied start{};
  Varied end{};  ///< behind the last element
  Varied of{};   ///< size of the dim
  Varied step{};
  bool select = false;  ///< a single element, and the dim is removed

  bool whole() const { return start.is(0) && end == of && step.is(1) && !select; }
  /// Whether no further element lies between the last one and the end of the dim.
  bool to_end() const;
};

/// A view in all recordings, with the same steps in each of them. See ViewPlan for the steps.
struct VariedView {
  std::vector<int64_t> memory_order{};
  std::optional<VariedSizes> sizes{};
  std::vector<VariedSlice> slices{};  ///< one for each dim after the reshape; empty if all are whole
  std::vector<int64_t> order{}, inserted{};
  VariedSizes expanded{};

  bool is_reshape() const {
    return memory_order.empty() && slices.empty() && order.empty() && inserted.empty() && expanded.empty();
  }
};

/// A view, or the reason why there is none, and an advice.
struct VariedViewResult {
  std::optional<VariedView> view{};
  std::string problem{}, advice{};
};

/// Plans a view of a tensor.
/// Params: base, wanted – geometries in all recordings
VariedViewResult plan_views(const std::vector<graph::Geometry>& base, const std::vector<graph::Geometry>& wanted);

}  // namespace bellows::export_detail
