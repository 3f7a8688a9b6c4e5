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
  bool find_unused_parameters = false;  ///< some steps do not use all parameters, on some ranks or all
  /// Every step uses the same parameters equally often; unused ones are found once.
  bool static_graph = false;
  bool broadcast_buffers = true;  ///< broadcast rank 0's buffers once per step
  /// Gradients are views into the buckets. If false, they are copies and take twice the memory.
  bool gradient_as_bucket_view = true;
  std::shared_ptr<GradientHook> hook;    ///< computes the mean of gradients; null: exact mean by all_reduce
  int64_t bucket_bytes = 25 << 20;       ///< size of a bucket of gradients
  int64_t first_bucket_bytes = 1 << 20;  ///< a small first bucket, so that communication starts early
};

struct JoinOptions {
  bool divide_by_all = true;  ///< divide gradients by the number of all ranks; false: of ranks that have data left
};

/// Trains one model on all ranks; each rank processes its own part of the batch. After backward, all ranks have the
/// mean of their gradients, which are exchanged in buckets during backward. So the optimizers make the same step on
/// every rank.
///
///     bw::parallel::DistributedDataParallel ddp(model, world);
///     loss_of(ddp.forward(x), y).backward();                // or, if the loop calls the model itself:
///     ddp.before_forward();  auto loss = loss_of(model(x), y);  ddp.before_backward({loss});  loss.backward();
///
/// To get the mean over the whole batch, use batches of the same size on all ranks, or multiply each mean loss by the
/// loader's Batch::loss_weight(). Without gradients (NoGradGuard, inference mode), nothing is exchanged, so each rank
/// evaluates on its own.
///
/// Parameters must keep their shape and dtype and must not be replaced while the object lives. Sparse gradients are not
/// supported. Gradients may be set to none. In a world of one, results are bit-identical to the plain model, and the
/// hook is not called. The object is a handle: copies share their state.
///
/// Numerics: float64 matches one process with the whole batch to 1e-9 over 20 steps. Without a hook, fp32 on 2 ranks
///           (or 4, 8, …) is bit-identical to one process that adds the ranks' gradients and divides by their number.
///           Each gradient is divided before the sum, which is exact for powers of two (tests/parallel)
/// Cost:     in a step, each of n ranks sends and receives 2 (n - 1) / n of the gradients' bytes; memory for a second
///           copy of the gradients until they are views into the buckets; a second set of connections, and a third one
///           with a hook
/// Threads:  one owner; backward may run on autograd's threads
/// After an exception, the caller may continue. Ranks that threw before backward exchange gradients again in the next
/// step. If backward threw, the next forward on that rank throws. If the optimizer's step threw on some ranks only, the
/// next backward and all later forwards throw on all ranks.
///
/// To detect diverged ranks, pass to before_backward() the tensors from which backward starts, as forward() does.
/// Throws:   from backward: c10::Error if a rank ended, called another collective or does not respond (the message
///           names it), or if the ranks' weights differ (the message names the parameter); exceptions of the hook
/// Ref:      torch.nn.parallel.DistributedDataParallel
class DistributedDataParallel {
 public:
  struct State;

  /// Compares the model between ranks, then copies rank 0's parameters and buffers to all ranks. Collective.
  /// Throws: c10::ValueError if the ranks' models differ (the message names the tensor) or no parameter requires a
  ///         gradient
  DistributedDataParallel(const Model& model, const comm::Group& group, const DistributedOptions& options = {});

  /// Calls before_forward(), the model and before_backward().
  at::Tensor forward(const at::Tensor& input) const;

  /// Call it before the model. The first call in a step broadcasts rank 0's buffers.
  /// Throws: c10::Error if a parameter got no gradient in the last step (the message has its name and advice)
  void before_forward() const;
  /// Call it between the model and backward(), once for each backward().
  /// Params: outputs – the tensors from which backward starts, or the model's outputs. find_unused_parameters and the
  ///                   first step of a static_graph require them
  void before_backward(const std::vector<at::Tensor>& outputs) const;

  /// While the guard lives, gradients accumulate on each rank without communication. Use it for all batches of a step
  /// but the last, around both forward and backward.
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

  /// Runs `steps`, which may make a different number of steps on each rank. A rank that has finished takes part in the
  /// exchanges of the others with zero gradients until all have finished. Then all ranks get the parameters and buffers
  /// of a rank that finished last. The optimizer states of the other ranks are not updated. Collective.
  /// Cost:   each forward gathers two integers per rank
  /// Throws: exceptions of `steps`; then the other ranks are not waited for
  /// Ref:    torch.distributed.algorithms.Join
  void join(const std::function<void()>& steps, const JoinOptions& options = {}) const;

  /// Broadcasts rank 0's buffers, such as running statistics, before each rank evaluates on its own. Collective.
  void broadcast_buffers() const;

  /// Returns the order of gradients in the buckets: {"buckets", [parameters, 2]}, the bucket and the number of each
  /// parameter. A checkpoint needs it for a bit-identical resume on three or more ranks, where the order of a
  /// gradient's sum depends on its place in the bucket. Collective; call it between a step and the next forward. Empty
  /// in a world of one.
  NamedTensors state() const;
  /// Restores state() before the first step. Collective. An empty state is allowed; in a world of one, any state is.
  /// Throws: c10::ValueError if the buckets belong to another model
  void restore(const NamedTensors& state) const;

  const Model& model() const;
  const comm::Group& group() const;
  /// "4 ranks, 5 buckets, 44.7 MiB a step, gradients in the buckets". The buckets are rebuilt after the first step in
  /// the order in which gradients become ready.
  std::string describe() const;

 private:
  std::shared_ptr<State> state_;
};

}  // namespace bellows::parallel
