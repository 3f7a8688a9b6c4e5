// Views of values, and writes to parts of them.
#include <algorithm>
#include <limits>
#include <utility>

#include "bellows/export/aten/translation.h"
#include "bellows/graph/program/program_edit.h"

namespace bellows::aten_export {

using export_detail::sizes_of;
using export_detail::VariedSlice;
using export_detail::VariedView;
using graph::Geometry;

namespace {

constexpr int64_t end_of_dim = std::numeric_limits<int64_t>::max();

/// Returns the order of dims from the largest stride to the smallest.
std::vector<int64_t> memory_order(const Geometry& geometry) {
  std::vector<int64_t> order;
  for (size_t i = 0; i < geometry.sizes.size(); ++i) order.push_back(static_cast<int64_t>(i));
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return geometry.strides[a] > geometry.strides[b]; });
  return order;
}

Geometry permuted_geometry(const Geometry& geometry, const std::vector<int64_t>& order) {
  Geometry result = geometry;
  for (size_t i = 0; i < order.size(); ++i) {
    result.sizes[i] = geometry.sizes[order[i]];
    result.strides[i] = geometry.strides[order[i]];
  }
  return result;
}

std::vector<int64_t> inverse(const std::vector<int64_t>& order) {
  std::vector<int64_t> result(order.size());
  for (size_t i = 0; i < order.size(); ++i) result[order[i]] = static_cast<int64_t>(i);
  return result;
}

bool same_views(const std::vector<Geometry>& a, const std::vector<Geometry>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const Geometry& x, const Geometry& y) {
    return x.sizes == y.sizes && x.strides == y.strides && x.offset == y.offset;
  });
}

}  // namespace

Value Translation::permuted(Value value, const std::vector<int64_t>& order) {
  return order.empty() || std::is_sorted(order.begin(), order.end()) ? value
                                                                     : builder_.call("aten::permute", {value, order});
}

Value Translation::reshaped(Value value, const VariedSizes& to) {
  std::vector<SizeFormula> target;
  int open = 0;
  for (const Varied& one : to) {
    auto formula = formulas_.of(one);
    // One size may follow from the others.
    if (!formula && ++open > 1) size(one);
    target.push_back(formula.value_or(SizeFormula{.factor = -1}));
  }
  return builder_.call("aten::reshape", {value, target});
}

Value Translation::sliced(Value value, const std::vector<VariedSlice>& slices) {
  for (size_t i = slices.size(); i-- > 0;) {
    const VariedSlice& slice = slices[i];
    const auto dim = static_cast<int64_t>(i);
    if (slice.whole()) continue;
    if (slice.select) {
      value = builder_.call("aten::select.int", {value, dim, size(slice.start)});
      continue;
    }
    const Argument end = slice.to_end() ? Argument(end_of_dim) : Argument(size(slice.end));
    value = builder_.call("aten::slice.Tensor", {value, dim, size(slice.start), end, size(slice.step)});
  }
  return value;
}

Value Translation::view(const Stored& from, const std::vector<Geometry>& wanted) {
  if (same_views(from.geometry, wanted)) return from.value;
  const auto planned = export_detail::plan_views(from.geometry, wanted);
  if (!planned.view) return strided(from, wanted);
  const VariedView& plan = *planned.view;
  Value value = permuted(from.value, plan.memory_order);
  if (plan.sizes) value = reshaped(value, *plan.sizes);
  value = permuted(sliced(value, plan.slices), plan.order);
  for (const int64_t dim : plan.inserted) value = builder_.call("aten::unsqueeze", {value, dim});
  return plan.expanded.empty() ? value : builder_.call("aten::expand", {value, sizes(plan.expanded)});
}

Value Translation::strided(const Stored& from, const std::vector<Geometry>& wanted) {
  const std::vector<int64_t> order = memory_order(from.geometry[0]);
  VariedSizes strides(wanted[0].strides.size());
  Varied offset;
  for (size_t i = 0; i < wanted.size(); ++i) {
    const Geometry base = permuted_geometry(from.geometry[i], order);
    if (!base.is_contiguous() || base.offset != 0)
      fail("the view " + wanted[0].text() + " of a tensor " + from.geometry[0].text() + " cannot be expressed",
           "Use reshape(), transpose(), slice() and expand() instead of as_strided() or unfold().");
    for (size_t k = 0; k < strides.size(); ++k) strides[k].values.push_back(wanted[i].strides[k]);
    offset.values.push_back(wanted[i].offset);
  }
  const Value rows = builder_.call("aten::clone", {permuted(from.value, order), c10::MemoryFormat::Contiguous});
  return builder_.call("aten::as_strided", {rows, sizes(sizes_of(wanted)), sizes(strides), size(offset)});
}

void Translation::update(graph::ValueId after, const VariedOperand& region, Value value) {
  const Stored before = stored(region.value());
  const std::vector<Geometry> written = region.geometries();
  const auto planned = export_detail::plan_views(before.geometry, written);
  if (!planned.view || !planned.view->expanded.empty())
    fail("a write to the part " + written[0].text() + " of a tensor " + before.geometry[0].text() +
             " cannot be expressed",
         "Write slices of the tensor, or use cat(), stack() or where().");
  const VariedView& plan = *planned.view;
  const bool whole = plan.slices.empty() || std::all_of(plan.slices.begin(), plan.slices.end(),
                                                        [](const VariedSlice& s) { return s.whole(); });
  if (whole) {
    values_[after] = {.value = value, .geometry = written, .dtype = region.dtype()};
    return;
  }
  // The steps of the view from the end to the beginning, on the new elements.
  if (!plan.inserted.empty()) value = builder_.call("aten::squeeze.dims", {value, plan.inserted});
  value = permuted(value, inverse(plan.order));
  Value base = permuted(before.value, plan.memory_order);
  if (plan.sizes) base = reshaped(base, *plan.sizes);
  base = with_region(base, plan.slices, 0, 0, value);
  if (plan.sizes) {
    std::vector<Geometry> rows = before.geometry;
    for (Geometry& one : rows) {
      if (!plan.memory_order.empty()) one = permuted_geometry(one, plan.memory_order);
    }
    base = reshaped(base, sizes_of(rows));
  }
  values_[after] = {
      .value = permuted(base, inverse(plan.memory_order)), .geometry = before.geometry, .dtype = before.dtype};
}

/// Replaces the part of a tensor that the slices from `index` on describe.
/// Params: dim – the dim of `base` that the slice `index` divides
Value Translation::with_region(Value base, const std::vector<VariedSlice>& slices, size_t index, int64_t dim,
                               Value inner) {
  if (index == slices.size()) return inner;
  const VariedSlice& slice = slices[index];
  if (slice.whole()) return with_region(base, slices, index + 1, dim + 1, inner);
  const Argument start = size(slice.start);
  if (slice.select) {
    const Value part = builder_.call("aten::select.int", {base, dim, start});
    const Value written = with_region(part, slices, index + 1, dim, inner);
    return builder_.call("aten::select_scatter", {base, written, dim, start});
  }
  const Argument end = slice.to_end() ? Argument(end_of_dim) : Argument(size(slice.end)), step = size(slice.step);
  const Value part = builder_.call("aten::slice.Tensor", {base, dim, start, end, step});
  const Value written = with_region(part, slices, index + 1, dim + 1, inner);
  return builder_.call("aten::slice_scatter", {base, written, dim, start, end, step});
}

}  // namespace bellows::aten_export
