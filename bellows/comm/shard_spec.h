#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace bellows::comm {

/// The part of a tensor that a rank holds: a box, or a run of elements.
struct ShardSpec {
  std::vector<int64_t> sizes;  ///< of the whole tensor
  /// Start of the box, one number per dim; a single number counts elements in row-major order.
  std::vector<int64_t> offset;
  std::vector<int64_t> length;  ///< size of the box, in the same form

  /// The whole tensor.
  static ShardSpec whole(std::vector<int64_t> sizes);
  /// A run of elements in row-major order, across row ends. ZeRO assigns such runs to ranks.
  static ShardSpec run(std::vector<int64_t> sizes, int64_t begin, int64_t count);

  int64_t numel() const;   ///< of the box
  bool is_run() const;     ///< whether it is a run of elements across row ends
  bool is_inside() const;  ///< whether the box is inside its tensor
  bool operator==(const ShardSpec&) const = default;

  /// Converts the box to runs of elements in row-major order of the whole tensor. Each run is a begin and a count; they
  /// ascend and follow the box's own element order.
  /// Throws: c10::ValueError if the box is not inside the tensor
  std::vector<std::pair<int64_t, int64_t>> runs() const;
};

}  // namespace bellows::comm
