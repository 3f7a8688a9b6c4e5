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
  /// Set this option if one or more ranks do not use all parameters in some steps.
  bool find_unused_parameters = false;
  /// Every step uses the same parameters, each the same number of times. Unused parameters are searched for only once.
  bool static_graph = false;
  bool broadcast_buffers = true;  ///< broadcast rank 0's buffers once per step
  /// Gradients are views into the buckets. If false, gradients are copies, so they take twice the memory.
  bool gradient_as_bucket_view = true;
  std::shared_ptr<GradientHook> hook;    ///< computes the mean of the gradients; null: exact mean with all_reduce
  int64_t bucket_bytes = 25 << 20;       ///< size of a gradient bucket in bytes
  int64_t first_bucket_bytes = 1 << 20;  ///< size of the first bucket; a small one starts communication early
};

struct JoinOptions {
  /// Divide gradients by the number of all ranks. If false, divide by the number of ranks that still have data.
  bool divide_by_all = true;
};

/// Trains one model on all ranks. Each rank processes its part of the global batch. Gradients are exchanged in buckets
/// during backward. After backward, all ranks have the mean of their gradients, so the optimizers make the same step on
/// every rank.
///
///     bw::parallel::DistributedDataParallel ddp(model, world);
///     loss_of(ddp.forward(x), y).backward();                // or, if the loop calls the model itself:
///     ddp.before_forward();  auto loss = loss_of(model(x), y);  ddp.before_backward({loss});  loss.backward();
///
/// Gradients are averaged over ranks, not over samples. To get the mean over the global batch, use batches of the same
/// size on all ranks, or multiply each mean loss by the loader's Batch::loss_weight(). If gradients are disabled
/// (NoGradGuard, inference mode), nothing is exchanged, so the ranks can evaluate independently.
///
/// While the object exists, do not replace a parameter or change its shape or dtype. Sparse gradients are not
/// supported. zero_grad() may set gradients to undefined tensors. In a world of one rank, results are bit-identical to
/// those of the plain model, and the hook is not called. The object is a handle: copies share their state.
///
/// After an exception, you can continue in some cases. If forward or the loss function threw on some ranks, the other
/// ranks wait in backward until these ranks reach their next backward. The ranks that threw then stay one step behind.
/// If backward threw, the next forward on that rank throws. If the optimizer's step threw on only some of the ranks,
/// the next backward and all later forwards throw on all ranks.
///
/// To detect ranks with diverged weights, pass the tensors from which backward starts to before_backward(), as
/// forward() does.
///
/// Numerics: in float64, matches one process with the global batch to 1e-9 over 20 steps. Without a hook, fp32 on 2
///           ranks (or 4, 8, …) is bit-identical to one process that adds the ranks' gradients and divides by the
///           number of ranks. Each gradient is divided before the sum; division by a power of two is exact
///           (tests/parallel)
/// Cost:     in each step, each of n ranks sends and receives 2 (n - 1) / n of the gradients' bytes. A second copy of
///           the gradients takes memory until they become views into the buckets. The ranks open one more set of
///           connections, or two more if there is a hook
/// Threads:  not thread-safe; backward may run on autograd's threads
/// Throws:   backward throws c10::Error if a rank ended, called a different collective or does not respond (the message
///           names the rank). It also throws c10::Error if the ranks' weights differ (the message names the parameter).
///           Exceptions of the hook are passed on
/// Ref:      torch.nn.parallel.DistributedDataParallel
class DistributedDataParallel {
 public:
  struct State;

  /// Checks that all ranks have the same model, then copies the parameters and buffers of rank 0 to all ranks.
  /// Collective.
  /// Throws: c10::ValueError if the ranks' models (the message names the tensor) or versions of Bellows or libtorch
  ///         differ, or if no parameter requires a gradient
  DistributedDataParallel(const Model& model, const comm::Group& group, const DistributedOptions& options = {});

  /// Calls before_forward(), then the model, then before_backward(), and returns the model's output.
  at::Tensor forward(const at::Tensor& input) const;

  /// Call this function before the model. The first call in a step broadcasts the buffers of rank 0.
  /// Throws: c10::Error if a parameter got no gradient in the last step (the message names the parameter and suggests a
  ///         fix)
  void before_forward() const;
  /// Call this function after the model and before backward(), once for each backward().
  /// Params: outputs – the tensors from which backward starts, or the model's outputs. They are required with
  ///                   find_unused_parameters, and in the first step with static_graph
  void before_backward(const std::vector<at::Tensor>& outputs) const;

  /// While this guard exists, each rank accumulates gradients without communication. For gradient accumulation, create
  /// it for all batches of a step except the last one, around both forward and backward.
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

  /// Runs `steps`, in which the ranks may make different numbers of steps. A rank that has finished early takes part in
  /// the exchanges of the other ranks with zero gradients. When all ranks have finished, they get the parameters and
  /// buffers of a rank that finished last. On the ranks that finished early, the optimizer state is not updated.
  /// Collective.
  /// Cost:   each forward gathers two integers per rank
  /// Throws: exceptions from `steps`; this rank then does not wait for the other ranks
  /// Ref:    torch.distributed.algorithms.Join
  void join(const std::function<void()>& steps, const JoinOptions& options = {}) const;

  /// Broadcasts the buffers of rank 0, such as running statistics. Call it before the ranks evaluate independently.
  /// Collective.
  void broadcast_buffers() const;

  /// Returns the order of the gradients in the buckets as the entry "buckets", a tensor [parameters, 2]. Each row
  /// contains a bucket index and the number of a parameter. On three or more ranks, the order in which a gradient is
  /// summed depends on its position in the bucket, so a checkpoint needs this state for a bit-identical resume. In a
  /// world of one rank, the state is empty. Collective: call it between a step and the next forward.
  NamedTensors state() const;
  /// Restores a state from state(). Call it before the first step. An empty state is allowed, and a world of one rank
  /// ignores the state. Collective.
  /// Throws: c10::ValueError if the buckets do not match the parameters of the model
  void restore(const NamedTensors& state) const;

  const Model& model() const;
  const comm::Group& group() const;
  /// Returns a text such as "4 ranks, 5 buckets, 44.7 MiB a step, gradients in the buckets". After the first step, the
  /// buckets are rebuilt in the order in which gradients become ready, so the text may change.
  std::string describe() const;

 private:
  std::shared_ptr<State> state_;
};

}  // namespace bellows::parallel
