#include "bellows/comm/shard_spec.h"

#include <c10/util/Exception.h>
#include <c10/util/accumulate.h>

namespace bellows::comm {

namespace {

/// The sizes in which offset and length are counted.
std::vector<int64_t> extents(const ShardSpec& spec) {
  return spec.is_run() ? std::vector<int64_t>{c10::multiply_integers(spec.sizes)} : spec.sizes;
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

}  // namespace bellows::comm
