#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "bellows/parallel/hooks/gradient_hook.h"

namespace bellows::parallel {

/// Params: period – steps from one averaging to the next
///         warmup_steps – the first so many steps exchange gradients and leave the parameters alone
struct LocalSgdOptions {
  int64_t period = 4;
  int64_t warmup_steps = 0;
};

/// Ranks that train each on its own and average their parameters every few steps, after a start in which they exchange
/// gradients as ever. What optimizers remember (momentum) stays each rank's own.
/// ```
/// LocalSgd local(model.parameters(), world, {.period = 8, .warmup_steps = 500});
/// DistributedDataParallel ddp(model, world, {.hook = local.gradient_hook()});
/// …  loss.backward();  optimizer.step();  local.average();
/// ```
/// Ranks whose gradients are not exchanged may leave out steps (GradScaler) each for itself.
/// Cost:    a step in `period`: 2 (n - 1) / n of the parameters' bytes, and memory for them once more; others: nothing
/// Threads: one, the optimizer's; the hook runs on the exchange's
/// Ref:     arXiv:1808.07217; PeriodicModelAverager, post_localSGD_hook
class LocalSgd {
 public:
  /// Throws: c10::ValueError – no parameters, a period below 1, warmup_steps below 0
  LocalSgd(std::vector<at::Tensor> parameters, comm::Group group, const LocalSgdOptions& options = {});

  /// The mean of gradients over the hook's group during warm-up, afterwards over `inner`, such as the ranks of one
  /// machine; none: gradients stay each rank's own.
  std::shared_ptr<GradientHook> gradient_hook(std::optional<comm::Group> inner = {}) const;

  /// Call it after each of the optimizer's steps. Collective where it averages: in step warmup_steps, counted from 0, and
  /// every `period` steps from there.
  /// Returns:  whether this step did
  /// Numerics: every rank gets the same bits
  bool average();

  int64_t step() const { return *step_; }
  NamedTensors state() const;
  /// Throws: c10::ValueError – another's state
  void restore(const NamedTensors& state);

 private:
  std::vector<at::Tensor> parameters_;
  comm::Group group_;
  LocalSgdOptions options_;
  std::shared_ptr<std::atomic<int64_t>> step_;  ///< the hooks', too
};

}  // namespace bellows::parallel
