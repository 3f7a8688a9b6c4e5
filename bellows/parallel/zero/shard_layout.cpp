#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <numeric>

#include "bellows/parallel/zero/shard_layout.h"

namespace bellows::parallel {

namespace {

// Parameters start at the alignment of an allocator, so that kernels are as fast and round in the same way as before.
constexpr int64_t alignment_bytes = 64;

int64_t rounded_up(int64_t count, int64_t multiple) {
  return (count + multiple - 1) / multiple * multiple;
}

int64_t alignment_of(const at::Tensor& tensor, int64_t block) {
  return std::max(alignment_bytes / static_cast<int64_t>(tensor.element_size()), block);
}

std::vector<int64_t> memory_order(const at::Tensor& tensor) {
  std::vector<int64_t> order(static_cast<size_t>(tensor.dim()));
  std::iota(order.begin(), order.end(), 0);
  if (!tensor.is_contiguous()) {
    std::stable_sort(order.begin(), order.end(),
                     [&](int64_t a, int64_t b) { return tensor.stride(a) > tensor.stride(b); });
  }
  return order;
}

void check_own_memory(const NamedTensors& parameters) {
  std::vector<std::pair<const char*, const NamedTensors::value_type*>> by_address;
  by_address.reserve(parameters.size());
  for (const auto& item : parameters) {
    if (item.second.numel() > 0) by_address.emplace_back(static_cast<const char*>(item.second.const_data_ptr()), &item);
  }
  std::sort(by_address.begin(), by_address.end());
  for (size_t i = 1; i < by_address.size(); ++i) {
    const auto& [begin, before] = by_address[i - 1];
    const auto& [next, item] = by_address[i];
    TORCH_CHECK_VALUE(begin + before->second.nbytes() <= next, "zero_optimizer: parameters \"", before->first,
                      "\" and \"", item->first,
                      "\" share memory without being the same tensor. Tie weights by registering one tensor twice.");
  }
}

/// The parameters of a bucket under construction, and its length.
struct OpenUnit {
  std::vector<size_t> places;
  int64_t length = 0;
};

/// Allocates the bucket's buffer and moves its parameters there.
Unit fill_unit(const OpenUnit& open, std::vector<Place>& places, const comm::Group& group, int64_t block) {
  const at::Tensor& first = places[open.places.front()].parameter;
  const int64_t slice = rounded_up(rounded_up(open.length, group.size()) / group.size(), alignment_of(first, block));
  Unit unit{at::zeros({slice * group.size()}, first.options().requires_grad(false)), slice, open.places};
  const int64_t own = slice * group.rank();
  for (const size_t index : open.places) {
    Place& place = places[index];
    const at::Tensor view = place.view_of(unit.flat);
    view.copy_(place.parameter);
    place.parameter.set_data(view);
    const int64_t begin = std::max(place.offset, own);
    const int64_t end = std::min(place.offset + place.parameter.numel(), own + slice);
    place.count = std::max<int64_t>(end - begin, 0);
    place.begin = place.count > 0 ? begin - place.offset : 0;
    place.piece = unit.flat.narrow(0, place.count > 0 ? begin : 0, place.count);
  }
  return unit;
}

/// A box of a tensor whose dims are in memory order.
struct Box {
  std::vector<int64_t> offset, length;
};

/// Splits elements [begin, end) of a row-major tensor into boxes, from dim `dim` on; `at` has the indices of the dims
/// before it.
void cut(const std::vector<int64_t>& sizes, size_t dim, int64_t begin, int64_t end, std::vector<int64_t>& at,
         std::vector<Box>& boxes) {
  const int64_t row = std::accumulate(sizes.begin() + static_cast<std::ptrdiff_t>(dim) + 1, sizes.end(), int64_t{1},
                                      std::multiplies<>());
  const auto partial = [&](int64_t index, int64_t from, int64_t to) {
    at.push_back(index);
    cut(sizes, dim + 1, from, to, at, boxes);
    at.pop_back();
  };
  int64_t first = begin / row;
  const int64_t last = end / row;
  if (begin % row != 0) {
    partial(first, begin % row, std::min(row, end - first * row));
    ++first;
  }
  if (first < last) {
    Box box{at, std::vector<int64_t>(at.size(), 1)};
    box.offset.push_back(first);
    box.length.push_back(last - first);
    box.offset.resize(sizes.size(), 0);
    box.length.insert(box.length.end(), sizes.begin() + static_cast<std::ptrdiff_t>(dim) + 1, sizes.end());
    boxes.push_back(std::move(box));
  }
  if (last >= first && end % row != 0) partial(last, 0, end % row);
}

}  // namespace

at::Tensor Place::view_of(const at::Tensor& buffer) const {
  std::vector<int64_t> strides(order.size());
  int64_t stride = 1;
  for (size_t i = order.size(); i-- > 0; stride *= parameter.size(order[i])) {
    strides[static_cast<size_t>(order[i])] = stride;
  }
  return buffer.as_strided(parameter.sizes(), strides, offset);
}

at::Tensor Place::run_of(const at::Tensor& tensor) const {
  return tensor.permute(order).reshape({-1}).narrow(0, begin, count);
}

std::vector<std::pair<comm::ShardSpec, at::Tensor>> Place::boxes(const at::Tensor& run) const {
  const std::vector<int64_t> sizes = parameter.sizes().vec();
  if (count == 0) return {};
  if (std::is_sorted(order.begin(), order.end())) {
    if (count == parameter.numel()) return {{comm::ShardSpec::whole(sizes), run.view(sizes)}};
    return {{comm::ShardSpec::run(sizes, begin, count), run}};
  }
  std::vector<int64_t> sizes_in_memory, at, back(order.size());
  for (size_t i = 0; i < order.size(); ++i) {
    sizes_in_memory.push_back(sizes[static_cast<size_t>(order[i])]);
    back[static_cast<size_t>(order[i])] = static_cast<int64_t>(i);
  }
  std::vector<Box> in_memory;
  cut(sizes_in_memory, 0, begin, begin + count, at, in_memory);
  std::vector<std::pair<comm::ShardSpec, at::Tensor>> result;
  result.reserve(in_memory.size());
  int64_t done = 0;
  for (const Box& box : in_memory) {
    comm::ShardSpec spec{sizes, {}, {}};
    for (const int64_t dim : back) {
      spec.offset.push_back(box.offset[static_cast<size_t>(dim)]);
      spec.length.push_back(box.length[static_cast<size_t>(dim)]);
    }
    const int64_t numel = spec.numel();
    result.emplace_back(std::move(spec), run.narrow(0, done, numel).view(box.length).permute(back));
    done += numel;
  }
  return result;
}

Layout lay_out(const NamedTensors& parameters, const comm::Group& group, int64_t bucket_bytes, int64_t block) {
  const c10::NoGradGuard no_grad;
  check_own_memory(parameters);
  Layout layout;
  layout.places.reserve(parameters.size());
  std::vector<std::pair<at::TensorOptions, OpenUnit>> open;
  for (auto item = parameters.rbegin(); item != parameters.rend(); ++item) {
    const auto& [name, parameter] = *item;
    const at::TensorOptions kind = parameter.options();
    auto at = std::find_if(open.begin(), open.end(), [&](const auto& unit) {
      return unit.first.dtype() == kind.dtype() && unit.first.device() == kind.device();
    });
    if (at == open.end()) at = open.insert(at, {kind, {}});
    OpenUnit& unit = at->second;
    unit.places.push_back(layout.places.size());
    const bool dense = parameter.is_non_overlapping_and_dense();
    layout.places.push_back({.name = name,
                             .parameter = parameter,
                             .order = memory_order(dense ? parameter : parameter.contiguous()),
                             .offset = unit.length});
    unit.length += rounded_up(parameter.numel(), alignment_of(parameter, block));
    if (unit.length * static_cast<int64_t>(parameter.element_size()) < bucket_bytes) continue;
    layout.units.push_back(fill_unit(unit, layout.places, group, block));
    open.erase(at);
  }
  for (const auto& [kind, unit] : open) layout.units.push_back(fill_unit(unit, layout.places, group, block));
  for (size_t unit = 0; unit < layout.units.size(); ++unit) {
    for (const size_t place : layout.units[unit].places) layout.places[place].unit = unit;
  }
  return layout;
}

}  // namespace bellows::parallel
