#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace bellows::comm {

/// The part of a tensor that a rank holds. It is either a box or a run, which is a range of elements in row-major
/// order.
struct ShardSpec {
  std::vector<int64_t> sizes;  ///< sizes of the complete tensor
  /// Start of the part. A box has one number per dim. A run has a single number, which counts elements in row-major
  /// order.
  std::vector<int64_t> offset;
  std::vector<int64_t> length;  ///< size of the box, or number of elements of the run, in the same form

  /// Returns the spec of the complete tensor.
  static ShardSpec whole(std::vector<int64_t> sizes);
  /// Returns the spec of a run of `count` elements, which may extend over several rows. ZeRO assigns such runs to
  /// ranks.
  static ShardSpec run(std::vector<int64_t> sizes, int64_t begin, int64_t count);

  int64_t numel() const;   ///< number of elements in the box or run
  bool is_run() const;     ///< whether the part is a run; false for 1-D tensors, because their runs are boxes
  bool is_inside() const;  ///< whether the part is inside its tensor
  bool operator==(const ShardSpec&) const = default;

  /// Converts the part, which may be a box or a run, to runs of elements in row-major order of the complete tensor.
  /// Each run is a pair of begin and count. The runs are in ascending order, which is also the order of the elements in
  /// the part.
  /// Throws: c10::ValueError if the part is not inside the tensor
  std::vector<std::pair<int64_t, int64_t>> runs() const;
  /// Converts the part, which may be a box or a run, to boxes. A run becomes at most 2 · dims - 1 boxes, in the order of
  /// its elements.
  std::vector<ShardSpec> boxes() const;
};

}  // namespace bellows::comm
