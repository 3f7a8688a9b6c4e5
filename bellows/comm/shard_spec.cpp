#include "bellows/comm/shard_spec.h"

#include <c10/util/Exception.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <functional>
#include <numeric>

namespace bellows::comm {

namespace {

/// The sizes in which offset and length are counted.
std::vector<int64_t> extents(const ShardSpec& spec) {
  return spec.is_run() ? std::vector<int64_t>{c10::multiply_integers(spec.sizes)} : spec.sizes;
}

/// Splits elements [begin, end) of a row-major tensor into boxes, from dim `dim` on.
/// Params: at – the indices of the dims before it
void cut_into_boxes(const std::vector<int64_t>& sizes, size_t dim, int64_t begin, int64_t end, std::vector<int64_t>& at,
                    std::vector<ShardSpec>& boxes) {
  const int64_t row = std::accumulate(sizes.begin() + static_cast<std::ptrdiff_t>(dim) + 1, sizes.end(), int64_t{1},
                                      std::multiplies<>());
  const auto partial = [&](int64_t index, int64_t from, int64_t to) {
    at.push_back(index);
    cut_into_boxes(sizes, dim + 1, from, to, at, boxes);
    at.pop_back();
  };
  int64_t first = begin / row;
  const int64_t last = end / row;
  if (begin % row != 0) {
    partial(first, begin % row, std::min(row, end - first * row));
    ++first;
  }
  if (first < last) {
    ShardSpec box{sizes, at, std::vector<int64_t>(at.size(), 1)};
    box.offset.push_back(first);
    box.length.push_back(last - first);
    box.offset.resize(sizes.size(), 0);
    box.length.insert(box.length.end(), sizes.begin() + static_cast<std::ptrdiff_t>(dim) + 1, sizes.end());
    boxes.push_back(std::move(box));
  }
  if (last >= first && end % row != 0) partial(last, 0, end % row);
}

}  // namespace

ShardSpec ShardSpec::whole(std::vector<int64_t> sizes) {
  std::vector<int64_t> offset(sizes.size(), 0);
  return {sizes, std::move(offset), std::move(sizes)};
}

ShardSpec ShardSpec::run(std::vector<int64_t> sizes, int64_t begin, int64_t count) {
  return {std::move(sizes), {begin}, {count}};
}

int64_t ShardSpec::numel() const {
  return c10::multiply_integers(length);
}

bool ShardSpec::is_run() const {
  return offset.size() == 1 && sizes.size() != 1;
}

bool ShardSpec::is_inside() const {
  const std::vector<int64_t> whole = extents(*this);
  bool inside = offset.size() == whole.size() && length.size() == whole.size();
  for (size_t dim = 0; inside && dim < whole.size(); ++dim)
    inside = offset[dim] >= 0 && length[dim] >= 0 && offset[dim] <= whole[dim] - length[dim];
  return inside;
}

std::vector<std::pair<int64_t, int64_t>> ShardSpec::runs() const {
  TORCH_CHECK_VALUE(is_inside(), "shard: expected a box inside a tensor of sizes [", c10::Join(", ", sizes),
                    "], got offset [", c10::Join(", ", offset), "], length [", c10::Join(", ", length), "].");
  const std::vector<int64_t> whole = extents(*this);
  if (numel() == 0) return {};
  std::vector<int64_t> strides(whole.size());
  int64_t stride = 1;
  for (size_t dim = whole.size(); dim-- > 0; stride *= whole[dim]) strides[dim] = stride;
  // Trailing dims that are held completely form one run, together with the next dim, which may be held partly.
  size_t outer = whole.size();
  while (outer > 0 && length[outer - 1] == whole[outer - 1]) --outer;
  if (outer > 0) --outer;
  const int64_t count = outer < whole.size() ? length[outer] * strides[outer] : 1;
  std::vector<std::pair<int64_t, int64_t>> runs;
  runs.reserve(static_cast<size_t>(numel() / count));
  std::vector<int64_t> at = offset;
  while (true) {
    int64_t begin = 0;
    for (size_t dim = 0; dim < whole.size(); ++dim) begin += at[dim] * strides[dim];
    runs.emplace_back(begin, count);
    size_t dim = outer;
    while (dim > 0 && ++at[dim - 1] == offset[dim - 1] + length[dim - 1]) {
      at[dim - 1] = offset[dim - 1];
      --dim;
    }
    if (dim == 0) return runs;
  }
}

std::vector<ShardSpec> ShardSpec::boxes() const {
  if (!is_run()) return {*this};
  if (numel() == 0) return {};
  if (sizes.empty()) return {whole(sizes)};
  std::vector<ShardSpec> result;
  std::vector<int64_t> at;
  cut_into_boxes(sizes, 0, offset[0], offset[0] + length[0], at, result);
  return result;
}

}  // namespace bellows::comm
