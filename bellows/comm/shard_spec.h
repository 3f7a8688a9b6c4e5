#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace bellows::comm {

/// Which part of a tensor one rank holds: a box of the whole.
struct ShardSpec {
  std::vector<int64_t> sizes;  ///< of the whole tensor
  std::vector<int64_t>
      offset;  ///< where the box begins, a number a dim; a single one counts elements in row-major order
  std::vector<int64_t> length;  ///< its size, likewise

  /// The whole tensor.
  static ShardSpec whole(std::vector<int64_t> sizes);
  /// A run of elements in row-major order, over the ends of rows: what ZeRO gives a rank.
  static ShardSpec run(std::vector<int64_t> sizes, int64_t begin, int64_t count);

  int64_t numel() const;   ///< of the box
  bool is_run() const;     ///< counted over the ends of rows
  bool is_inside() const;  ///< of its tensor
  bool operator==(const ShardSpec&) const = default;

  /// The box as runs of elements in row-major order of the whole: begin and count, ascending, in the order in which the
  /// box holds them.
  /// Throws: c10::ValueError – a box that is not inside the tensor
  std::vector<std::pair<int64_t, int64_t>> runs() const;
};

}  // namespace bellows::comm
