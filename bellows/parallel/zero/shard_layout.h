#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bellows/comm/group.h"
#include "bellows/comm/shard_spec.h"
#include "bellows/core/model.h"
#include "bellows/parallel/zero/weights_source.h"

namespace bellows::parallel {

/// The ranks among which parameters are divided.
struct ShardGroups {
  comm::Group shard;  ///< each rank holds another slice of a bucket
  /// Hybrid sharding: the ranks that hold the same slice as this rank; none: no other rank does.
  std::optional<comm::Group> replicas = {};
  /// Whether the replicas divide the optimizer's work and state. If not, all replicas do the same.
  bool divide_state = false;

  /// Number of replicas that divide the state of a slice.
  int state_parts() const { return divide_state && replicas ? replicas->size() : 1; }
};

struct Unit;

/// A sharded parameter and the range of its elements, in memory order, that this rank updates.
struct Place {
  std::string name;
  at::Tensor parameter;        ///< a view of its bucket's buffer
  std::vector<int64_t> order;  ///< dims from the outermost to the innermost in memory
  size_t unit = 0;
  int64_t offset = 0;            ///< start of the parameter in its bucket, in elements
  int64_t begin = 0, count = 0;  ///< this rank's range of elements; `count` may be 0
  at::Tensor piece;              ///< [count]: this range as a view of the parameter's memory, or of Unit::shard

  /// Returns the parameter's part of a buffer that has the layout of the bucket, with the shape of the parameter.
  at::Tensor view_of(const at::Tensor& buffer) const;
  /// Returns this rank's elements of a tensor that has the parameter's shape: [count], a view if the strides allow it.
  at::Tensor run_of(const at::Tensor& tensor) const;
  /// Returns the same parameter with the range that lies in [start, end) of the bucket, instead of this rank's range.
  Place with_range(int64_t start, int64_t end) const;
  /// Returns the same parameter with the range in the slice of `rank`, whose elements are a view of Unit::shard. Only in
  /// stage 3.
  Place held_by(int rank, const Unit& bucket) const;
  /// Splits this rank's elements, [count], into boxes within the parameter's shape. Each box comes with a view of its
  /// elements. If the parameter is row-major in memory, one box is enough; otherwise, there are a few boxes.
  std::vector<std::pair<comm::ShardSpec, at::Tensor>> boxes(const at::Tensor& run) const;
};

/// A bucket: parameters whose values or gradients are exchanged together.
struct Unit {
  at::Tensor flat;             ///< [ranks · slice]; rank r of ShardGroups::shard holds slice r
  int64_t slice = 0;           ///< number of elements per rank
  int64_t own = 0;             ///< start of the elements that this rank updates: its slice, or a part of it
  at::Tensor shard = {};       ///< [slice]: this rank's slice in separate memory; only in stage 3
  std::vector<size_t> places;  ///< indices into Layout::places
};

/// Trained parameters come first. Frozen parameters follow, in their own buckets.
struct Layout {
  std::vector<Place> places;
  std::vector<Unit> units;
  size_t trained_places = 0, trained_units = 0;
};

struct LayoutOptions {
  int64_t bucket_bytes = 25 << 20;
  /// A power of two. Parameters start and are split at multiples of this number of elements.
  int64_t block = 1;
  /// Patterns for modules, such as "layers.*". The parameters of each module that matches are one bucket.
  std::vector<std::string> units = {};
  /// Stage 3: the values of the parameters are not needed, because read_shard() follows.
  bool empty = false;
};

/// Moves the parameters into buckets of about `bucket_bytes`, and those of named modules into a bucket per module. All
/// parameters in a bucket have the same dtype and device. The first bucket starts with the last parameter, because
/// gradients become ready in reverse order. The tensor objects and their strides stay the same.
/// Throws: c10::ValueError if two parameters share memory, if a pattern matches no module (the message suggests one), or
///         if two patterns match the same parameter
/// Params: trained, frozen – the parameters with and without gradients
Layout lay_out(const NamedTensors& trained, const NamedTensors& frozen, const ShardGroups& groups,
               const LayoutOptions& options);

/// Whether a pattern matches a module that has one of the parameters; see LayoutOptions::units.
bool matches_module(const NamedTensors& parameters, const std::string& pattern);

/// Reads this rank's slice of a bucket into Unit::shard.
void read_shard(const Unit& unit, const std::vector<Place>& places, int rank, const WeightsSource& weights);

}  // namespace bellows::parallel
