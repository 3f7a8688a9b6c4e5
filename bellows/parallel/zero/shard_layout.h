#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "bellows/comm/group.h"
#include "bellows/comm/shard_spec.h"
#include "bellows/core/model.h"

namespace bellows::parallel {

/// One sharded parameter, and the run of its elements, in the order of memory, that this rank owns.
struct Place {
  std::string name;
  at::Tensor parameter;        ///< a view of its unit's buffer
  std::vector<int64_t> order;  ///< its dims from the outermost to the innermost in memory
  size_t unit = 0;
  int64_t offset = 0;            ///< in the unit, in elements
  int64_t begin = 0, count = 0;  ///< this rank's run; count may be 0
  at::Tensor piece;              ///< [count], the same memory

  /// The parameter's view of a buffer that is laid out as its unit's.
  at::Tensor view_of(const at::Tensor& buffer) const;
  /// This rank's run of a tensor of the parameter's shape: [count], a view where the strides allow it.
  at::Tensor run_of(const at::Tensor& tensor) const;
  /// [count] as boxes of the parameter's shape, each with its view: one where memory is row-major, a few elsewhere.
  std::vector<std::pair<comm::ShardSpec, at::Tensor>> boxes(const at::Tensor& run) const;
};

/// Parameters whose values, gradients or both travel together.
struct Unit {
  at::Tensor flat;             ///< [world · slice]; rank r owns the r-th slice
  int64_t slice = 0;           ///< elements a rank
  std::vector<size_t> places;  ///< indices into Layout::places
};

struct Layout {
  std::vector<Place> places;
  std::vector<Unit> units;
};

/// Moves parameters into units of about `bucket_bytes`, of one dtype and device each: the last parameter first, as
/// gradients become ready. The tensors stay the same objects with the same strides.
/// Params: block – parameters begin, and are cut, at multiples of so many elements, a power of two
/// Throws: c10::ValueError – two of them share memory
Layout lay_out(const NamedTensors& parameters, const comm::Group& group, int64_t bucket_bytes, int64_t block = 1);

}  // namespace bellows::parallel
