#include "bellows/export/varied_view.h"

#include <algorithm>
#include <utility>

#include "bellows/export/recorded_graph.h"

namespace bellows::export_detail {

namespace {

using graph::Geometry;

/// A number of a slice, for all recordings.
template <class Number>
Varied varied_of(const std::vector<ViewPlan>& plans, size_t dim, const Number& number) {
  Varied result;
  result.values.reserve(plans.size());
  for (const ViewPlan& plan : plans) result.values.push_back(number(plan.slices[dim]));
  return result;
}

bool alike(const std::vector<ViewPlan>& plans, size_t dims) {
  const ViewPlan& first = plans[0];
  return std::all_of(plans.begin(), plans.end(), [&](const ViewPlan& plan) {
    return plan.memory_order == first.memory_order && !!plan.sizes == !!first.sizes &&
           (!first.sizes || plan.sizes->size() == first.sizes->size()) && plan.order == first.order &&
           plan.inserted == first.inserted && plan.expanded.size() == first.expanded.size() &&
           (plan.slices.empty() || plan.slices.size() == dims);
  });
}

/// A slice that is whole for some sizes is a slice for all of them.
void fill_slices(std::vector<ViewPlan>& plans, size_t dims, const VariedSizes& sizes) {
  for (size_t recording = 0; recording < plans.size(); ++recording) {
    ViewPlan& plan = plans[recording];
    for (size_t i = plan.slices.size(); i < dims; ++i) {
      const int64_t of = sizes[i].values[recording];
      plan.slices.push_back({.start = 0, .size = of, .step = 1, .of = of});
    }
  }
}

VariedSizes reshaped_sizes(const std::vector<ViewPlan>& plans) {
  VariedSizes sizes(plans[0].sizes->size());
  for (const ViewPlan& plan : plans) {
    for (size_t i = 0; i < sizes.size(); ++i) sizes[i].values.push_back((*plan.sizes)[i]);
  }
  return sizes;
}

VariedView combined(std::vector<ViewPlan> plans, size_t dims, const std::vector<Geometry>& base,
                    const std::vector<Geometry>& wanted) {
  VariedView view{.memory_order = plans[0].memory_order, .order = plans[0].order, .inserted = plans[0].inserted};
  VariedSizes sizes = sizes_of(base);
  if (!view.memory_order.empty()) {
    VariedSizes permuted;
    for (const int64_t dim : view.memory_order) permuted.push_back(sizes[dim]);
    sizes = permuted;
  }
  if (plans[0].sizes) {
    sizes = reshaped_sizes(plans);
    view.sizes = sizes;
  }
  fill_slices(plans, dims, sizes);
  for (size_t i = 0; i < dims; ++i) {
    view.slices.push_back(
        {.dim = i,
         .start = varied_of(plans, i, [](const ViewPlan::Slice& one) { return one.start; }),
         .end =
             varied_of(plans, i, [](const ViewPlan::Slice& one) { return one.start + (one.size - 1) * one.step + 1; }),
         .of = varied_of(plans, i, [](const ViewPlan::Slice& one) { return one.of; }),
         .step = varied_of(plans, i, [](const ViewPlan::Slice& one) { return one.step; }),
         .select = plans[0].slices[i].select});
  }
  if (!plans[0].expanded.empty()) view.expanded = sizes_of(wanted);
  return view;
}

}  // namespace

bool VariedSlice::to_end() const {
  for (size_t i = 0; i < end.values.size(); ++i) {
    if (end.values[i] > of.values[i] || end.values[i] + step.values[i] <= of.values[i]) return false;
  }
  return true;
}

VariedViewResult plan_views(const std::vector<Geometry>& base, const std::vector<Geometry>& wanted) {
  std::vector<ViewPlan> plans;
  for (size_t i = 0; i < wanted.size(); ++i) {
    auto plan = plan_view(base[i], wanted[i]);
    if (!plan)
      return {.problem = "the view " + wanted[i].text() + " of a tensor " + base[i].text() + " cannot be expressed",
              .advice = "Use reshape(), transpose(), slice() and expand() instead of as_strided() or unfold()."};
    plans.push_back(std::move(*plan));
  }
  size_t dims = 0;
  for (const ViewPlan& plan : plans) dims = std::max(dims, plan.slices.size());
  if (!alike(plans, dims))
    return {.problem = "the view " + wanted[0].text() + " of a tensor " + base[0].text() +
                       " has another structure for other sizes of the inputs",
            .advice = "Use other example sizes (`sizes`), or do not let the axis vary."};
  return {.view = combined(std::move(plans), dims, base, wanted)};
}

}  // namespace bellows::export_detail
