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

/// A sharded parameter and the run of its elements, in memory order, that this rank owns.
struct Place {
  std::string name;
  at::Tensor parameter;        ///< a view of its bucket's buffer
  std::vector<int64_t> order;  ///< dims from outermost to innermost in memory
  size_t unit = 0;
  int64_t offset = 0;            ///< in the bucket, in elements
  int64_t begin = 0, count = 0;  ///< this rank's run; count may be 0
  at::Tensor piece;              ///< [count], a view of the same memory

  /// The parameter's view of a buffer with the layout of its bucket.
  at::Tensor view_of(const at::Tensor& buffer) const;
  /// This rank's run of a tensor of the parameter's shape: [count], a view if the strides allow it.
  at::Tensor run_of(const at::Tensor& tensor) const;
  /// Splits a run [count] into boxes of the parameter's shape, each with its view: one box if memory is row-major, else
  /// a few.
  std::vector<std::pair<comm::ShardSpec, at::Tensor>> boxes(const at::Tensor& run) const;
};

/// A bucket: parameters whose values, gradients or both are exchanged together.
struct Unit {
  at::Tensor flat;             ///< [world · slice]; rank r owns the r-th slice
  int64_t slice = 0;           ///< elements per rank
  std::vector<size_t> places;  ///< indices into Layout::places
};

struct Layout {
  std::vector<Place> places;
  std::vector<Unit> units;
};

/// Moves parameters into buckets of about `bucket_bytes`, each of one dtype and device. It starts with the last
/// parameter, because gradients become ready in that order. The tensors keep their identity and strides.
/// Params: block – parameters start and are split at multiples of this number of elements, a power of two
/// Throws: c10::ValueError if two parameters share memory
Layout lay_out(const NamedTensors& parameters, const comm::Group& group, int64_t bucket_bytes, int64_t block = 1);

}  // namespace bellows::parallel
