#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "bellows/parallel/hooks/gradient_hook.h"

namespace bellows::parallel {

/// Params: period – the ranks average their parameters every `period` steps
///         warmup_steps – number of initial steps in which gradients are exchanged and parameters are not averaged
struct LocalSgdOptions {
  int64_t period = 4;
  int64_t warmup_steps = 0;
};

/// Local SGD: during a warm-up, the ranks exchange gradients. After the warm-up, each rank trains independently, and
/// the ranks average their parameters every few steps. Optimizer states (momentum) are not averaged.
/// ```
/// LocalSgd local(model.parameters(), world, {.period = 8, .warmup_steps = 500});
/// DistributedDataParallel ddp(model, world, {.hook = local.gradient_hook()});
/// …  loss.backward();  optimizer.step();  local.average();
/// ```
/// After the warm-up, each rank may skip steps (GradScaler) independently of the other ranks.
/// Cost:    a step that averages sends 2 (n - 1) / n of the parameters' bytes and needs memory for a copy of the
///          parameters. All other steps after the warm-up have no cost
/// Threads: one thread, which also runs the optimizer; the hook runs on DistributedDataParallel's exchange thread
/// Ref:     arXiv:1808.07217; PeriodicModelAverager, post_localSGD_hook
class LocalSgd {
 public:
  /// Throws: c10::ValueError if there are no parameters, if `period` is below 1, or if `warmup_steps` is below 0
  LocalSgd(std::vector<at::Tensor> parameters, comm::Group group, const LocalSgdOptions& options = {});

  /// Returns a hook that averages gradients over all ranks of DistributedDataParallel's group during the warm-up. After
  /// the warm-up, the hook averages them over `inner`, such as the ranks of one machine. Without `inner`, gradients
  /// then stay local.
  std::shared_ptr<GradientHook> gradient_hook(std::optional<comm::Group> inner = {}) const;

  /// Call this function after each optimizer step. Steps are counted from 0. It averages the parameters in step
  /// `warmup_steps` and in every `period`-th step after it. In these steps, the call is collective.
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
  std::shared_ptr<std::atomic<int64_t>> step_;  ///< also used by the hooks
};

}  // namespace bellows::parallel
