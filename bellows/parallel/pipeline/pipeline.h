#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bellows/comm/group.h"
#include "bellows/comm/shard.h"
#include "bellows/core/model_parts.h"
#include "bellows/parallel/pipeline/schedule.h"
#include "bellows/parallel/pipeline/timeline.h"
#include "bellows/parallel/tensor/tensor_parallel.h"
#include "bellows/parallel/zero/zero_optimizer.h"

namespace bellows::parallel {

/// Computes the loss of a micro-batch, a mean over its samples.
using PipelineLoss = std::function<at::Tensor(const at::Tensor& output, const std::vector<at::Tensor>& targets)>;
/// Calls `body` once, for example in a function that bellows::compile() returned.
using StageCall = std::function<void(const std::function<void()>& body)>;

struct PipelineOptions {
  PipelineSchedule schedule;
  /// The first part of each stage, for example from balance_stages(). Empty: each stage gets about the same number of
  /// parts.
  std::vector<int> first_parts = {};
  uint64_t seed = 0;      ///< of the random numbers in training, such as dropout masks
  bool broadcast = true;  ///< copy the parameters and buffers of rank 0 to all ranks first
  /// False: backward_input computes all gradients, and backward_weight does nothing. Use it with activation
  /// checkpointing, which would otherwise recompute several times.
  bool divide_backward = true;
  bool check_finite = false;  ///< throw if an output, a loss or a gradient between stages is infinite or NaN
  bool measure = false;       ///< record when actions run, for timeline()
  /// Call the computations of each micro-batch in a stage: forward, with the loss in the last stage, and backward.
  /// Messages between ranks are not part of them. If one of the functions is set, each micro-batch is a copy, so that
  /// all of them have the same storage offset. Null: stages compute directly.
  StageCall forward_call = nullptr, backward_call = nullptr;
  /// The ranks that hold the same stages of other pipelines, such as the data axis of a mesh. Each pipeline gets its own
  /// batches, and step() averages the gradients.
  std::optional<comm::Group> data = std::nullopt;
  /// The ranks that divide the sequences of the same batches, for parts of ContextParallel::stage_parts(). They draw
  /// the same random numbers, and step() also averages the gradients over them.
  std::optional<comm::Group> context = std::nullopt;
  /// The object that parallelize() created from the same model. The ranks of its group are in different pipelines, which
  /// pass the same batch.
  std::optional<TensorParallel> tensor = std::nullopt;
};

struct PipelineStepOptions {
  /// The loss is multiplied by this number for backward. With gradient accumulation over n steps, pass 1 / n.
  double loss_factor = 1;
  /// The loss is also multiplied by this number, for GradScaler: scaler.scale(at::ones({})). Undefined: 1.
  at::Tensor grad_scale = {};
  /// Weight of a micro-batch in the mean, such as its number of tokens that count. Null: its number of samples. The
  /// loss function is not called for micro-batches of weight 0.
  std::function<double(const std::vector<at::Tensor>& targets)> weight = nullptr;
  /// Average the gradients over PipelineOptions::data and context. With gradient accumulation, only the last step needs
  /// it.
  bool average_gradients = true;
};

/// A model whose parts are divided among the ranks of a group. Each rank computes one stage or several ones, and a
/// batch is divided into micro-batches, which pass through the stages. pipeline() creates the object. It is a handle:
/// copies share their state.
///
///     auto schedule = bw::parallel::one_forward_one_backward(group.size(), 8);
///     auto pipeline = bw::parallel::pipeline(bw::models::model_parts(model), group, {.schedule = schedule});
///     bw::optim::AdamW optimizer(pipeline.parameters());
///     optimizer.zero_grad();
///     const double loss = pipeline.step({ids}, {targets}, loss_function);  // forward and backward
///     bw::optim::clip_grad_norm_(pipeline.parameters(), 1.0);              // the norm over all stages
///     optimizer.step();
///
/// All ranks pass the same batch. The first stage and masks use the inputs, and the last stage uses the targets.
/// Parameters of other stages are freed. If several stages use a parameter (tied weights), each of their ranks has a
/// copy, and step() adds the gradients of the copies.
///
/// Meshes: with PipelineOptions::data, the ranks of one pipeline pass the same batch, and each pipeline has its own
/// batches. The mean is that of all batches, and gradients are averaged at the end of step(). With
/// PipelineOptions::tensor, the layers of each stage are divided, too, and with PipelineOptions::context the sequences.
/// Clipping and GradScaler use all axes. zero_optimizer() with model() and the group of the data axis, combined with that
/// of the context axis, divides the state of the stages. In stages 2 and 3, the micro-batches of a step add complete
/// gradients, which step() then exchanges once. Parameters of stage 3 are gathered for each micro-batch, or once per step
/// if you call ShardedOptimizer::gather_parameters() before step().
///
///     bw::comm::Mesh mesh(world, {{"data", 2}, {"pipeline", 2}, {"tensor", 2}});
///     auto tensor = bw::parallel::parallelize(model, mesh, "tensor", bw::parallel::tensor_plan(model));
///     auto pipeline = bw::parallel::pipeline(bw::models::model_parts(model), mesh.group("pipeline"),
///                                            {.schedule = schedule, .data = mesh.group("data"), .tensor = tensor});
///
/// Random numbers: in training, each part draws from a generator whose seed depends only on PipelineOptions::seed, the
/// number of the step, the micro-batch and the part. Dropout masks therefore do not depend on the number of ranks, the
/// division into stages or the schedule. They equal those of a pipeline on one rank with the same number of
/// micro-batches, but not those of model.forward(). Each rank of the data axis uses different masks. After the step,
/// the default generator has its state from before.
///
/// Numerics: loss and gradients are the weighted mean over micro-batches, which is the mean over the batch. In fp64,
///           losses, norms and weights of 20 steps match one process to 1e-9, with each schedule, with dropout,
///           gradient accumulation, clipping and tied weights (tests/parallel/pipeline)
/// Cost:     each boundary between ranks sends each output and its gradient once per micro-batch. The bubble depends
///           on the schedule (schedule.h). Tied weights are all-reduced once per step. The data axis all-reduces the
///           gradients after backward, and two numbers. Each rank needs memory for the complete model until pipeline()
///           returns
/// Threads:  not thread-safe
/// Throws:   step() throws c10::ValueError if the batch has fewer samples than micro-batches or if its tensors have
///           different numbers of samples. With a data axis, all pipelines then throw c10::ValueError. If a rank fails
///           or ends, all ranks throw c10::Error, which names the rank, the action and the reason. Afterwards, the
///           object cannot be used. Other ranks of the failed rank's tensor or context axis may not throw until its
///           process ends
/// Ref:      arXiv:1811.06965 (GPipe), arXiv:2104.04473; torch.distributed.pipelining
class Pipeline {
 public:
  struct State;
  explicit Pipeline(std::shared_ptr<State> state) : state_(std::move(state)) {}

  /// Computes the loss of a batch and adds the gradients to those of parameters(). Collective.
  /// Params:  inputs – inputs of the model, with the samples along dim 0. Optional inputs may be undefined
  ///          targets – passed to `loss`, divided like the inputs
  /// Returns: the mean loss of the batches of all pipelines, on all ranks, without `loss_factor` and `grad_scale`
  double step(const std::vector<at::Tensor>& inputs, const std::vector<at::Tensor>& targets, const PipelineLoss& loss,
              const PipelineStepOptions& options = {});

  /// Computes outputs without gradients, for evaluation. Uses the schedule's number of micro-batches. Collective.
  /// Returns: the output of the batch on the rank of the last stage; undefined on the others. If tensor parallelism
  ///          divides the vocabulary, this rank's part of the logits (see TensorParallel::gather_logits())
  at::Tensor forward(const std::vector<at::Tensor>& inputs);

  /// The parameters of this rank's stages, each once, in the order of the model.
  const std::vector<at::Tensor>& parameters() const;
  /// The complete model. Parameters of other ranks' stages have no elements. Use it to switch between training and
  /// evaluation.
  const Model& model() const;
  const PipelineSchedule& schedule() const;

  /// The number of steps that were computed. It selects the random numbers of the next step, so save it in checkpoints.
  int64_t steps() const;
  void set_steps(int64_t steps);

  /// Sends the sizes of outputs again in the next step. Needed only if sizes change although the sizes of the inputs do
  /// not, or after you freeze or unfreeze parameters. Call it on all ranks.
  void forget_sizes();

  /// Describes this rank's parameters and buffers for a sharded checkpoint (checkpoint/sharded.h) or for
  /// comm::gather(). Any number of ranks, any division into stages and one process can load them.
  std::vector<comm::Shard> shards() const;
  /// Describes this rank's part of the optimizer's state, with the names that optim::state_dict() has in one process
  /// whose optimizer lists the parameters in the order of the model. All ranks need the same number of parameter
  /// groups. Parameters of a group must be in the order of the model. Collective.
  /// Throws: c10::ValueError on all ranks if a parameter of a rank's optimizer belongs to no stage of this rank
  std::vector<comm::Shard> state_shards(const torch::optim::Optimizer& optimizer) const;
  /// Returns parts for the saved state of an optimizer. Fill their tensors, then call load_shards(). Collective.
  /// Params: saved – the tensors of the checkpoint
  std::vector<comm::Shard> wanted_shards(const torch::optim::Optimizer& optimizer,
                                         const std::vector<SavedTensor>& saved) const;
  void load_shards(torch::optim::Optimizer& optimizer, const std::vector<comm::Shard>& filled) const;

  /// When all ranks ran the actions of the last step. Needs PipelineOptions::measure. Collective.
  /// Numerics: ranks of one machine have the same clock; the times of other machines are shifted
  PipelineTimeline timeline() const;

  /// Returns a text such as "4 stages on 2 ranks, interleaved with 8 micro-batches, 3.1 MiB of parameters on this
  /// rank".
  std::string describe() const;

 private:
  std::shared_ptr<State> state_;
};

/// Divides the parts of a model among the ranks of a group, and frees the other parameters. Create optimizers
/// afterwards. Collective.
/// Params: group – one rank per rank of the schedule, such as a mesh axis
/// Cost:   broadcasts the model once
/// Throws: c10::ValueError, before anything changes, if the ranks' models, schedules, stages, seeds or versions differ.
///         The message names the difference. The same holds if two axes have more than this rank in common, or if
///         tensor parallelism divided the model, but PipelineOptions::tensor is not set. It is also thrown if the
///         schedule is not valid (schedule.h) or for another number of ranks, and for the reasons of check_stages()
Pipeline pipeline(const ModelParts& parts, const comm::Group& group, const PipelineOptions& options);

}  // namespace bellows::parallel
