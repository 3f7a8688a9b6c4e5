#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "bellows/parallel/hooks/gradient_hook.h"

namespace bellows::parallel {

/// Params: period – steps between two averagings
///         warmup_steps – number of first steps, in which gradients are exchanged and parameters are not averaged
struct LocalSgdOptions {
  int64_t period = 4;
  int64_t warmup_steps = 0;
};

/// Local SGD: after a warm-up with exchanged gradients, each rank trains on its own, and the ranks average their
/// parameters every few steps. Optimizer states (momentum) are not averaged.
/// ```
/// LocalSgd local(model.parameters(), world, {.period = 8, .warmup_steps = 500});
/// DistributedDataParallel ddp(model, world, {.hook = local.gradient_hook()});
/// …  loss.backward();  optimizer.step();  local.average();
/// ```
/// Without exchanged gradients, each rank may skip steps (GradScaler) independently.
/// Cost:    one step in `period` sends 2 (n - 1) / n of the parameters' bytes and needs memory for a copy of them;
///          other steps: none
/// Threads: one, that of the optimizer; the hook runs on the thread of the exchange
/// Ref:     arXiv:1808.07217; PeriodicModelAverager, post_localSGD_hook
class LocalSgd {
 public:
  /// Throws: c10::ValueError if there are no parameters, period is below 1 or warmup_steps is below 0
  LocalSgd(std::vector<at::Tensor> parameters, comm::Group group, const LocalSgdOptions& options = {});

  /// A hook that averages gradients over its group during warm-up and over `inner` afterwards, such as the ranks of one
  /// machine. Without `inner`, gradients stay local after warm-up.
  std::shared_ptr<GradientHook> gradient_hook(std::optional<comm::Group> inner = {}) const;

  /// Call it after each step of the optimizer. It averages in step warmup_steps (counted from 0) and every `period`
  /// steps after it; then it is collective.
  /// Returns:  whether this step averaged the parameters
  /// Numerics: bit-identical on every rank
  bool average();

  int64_t step() const { return *step_; }
  NamedTensors state() const;
  /// Throws: c10::ValueError if the state belongs to another object
  void restore(const NamedTensors& state);

 private:
  std::vector<at::Tensor> parameters_;
  comm::Group group_;
  LocalSgdOptions options_;
  std::shared_ptr<std::atomic<int64_t>> step_;  ///< shared with the hooks
};

}  // namespace bellows::parallel
