#include "bellows/export/view_plan.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <set>

namespace bellows::export_detail {

namespace {

using graph::Geometry;

/// A dim of the tensor or of the view, by its position there.
struct Dim {
  int64_t size = 1, stride = 1;
  int64_t position = 0;
};

/// The dims that take part in the order of memory, the largest stride first.
std::vector<Dim> dims_of(const Geometry& geometry) {
  std::vector<Dim> dims;
  for (size_t i = 0; i < geometry.sizes.size(); ++i) {
    if (geometry.sizes[i] != 1 && geometry.strides[i] != 0)
      dims.push_back({geometry.sizes[i], geometry.strides[i], static_cast<int64_t>(i)});
  }
  std::stable_sort(dims.begin(), dims.end(), [](const Dim& a, const Dim& b) { return a.stride > b.stride; });
  return dims;
}

/// Returns whether the dims cover a memory without gaps.
bool is_dense(const Geometry& geometry, const std::vector<Dim>& dims) {
  int64_t stride = 1;
  for (size_t i = dims.size(); i-- > 0;) {
    if (dims[i].stride != stride) return false;
    stride *= dims[i].size;
  }
  for (size_t i = 0; i < geometry.sizes.size(); ++i) {
    if (geometry.sizes[i] != 1 && geometry.strides[i] == 0) return false;
  }
  return true;
}

/// Consecutive dims in memory, the view's dims in them, and the dims into which the view divides this memory.
class Division {
 public:
  Division(std::vector<Dim> base, std::vector<Dim> view, int64_t offset)
      : base_(std::move(base)), view_(std::move(view)), offset_(offset) {}

  struct Part {
    int64_t size = 1, stride = 1;
    ViewPlan::Slice slice{};
    int64_t position = -1;  ///< of the dim in the view; -1 if a single element is selected
  };

  /// Returns the parts of the whole memory in order, or nothing if the view is not composed of slices.
  std::optional<std::vector<Part>> parts() const {
    std::vector<Part> result;
    int64_t rest = offset_;
    size_t next = 0;
    for (size_t begin = 0; begin < base_.size();) {
      const size_t end = group_end(begin);
      const int64_t inner = base_[end - 1].stride, outer = base_[begin].stride * base_[begin].size;
      std::vector<Dim> inside;
      while (next < view_.size() && view_[next].stride >= inner) inside.push_back(view_[next++]);
      if (!divide(inside, inner, outer, rest, result)) return {};
      begin = end;
    }
    if (next != view_.size() || rest != 0) return {};
    return result;
  }

 private:
  /// Dims that one dim of the view spans belong to one group.
  size_t group_end(size_t begin) const {
    size_t end = begin + 1;
    for (; end < base_.size(); ++end) {
      const int64_t border = base_[end - 1].stride;  // elements of all dims from `end` on
      const bool spanned = std::any_of(view_.begin(), view_.end(), [&](const Dim& dim) {
        return dim.stride < border && dim.stride * (dim.size - 1) >= border;
      });
      if (!spanned) break;
    }
    return end;
  }

  static bool divide(const std::vector<Dim>& inside, int64_t inner, int64_t outer, int64_t& rest,
                     std::vector<Part>& result) {
    if (inside.size() <= 1) {
      const int64_t size = outer / inner;
      Part part{.size = size, .stride = inner, .slice = {.start = rest / inner, .size = 1, .of = size, .select = true}};
      if (inside.size() == 1) {
        const Dim& dim = inside[0];
        if (dim.stride % inner != 0) return false;
        part.slice.step = dim.stride / inner;
        part.slice.size = dim.size;
        part.slice.select = false;
        part.position = dim.position;
      }
      if (part.slice.start + (part.slice.size - 1) * part.slice.step >= size) return false;
      rest %= inner;
      result.push_back(part);
      return true;
    }
    int64_t above = outer;
    std::vector<Dim> split = inside;
    if (split.back().stride != inner) split.push_back({.size = 1, .stride = inner, .position = -1});
    for (const Dim& dim : split) {
      if (above % dim.stride != 0) return false;
      const int64_t size = above / dim.stride;
      const Part part{.size = size,
                      .stride = dim.stride,
                      .slice = {.start = rest / dim.stride, .size = dim.size, .of = size, .select = dim.position < 0},
                      .position = dim.position};
      if (part.slice.start + dim.size > size) return false;
      rest %= dim.stride;
      above = dim.stride;
      result.push_back(part);
    }
    return true;
  }

  std::vector<Dim> base_, view_;
  int64_t offset_;
};

bool is_sorted_from_zero(const std::vector<int64_t>& order) {
  for (size_t i = 0; i < order.size(); ++i) {
    if (order[i] != static_cast<int64_t>(i)) return false;
  }
  return true;
}

std::optional<ViewPlan> plan_reshape(const Geometry& base, const Geometry& view) {
  const auto same_elements = [](const Geometry& geometry) {
    return std::accumulate(geometry.sizes.begin(), geometry.sizes.end(), int64_t{1}, std::multiplies<>());
  };
  if (!base.is_contiguous() || !view.is_contiguous() || base.offset != view.offset ||
      same_elements(base) != same_elements(view))
    return {};
  ViewPlan plan;
  if (base.sizes != view.sizes) plan.sizes.emplace(view.sizes.begin(), view.sizes.end());
  return plan;
}

std::optional<ViewPlan> plan_transpose(const Geometry& base, const Geometry& view) {
  if (base.sizes.size() != view.sizes.size() || base.offset != view.offset) return {};
  std::vector<bool> used(base.sizes.size());
  ViewPlan plan;
  for (size_t i = 0; i < view.sizes.size(); ++i) {
    size_t from = 0;
    while (from < used.size() && (used[from] || base.sizes[from] != view.sizes[i] ||
                                  (base.sizes[from] != 1 && base.strides[from] != view.strides[i])))
      ++from;
    if (from == used.size()) return {};
    used[from] = true;
    plan.order.push_back(static_cast<int64_t>(from));
  }
  if (is_sorted_from_zero(plan.order)) plan.order.clear();
  return plan;
}

void finish(ViewPlan& plan, const std::vector<Division::Part>& parts, const Geometry& view) {
  const bool sliced =
      std::any_of(parts.begin(), parts.end(), [](const Division::Part& part) { return !part.slice.whole(); });
  std::vector<std::pair<int64_t, int64_t>> left;  // position in the view, dim after the slices
  for (const Division::Part& part : parts) {
    if (sliced) plan.slices.push_back(part.slice);
    if (part.position >= 0) left.emplace_back(part.position, static_cast<int64_t>(left.size()));
  }
  std::sort(left.begin(), left.end());
  for (const auto& [position, dim] : left) plan.order.push_back(dim);
  if (is_sorted_from_zero(plan.order)) plan.order.clear();
  bool expands = false;
  for (size_t i = 0; i < view.sizes.size(); ++i) {
    const bool own =
        std::any_of(left.begin(), left.end(), [&](const auto& one) { return one.first == static_cast<int64_t>(i); });
    if (!own) plan.inserted.push_back(static_cast<int64_t>(i));
    expands = expands || (view.sizes[i] != 1 && view.strides[i] == 0);
  }
  if (expands) plan.expanded.assign(view.sizes.begin(), view.sizes.end());
}

}  // namespace

std::optional<ViewPlan> plan_view(const Geometry& base, const Geometry& view) {
  if (const auto plan = plan_reshape(base, view)) return plan;
  if (const auto plan = plan_transpose(base, view)) return plan;
  const std::vector<Dim> base_dims = dims_of(base), view_dims = dims_of(view);
  if (!is_dense(base, base_dims) || view.offset < base.offset) return {};
  const auto parts = Division(base_dims, view_dims, view.offset - base.offset).parts();
  if (!parts) return {};
  ViewPlan plan;
  std::vector<int64_t> order, ones, sizes, before;
  for (size_t i = 0; i < base.sizes.size(); ++i) {
    if (base.sizes[i] == 1) ones.push_back(static_cast<int64_t>(i));
  }
  for (const Dim& dim : base_dims) {
    order.push_back(dim.position);
    before.push_back(dim.size);
  }
  for (const Division::Part& part : *parts) sizes.push_back(part.size);
  std::vector<int64_t> with_ones = ones;
  with_ones.insert(with_ones.end(), order.begin(), order.end());
  if (!std::is_sorted(order.begin(), order.end())) plan.memory_order = with_ones;
  if (!ones.empty() || sizes != before) plan.sizes = sizes;
  finish(plan, *parts, view);
  return plan;
}

}  // namespace bellows::export_detail
