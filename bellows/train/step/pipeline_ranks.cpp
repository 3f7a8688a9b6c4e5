#include "bellows/train/step/pipeline_ranks.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/one_hot.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <c10/util/irange.h>

#include <algorithm>
#include <map>
#include <memory>
#include <utility>

#include "bellows/comm/collectives.h"
#include "bellows/comm/shard.h"
#include "bellows/core/device.h"
#include "bellows/models/blocks.h"
#include "bellows/optim/state/state.h"
#include "bellows/train/recipe/context_keys.h"
#include "bellows/train/recipe/pipeline_keys.h"
#include "bellows/train/recipe/recipe_error.h"
#include "bellows/train/step/batch_placement.h"
#include "bellows/train/step/compiled_parts.h"

namespace bellows::train {

namespace {

using Tensors = std::vector<at::Tensor>;

/// The schedule for the batches of the job's data, whose size may differ from the recipe's.
parallel::PipelineSchedule schedule_of(const Job& job) {
  Recipe recipe = job.recipe;
  recipe.batch_size = job.train.loader_options().batch_size;
  recipe.batch_size_per_rank = 0;
  return pipeline_schedule(recipe);
}

/// Autocast must not include backward, so each part has its own guard.
ModelParts parts_with_precision(const Job& job) {
  ModelParts parts = models::model_parts(job.model);
  const amp::Policy policy = precision_policy(job.recipe);
  const c10::Device device = parse_device(job.recipe.device);
  for (ModelPart& part : parts.parts) {
    part.run = [run = std::move(part.run), policy, device](const at::Tensor& x, const Tensors& inputs) {
      const auto precision = make_precision_guard(policy, device);
      return run(x, inputs);
    };
  }
  return parts;
}

parallel::Pipeline divided_into_stages(const Job& job, const comm::Mesh& mesh, const std::optional<comm::Group>& data,
                                       const TensorRanks* tensor, const ContextRanks* context) {
  const auto compiled = std::make_shared<CompiledStages>(job.recipe);
  parallel::PipelineOptions options{.schedule = schedule_of(job),
                                    .seed = static_cast<uint64_t>(job.recipe.seed),
                                    .divide_backward = job.recipe.recompute == "none",
                                    .data = data};
  if (tensor) options.tensor = tensor->layers();
  if (compiled->on()) {
    options.forward_call = [compiled](const CompiledStages::Body& body) { compiled->forward(body); };
    options.backward_call = [compiled](const CompiledStages::Body& body) { compiled->backward(body); };
  }
  ModelParts parts = parts_with_precision(job);
  if (context) {
    options.context = context->group();
    parts = context->stage_parts(parts);
  }
  return parallel::pipeline(parts, mesh.group("pipeline"), options);
}

/// Leaves only the parameters of this rank in the optimizers. Clipping and loss scaling wait for all ranks, so each rank
/// needs one. Collective.
void keep_own_parameters(const Job& job, const Tensors& own, const comm::Group& group) {
  std::set<const at::TensorImpl*> held;
  for (const at::Tensor& parameter : own) held.insert(parameter.unsafeGetTensorImpl());
  bool has_each = true;
  for (const auto& optimizer : job.optimizers) {
    size_t count = 0;
    for (auto& parameters : optimizer->param_groups()) {
      std::erase_if(parameters.params(), [&](const at::Tensor& p) { return !held.contains(p.unsafeGetTensorImpl()); });
      count += parameters.params().size();
    }
    has_each = has_each && count > 0;
  }
  const std::vector<std::string> all = comm::all_gather_strings(has_each ? "" : "empty", group);
  const auto empty = std::find(all.begin(), all.end(), "empty");
  TORCH_CHECK_VALUE(empty == all.end(), "train: an optimizer has no parameter of the stages of rank ",
                    empty - all.begin(),
                    " of the axis pipeline. Pass parameters of all stages to each optimizer, or use "
                    "fewer ranks.");
}

/// Repeats the last sample until there are `rows` samples.
at::Tensor filled_up(const at::Tensor& tensor, int64_t rows) {
  if (!tensor.defined() || tensor.size(0) >= rows) return tensor;
  const at::Tensor index = at::arange(rows, at::TensorOptions(tensor.device()).dtype(at::kLong));
  return tensor.index_select(0, index.clamp_max(tensor.size(0) - 1));
}

int64_t samples_in(const Tensors& tensors) {
  const auto first = std::find_if(tensors.begin(), tensors.end(), [](const at::Tensor& t) { return t.defined(); });
  return first == tensors.end() ? 0 : first->size(0);
}

/// The inputs of the model. The loss of packed texts only reads the tokens, as in loss_function().
Tensors inputs_of(const Model& model, const Task& task, const data::Batch& batch) {
  if (task.loss != LossKind::next_token) return model_inputs(model, batch);
  Tensors inputs(model.inputs().size());
  inputs.front() = model_input(batch);
  return inputs;
}

/// One sample for a pipeline whose batch is empty. The tokens 1 and 2 alternate, so that not all of them are padding.
/// Params: least – smallest size of the dims after the first one
Tensors placeholder_inputs(const Model& model, const data::Batch& batch, int64_t least) {
  const at::Tensor& like = model_input(batch);
  std::vector<int64_t> sizes = like.sizes().vec();
  sizes.front() = 1;
  for (size_t dim = 1; dim < sizes.size(); ++dim) sizes[dim] = std::max(sizes[dim], least);
  Tensors inputs(model.inputs().size());
  inputs.front() = at::arange(c10::multiply_integers(sizes), like.options()).remainder(2).add(1).view(sizes);
  return inputs;
}

/// The tensors that the loss of a micro-batch reads. The first two are the items and the positions of the samples.
struct LossTensors {
  Tensors tensors;
  std::vector<std::string> names = {};  ///< of the tensors after the first two

  data::Batch batch_of(const Tensors& part) const {
    NamedTensors named;
    for (const size_t i : c10::irange(names.size())) named.emplace_back(names[i], part[i + 2]);
    return data::Batch(std::move(named), std::vector<int64_t>(static_cast<size_t>(part[1].numel())));
  }
};

/// Params: items – of the samples in the batch; rows – number of samples, of which the last ones may be repeated
LossTensors loss_targets(const data::Batch& batch, const at::Tensor& items, int64_t rows) {
  LossTensors targets;
  const at::Tensor none = at::zeros({rows - items.numel()}, items.options());
  targets.tensors = {at::cat({items, none}), at::arange(rows, at::kLong)};
  for (const auto& [name, tensor] : batch.tensors()) {
    if (batch.size() == 0) break;
    targets.names.push_back(name);
    targets.tensors.push_back(filled_up(tensor, rows));
  }
  return targets;
}

/// Returns the tensors without those that only other ranks hold.
NamedTensors held(NamedTensors tensors, const std::set<std::string>& others) {
  std::erase_if(tensors, [&](const auto& item) { return others.contains(item.first); });
  return tensors;
}

/// See PipelineRanks::local_model().
class HeldModel final : public ModelWrapper {
 public:
  HeldModel(Model inner, std::set<std::string> others) : ModelWrapper(std::move(inner)), others_(std::move(others)) {}
  NamedTensors named_parameters() const override { return held(inner().named_parameters(), others_); }
  NamedTensors named_buffers() const override { return held(inner().named_buffers(), others_); }

 private:
  std::set<std::string> others_;
};

/// See PipelineRanks::evaluated_model().
class StagedModel final : public ModelWrapper {
 public:
  StagedModel(parallel::Pipeline stages, const TensorRanks* tensor)
      : ModelWrapper(stages.model()), stages_(std::move(stages)), tensor_(tensor) {}

  Tensors forward_all(const Tensors& inputs) override {
    const int64_t samples = samples_in(inputs);
    Tensors filled;
    for (const at::Tensor& input : inputs) filled.push_back(filled_up(input, stages_.schedule().micro_batches));
    at::Tensor output = stages_.forward(filled);
    if (output.defined()) output = output.narrow(0, 0, samples);
    return {tensor_ ? tensor_->layers().complete_logits(output) : output};
  }

 private:
  parallel::Pipeline stages_;
  const TensorRanks* tensor_;
};

}  // namespace

void PipelineRanks::check(const Job& job) {
  check_new_optimizers(job);
  for (const auto& optimizer : job.optimizers) {
    TORCH_CHECK_VALUE(optim::has_named_state(*optimizer), "train: mesh = ", job.recipe.mesh,
                      " divides the model into stages, but the state of an optimizer class of your own cannot be "
                      "divided. Use an optimizer of Bellows or libtorch.");
  }
  TORCH_CHECK_VALUE(job.output_loss, "train: mesh = ", job.recipe.mesh,
                    " divides the model into stages, so the loss is computed from the output of the last stage. A "
                    "loss function that runs the model is not enough. Create the job with make_job(), or set "
                    "Job::output_loss, for example to output_loss(task).");
  size_t parts = 0;
  try {
    parts = models::model_parts(job.model).parts.size();
  } catch (const c10::ValueError&) {
    check_recipe(false, "train: mesh = ", job.recipe.mesh, " divides the model into stages, but the model \"",
                 job.model.name(),
                 "\" is not a sequence of parts. gpt, bert, distilbert and encoder_decoder are. Remove the axis "
                 "pipeline, or use another model.");
  }
  const int stages = schedule_of(job).stages();
  check_recipe(static_cast<int>(parts) >= stages, "train: mesh = ", job.recipe.mesh, " cannot divide ", parts,
               " parts into ", stages, " stages. The parts of the model \"", job.model.name(),
               "\" are its embeddings, each of its layers, and its head. Use fewer ranks on the axis pipeline, or "
               "fewer pipeline_stages.");
}

PipelineRanks::PipelineRanks(const Job& job, const comm::Mesh& mesh, const std::optional<comm::Group>& data,
                             const TensorRanks* tensor, const ContextRanks* context)
    : model_(job.model),
      loss_(job.output_loss),
      task_(job.task),
      device_(parse_device(job.recipe.device)),
      policy_(precision_policy(job.recipe)),
      predicts_(job.recipe.train_metrics != "none" && job.task.classifies_samples()),
      least_length_(std::max<int64_t>(context_chunks(job.recipe), 2)),
      tensor_(tensor),
      group_(mesh.group("pipeline")),
      all_(*job.ranks),
      data_(data),
      averages_each_batch_(job.recipe.sync_each_batch &&
                           (job.recipe.data_parallel == "zero2" || job.recipe.data_parallel == "zero3")),
      stages_(divided_into_stages(job, mesh, data, tensor, context)) {
  for (const auto& [name, value] : model_.state_dict()) others_.insert(name);
  for (const comm::Shard& shard : stages_->shards()) others_.erase(shard.name);
  keep_own_parameters(job, stages_->parameters(), group_);
}

/// Number of items and of samples, of all pipelines.
at::Tensor PipelineRanks::counts_of(const data::Batch& batch, const at::Tensor& items) const {
  const at::Tensor own = at::stack({at::sum(items), at::scalar_tensor(batch.size(), items.options())}).to(device_);
  return data_ ? comm::all_reduce(own, *data_) : own;
}

/// Copies the predicted classes of the last stage to all ranks.
/// Params:  outputs – positions and logits of micro-batches; empty on the other ranks
/// Returns: numbers of which the largest one is at the predicted class: [N, C]
at::Tensor PipelineRanks::predictions_of(const std::vector<std::pair<at::Tensor, at::Tensor>>& outputs,
                                         int64_t samples) const {
  const c10::NoGradGuard no_grad;
  at::Tensor classes = at::zeros({samples}, at::TensorOptions(device_).dtype(at::kLong));
  for (const auto& [positions, output] : outputs) {
    const at::Tensor logits = tensor_ ? tensor_->layers().complete_logits(output) : output;
    classes.index_copy_(0, positions.to(device_), at::argmax(logits, 1));
  }
  return at::one_hot(comm::broadcast(classes, output_rank().rank, group_));
}

PipelineOutput PipelineRanks::forward_backward(const data::Batch& batch, const PipelineBatch& how) {
  const bool empty = batch.size() == 0;
  const at::Tensor items = empty ? at::zeros({0}, at::kDouble) : loss_.items(batch).to(at::kCPU, at::kDouble);
  const at::Tensor counts = counts_of(batch, items);
  const auto all_items = counts[0].item<double>();
  const bool counts_none = all_items == 0;  // the pipeline needs weights above 0, and the loss must not divide by 0

  Tensors inputs = empty ? placeholder_inputs(model_, batch, least_length_) : inputs_of(model_, task_, batch);
  for (at::Tensor& input : inputs) input = filled_up(input, stages_->schedule().micro_batches);
  const LossTensors targets = loss_targets(batch, items, samples_in(inputs));
  std::vector<std::pair<at::Tensor, at::Tensor>> outputs;
  const parallel::PipelineLoss loss = [&](const at::Tensor& output, const Tensors& part) {
    if (counts_none) return at::sum(output.reshape({-1}).narrow(0, 0, 0));
    const auto precision = make_precision_guard(policy_, device_);
    if (tensor_) tensor_->check_output(task_);
    if (predicts_) outputs.emplace_back(part[1], output.detach());
    return loss_.mean(output, targets.batch_of(part));
  };
  stages_->set_steps(how.number);
  const double mean =
      stages_->step(inputs, targets.tensors, loss,
                    {.loss_factor = all_items / how.unit,
                     .grad_scale = how.grad_scale,
                     .weight = [&](const Tensors& part) { return counts_none ? 1 : part[0].sum().item<double>(); },
                     .average_gradients = how.last || averages_each_batch_});
  StepOutput output(at::scalar_tensor(mean, counts.options()));
  output.count = counts[0];
  if (predicts_ && !empty) output.predictions = predictions_of(outputs, batch.size());
  return {std::move(output), counts[1].to(at::kLong).item<int64_t>()};
}

OutputRank PipelineRanks::output_rank() const {
  return {&group_, stages_->schedule().stage_ranks.back()};
}

Model PipelineRanks::local_model() const {
  return Model(model_.name(), std::make_shared<HeldModel>(model_, others_));
}

Model PipelineRanks::evaluated_model() const {
  return Model(model_.name(), std::make_shared<StagedModel>(*stages_, tensor_));
}

checkpoint::Parts PipelineRanks::complete_shards(checkpoint::Parts of_local) const {
  return tensor_ ? tensor_->complete_shards(std::move(of_local)) : of_local;
}

checkpoint::Parts PipelineRanks::parts_of(const torch::optim::Optimizer& optimizer) const {
  return stages_->state_shards(optimizer);
}

NamedTensors PipelineRanks::local_parts(const NamedTensors& complete) const {
  NamedTensors own = held(complete, others_);
  return tensor_ ? tensor_->local_parts(own) : own;
}

checkpoint::Parts PipelineRanks::wanted_shards(const torch::optim::Optimizer& optimizer,
                                               const std::vector<parallel::SavedTensor>& saved) const {
  return stages_->wanted_shards(optimizer, saved);
}

void PipelineRanks::load_shards(torch::optim::Optimizer& optimizer, const checkpoint::Parts& filled) const {
  stages_->load_shards(optimizer, filled);
}

void PipelineRanks::complete_parameters() {
  const c10::NoGradGuard no_grad;
  // The ranks of one pipeline hold all elements if layers are complete.
  const NamedTensors complete = comm::gather(stages_->shards(), tensor_ ? all_ : group_);
  const std::map<std::string, at::Tensor> values(complete.begin(), complete.end());
  stages_.reset();
  for (auto [name, tensor] : model_.state_dict()) {
    if (tensor.grad().defined()) tensor.mutable_grad().reset();
    tensor.set_data(values.at(name).to(tensor.device()));
  }
}

std::string PipelineRanks::describe() const {
  return "pipeline parallelism: " + stages_->describe() + (tensor_ ? ", " + tensor_->describe() : "");
}

}  // namespace bellows::train
