#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "bellows/comm/group.h"
#include "bellows/parallel/zero/shard_layout.h"
#include "bellows/parallel/zero/shard_offload.h"
#include "bellows/tap/op_check.h"

namespace bellows::parallel {

/// Shards the parameters for ZeRO-3. Each rank keeps its slice of each bucket (Unit::shard) and frees the rest. When an
/// operator uses a parameter of a bucket, the ranks gather this bucket, in forward and in backward. The bucket is freed
/// when an operator uses another bucket.
///
/// In a compiled function, operators run later than they are called. There, the first use gathers all buckets, and they
/// stay until release().
///
/// All ranks must use the buckets in the same order. From this order, the object predicts which bucket comes next, and
/// gathers it in the background. At most two buckets are therefore in memory, except if one operator uses several.
/// Numerics: exact. Operators use the same kernels as without sharding
/// Threads:  operators are observed on the thread that created the object, and on autograd's threads of backward passes
///           that it starts. Destroy the object on the same thread
class ParameterShards {
 public:
  struct Options {
    /// If false, only backward and release() free buckets. Buckets of frozen parameters then stay until release().
    bool reshard_after_forward = true;
    /// See ShardOptions
    int64_t gathered_frozen_bytes = -1;
    /// The dtype in which floating-point parameters are gathered and used; none: that of the shards.
    std::optional<at::ScalarType> parameter_dtype = {};
    ShardMemory memory = {};
  };

  /// Replaces the pieces of the layout by views of the shards, and frees the parameters. Buckets without a shard get
  /// one with the values of the parameters. Collective.
  ParameterShards(Layout& layout, const ShardGroups& groups, const Options& options);
  ~ParameterShards();
  ParameterShards(const ParameterShards&) = delete;
  ParameterShards& operator=(const ParameterShards&) = delete;

  /// Frees all gathered buckets. Call this function before shards change.
  void release();
  /// Completes the shards if each replica changed only its part of them. Collective.
  void exchange_parts();
  /// Starts to gather the bucket that the last forward pass used first. Call this function after shards have changed.
  void prefetch_first();
  /// Gathers all buckets, and keeps them until release(). Collective.
  void gather_all();
  /// Calls `body` while all parameters are complete and have the dtype of the shards. Operators may write to them.
  /// Afterwards, each rank takes over its slice, and all buckets are freed. If `body` throws, the parameters stay as they
  /// were. Collective.
  void with_all(const std::function<void()>& body);

 private:
  class Gathering;
  std::shared_ptr<Gathering> gathering_;
  tap::OpCheckGuard guard_;
};

}  // namespace bellows::parallel
