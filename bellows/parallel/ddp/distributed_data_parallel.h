#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bellows/comm/group.h"
#include "bellows/core/model.h"
#include "bellows/parallel/hooks/gradient_hook.h"

namespace bellows::parallel {

struct DistributedOptions {
  bool find_unused_parameters = false;  ///< parts of the model are left out in some steps, on some ranks or all
  bool static_graph = false;            ///< every step uses the same parts, as often: unused ones are found once
  bool broadcast_buffers = true;        ///< rank 0's, once a step
  bool gradient_as_bucket_view =
      true;  ///< gradients lie in the buckets; off: they are copied out, and take their bytes twice
  std::shared_ptr<GradientHook> hook;    ///< how gradients become their mean; null: exactly, by all_reduce
  int64_t bucket_bytes = 25 << 20;       ///< gradients that travel together
  int64_t first_bucket_bytes = 1 << 20;  ///< a small one, so that the exchange begins early
};

struct JoinOptions {
  bool divide_by_all = true;  ///< gradients stay the sum over the number of ranks; off: over those that have data left
};

/// Trains one model on every rank, each with its own part of the batch: after backward all ranks have the mean of their
/// gradients, exchanged bucket by bucket while backward goes on. The optimizers then make the same step everywhere.
///
///     bw::parallel::DistributedDataParallel ddp(model, world);
///     loss_of(ddp.forward(x), y).backward();                // or, where the loop calls the model itself:
///     ddp.before_forward();  auto loss = loss_of(model(x), y);  ddp.before_backward({loss});  loss.backward();
///
/// For a mean over the whole batch the ranks' batches are of the same size; else multiply each mean loss by the loader's
/// Batch::loss_weight(). Without gradients (NoGradGuard, inference mode) nothing is exchanged: evaluation is each rank's own.
/// Parameters stay the same objects, keep shape and dtype, and are not replaced while this lives; sparse gradients are not
/// taken. Sets of gradients to none are welcome. A world of one is the plain model, bit for bit, and the hook is not asked.
/// A handle: copies are the same.
///
/// Numerics: float64 equals one process with the whole batch to 1e-9 over 20 steps; fp32 on 2 ranks (or 4, 8, …) without a
///           hook equals, bit for bit, one process that adds the ranks' gradients and halves them: each is divided before
///           the sum, which is exact for powers of two (tests/parallel)
/// Cost:     2 (n - 1) / n of the gradients' bytes sent and received a step by each of n ranks; their bytes once more in
///           memory until gradients lie in the buckets; a second set of connections, with a hook a third
/// Threads:  one owner; backward may run on autograd's threads
/// A caller may catch an exception and continue. Ranks that threw before backward exchange gradients again in the next step.
/// If backward threw, the next forward on that rank throws. If the optimizer's step threw on some ranks only, the next
/// backward throws on all of them; so does each forward behind it. Ranks must not diverge without an error: pass
/// before_backward() the tensors from which backward starts, as forward() does.
/// Throws:   from backward: c10::Error – a rank has ended, called something else, or does not come: which one; the ranks
///           hold different weights: which parameter; what the hook throws
/// Ref:      torch.nn.parallel.DistributedDataParallel
class DistributedDataParallel {
 public:
  struct State;

  /// Compares the model over the ranks, and gives all of them rank 0's parameters and buffers. Collective.
  /// Throws: c10::ValueError – the ranks hold different models: which tensor; no parameter is trained
  DistributedDataParallel(const Model& model, const comm::Group& group, const DistributedOptions& options = {});

  /// before_forward(), the model, before_backward().
  at::Tensor forward(const at::Tensor& input) const;

  /// Before the model is called: the first time in a step rank 0's buffers go to all.
  /// Throws: c10::Error – a parameter got no gradient in the last step: by name, and what to do
  void before_forward() const;
  /// Between the model and backward(). One call is for one backward.
  /// Params: outputs – what backward starts from, or the model's outputs. Only find_unused_parameters and the first step of
  ///         a static_graph look at them
  void before_backward(const std::vector<at::Tensor>& outputs) const;

  /// While it lives, gradients add up on each rank and nothing is exchanged: for all batches of a step but the last.
  /// Forward and backward both happen in it.
  class NoSync {
   public:
    explicit NoSync(std::shared_ptr<State> state);
    ~NoSync();
    NoSync(const NoSync&) = delete;
    NoSync& operator=(const NoSync&) = delete;

   private:
    std::shared_ptr<State> state_;
  };
  [[nodiscard]] NoSync no_sync() const { return NoSync(state_); }

  /// Runs `steps`, which may make a different number of steps on each rank: a rank that is done takes part in the others'
  /// exchanges with gradients of zero, until all are. Then all get the parameters and buffers of one that was last; the
  /// optimizers' state of the others stays behind. Collective.
  /// Cost:   a number more of each rank is gathered in each forward
  /// Throws: what `steps` throws; then nobody is waited for
  /// Ref:    torch.distributed.algorithms.Join
  void join(const std::function<void()>& steps, const JoinOptions& options = {}) const;

  /// Gives all ranks rank 0's buffers, such as running statistics, before each evaluates on its own. Collective.
  void broadcast_buffers() const;

  /// What the last bits of the next step depend on beside the model: {"buckets", [parameters, 2]}, the bucket of each and its
  /// number, as they lie there. For the checkpoint of a run on three ranks or more, which add up a gradient in an order that
  /// depends on its place. Collective, between a step and the next forward; nothing in a world of one.
  NamedTensors state() const;
  /// Goes on from there, before the first step. Collective; nothing to go on from is welcome, and in a world of one all is.
  /// Throws: c10::ValueError – buckets of another model
  void restore(const NamedTensors& state) const;

  const Model& model() const;
  const comm::Group& group() const;
  /// "4 ranks, 5 buckets, 44.7 MiB a step, gradients in the buckets". The buckets are made anew after the first step, in the
  /// order in which gradients come.
  std::string describe() const;

 private:
  std::shared_ptr<State> state_;
};

}  // namespace bellows::parallel
