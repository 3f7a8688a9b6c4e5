#pragma once

#include <ATen/core/Tensor.h>

#include <utility>
#include <vector>

namespace bellows {

/// Interface that gradient clipping and GradScaler use for gradients that are sharded over ranks (ZeRO-2), so that no
/// rank has a complete gradient.
class ShardedGradients {
 public:
  enum class Over { sum, max };
  /// All-reduces one scalar per rank (sum or maximum). All ranks get the same result. Collective.
  virtual at::Tensor over_ranks(at::Tensor number, Over op) const = 0;

 protected:
  ~ShardedGradients() = default;
};

/// Location of a parameter's gradient.
struct GradientPart {
  const ShardedGradients* owner = nullptr;  ///< null if the gradient is complete on this rank
  /// If `owner` is set: a tensor whose grad() is this rank's shard, [n], possibly empty. Otherwise the parameter
  /// itself.
  at::Tensor part;
};

/// Returns the location of a parameter's gradient.
/// Params:  parameter – of a model, or the shard that the optimizer has in its groups
/// Cost:    none unless gradients in this process are sharded
/// Threads: safe
GradientPart gradient_part(const at::Tensor& parameter);

/// Returns the distinct owners of the parameters' gradients in order of first use, without null.
std::vector<const ShardedGradients*> gradient_owners(const std::vector<at::Tensor>& parameters);

/// Makes the shards of an owner visible to gradient_part() while the object lives.
class ShardedGradientsEntry {
 public:
  /// Params: parts – each parameter with this rank's shard
  ShardedGradientsEntry(const ShardedGradients& owner, std::vector<std::pair<at::Tensor, at::Tensor>> parts);
  ~ShardedGradientsEntry();
  ShardedGradientsEntry(const ShardedGradientsEntry&) = delete;
  ShardedGradientsEntry& operator=(const ShardedGradientsEntry&) = delete;

 private:
  std::vector<std::pair<at::Tensor, at::Tensor>> parts_;
};

}  // namespace bellows
