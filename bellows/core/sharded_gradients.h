#pragma once

#include <ATen/core/Tensor.h>

#include <utility>
#include <vector>

namespace bellows {

/// Interface through which gradient clipping and GradScaler handle gradients that are divided among ranks. With ZeRO-2
/// and ZeRO-3, each rank has a shard of each gradient. In a pipeline, each rank has some of the gradients.
class ShardedGradients {
 public:
  enum class Over { sum, max };
  /// All-reduces one scalar per rank with `op`. The result is the same on all ranks. All ranks must call this function.
  virtual at::Tensor over_ranks(at::Tensor number, Over op) const = 0;
  /// The owner of the gradients of which this object has shards, such as those of a slice of a layer; null: they are
  /// complete. over_ranks() includes its ranks.
  virtual const ShardedGradients* outer() const { return nullptr; }

 protected:
  ~ShardedGradients() = default;
};

/// The location of a parameter's gradient.
struct GradientPart {
  const ShardedGradients* owner = nullptr;  ///< null if this rank has the complete gradient
  /// If `owner` is null, the parameter itself. Otherwise, a tensor whose grad() is this rank's shard [n], which may be
  /// empty.
  at::Tensor part;
  /// Whether the part counts in norms on this rank. False for copies of tied weights, which another rank counts.
  bool counted = true;
};

/// Returns the location of a parameter's gradient.
/// Params:  parameter – a model parameter, or the shard of it that is in the optimizer's parameter groups
/// Cost:    none unless this process has sharded gradients
/// Threads: thread-safe
GradientPart gradient_part(const at::Tensor& parameter);

/// Returns the owners of the parameters' gradients, in the order of the parameters. Each owner is listed once. Null
/// owners are omitted.
std::vector<const ShardedGradients*> gradient_owners(const std::vector<at::Tensor>& parameters);

/// Registers the shards of an owner for gradient_part() while the object exists. Afterwards, the parameters have their
/// earlier owner, which must exist as long as this object.
class ShardedGradientsEntry {
 public:
  /// Params: parts – pairs of a parameter and this rank's shard
  ///         copies – parameters in `parts` whose gradients another rank counts in norms
  ShardedGradientsEntry(const ShardedGradients& owner, std::vector<std::pair<at::Tensor, at::Tensor>> parts,
                        const std::vector<at::Tensor>& copies = {});
  ~ShardedGradientsEntry();
  ShardedGradientsEntry(const ShardedGradientsEntry&) = delete;
  ShardedGradientsEntry& operator=(const ShardedGradientsEntry&) = delete;

 private:
  ShardedGradientsEntry(const ShardedGradients* owner, std::vector<std::pair<at::Tensor, at::Tensor>> parts);
  const ShardedGradients* owner_;
  std::vector<std::pair<at::Tensor, at::Tensor>> parts_;
  std::vector<GradientPart> earlier_;  ///< of each parameter
};

}  // namespace bellows
