#pragma once

#include <ATen/core/Tensor.h>

#include <utility>
#include <vector>

namespace bellows {

/// What clipping and a GradScaler ask the owner of gradients that lie scattered over the ranks of a job (ZeRO-2): each
/// rank holds a part, none the whole.
class ShardedGradients {
 public:
  enum class Over { sum, max };
  /// One number a rank becomes their sum, or the largest: the same on all. Collective.
  virtual at::Tensor over_ranks(at::Tensor number, Over op) const = 0;

 protected:
  ~ShardedGradients() = default;
};

/// Where a parameter's gradient is to be found.
struct GradientPart {
  const ShardedGradients* owner = nullptr;  ///< null: it is whole
  at::Tensor part;  ///< its grad() is this rank's part, [n], perhaps of no elements; without owner the parameter itself
};

/// Params: parameter – of a model, or a part as it stands in its optimizer's groups
/// Cost:   nothing while no gradient of the process is scattered
/// Threads: safe
GradientPart gradient_part(const at::Tensor& parameter);

/// The distinct owners of the parameters' gradients, in the order in which they are met, without null.
std::vector<const ShardedGradients*> gradient_owners(const std::vector<at::Tensor>& parameters);

/// While it lives, gradient_part() knows of an owner's parameters.
class ShardedGradientsEntry {
 public:
  /// Params: parts – each parameter with this rank's part
  ShardedGradientsEntry(const ShardedGradients& owner, std::vector<std::pair<at::Tensor, at::Tensor>> parts);
  ~ShardedGradientsEntry();
  ShardedGradientsEntry(const ShardedGradientsEntry&) = delete;
  ShardedGradientsEntry& operator=(const ShardedGradientsEntry&) = delete;

 private:
  std::vector<std::pair<at::Tensor, at::Tensor>> parts_;
};

}  // namespace bellows
