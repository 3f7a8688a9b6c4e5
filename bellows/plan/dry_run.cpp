#include "bellows/plan/dry_run.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

#include "bellows/core/seed.h"
#include "bellows/data/source.h"
#include "bellows/inspect/tensor_recorder.h"
#include "bellows/inspect/trace.h"
#include "bellows/models/head.h"
#include "bellows/models/registry.h"
#include "bellows/models/vision/auxiliary.h"
#include "bellows/nn/distillation.h"
#include "bellows/optim/state/state.h"
#include "bellows/tap/allocator.h"
#include "bellows/train/data/data_assembly.h"
#include "bellows/train/distillation.h"
#include "bellows/train/loss.h"
#include "bellows/train/step/train_loop.h"

namespace bellows::train {

/// A batch, which lives until the next one, like the loader's last batch.
struct MadeUpBatch {
  std::vector<at::Tensor> inputs, step_inputs;  // kept between steps; of the current step
  at::Tensor labels, step_labels;
};

namespace {

using models::InputKind;
using models::ModelEntry;
using models::OutputKind;

/// Keeps settings that affect memory, and disables the rest.
Recipe for_dry_run(Recipe recipe) {
  recipe.validate();
  recipe.device = "cpu";
  recipe.data = recipe.eval_data = recipe.subset = recipe.weights = recipe.teacher_weights = recipe.run_folder = "";
  recipe.batch_size = 1;  // of the placeholder rows
  recipe.batch_size_per_rank = 0;
  recipe.batch_size_start = recipe.image_size_start = 0;
  recipe.growth_epochs = recipe.target_accuracy = recipe.warmup_epochs = 0;
  recipe.lr_schedule = "constant";
  recipe.gradient_accumulation_steps = std::min<int64_t>(recipe.gradient_accumulation_steps, 2);
  recipe.lr = 1e-8;  // must not diverge on synthetic samples
  recipe.num_workers = 0;
  recipe.sample_stats = false;
  recipe.compile = "none";  // compiled steps allocate later, but not more
  recipe.teacher_compile = false;
  recipe.memory_budget = 1;
  if (recipe.data_parallel == "dp") recipe.data_parallel = "ddp";  // plans one replica
  return recipe;
}

/// The name of the original samples, which a training run does not have.
constexpr const char* made_up = "(made up)";

std::vector<int64_t> label_shape(const ModelEntry& entry, const at::Tensor& input) {
  if (entry.output == OutputKind::sample) return {input.size(0)};
  if (entry.output == OutputKind::token) return {input.size(0), input.size(1)};
  return {input.size(0), input.size(2), input.size(3)};
}

/// A teacher's outputs as they come from a cache, for outputs of this shape.
StepOutput cached_loss(const Recipe& recipe, const Task& task, const Distillation& distillation,
                       const at::Tensor& output, const at::Tensor& labels) {
  const at::Tensor taught = at::zeros(output.sizes());
  if (recipe.teacher_top == 0) return distilled_loss(distillation, task, output, taught, labels);
  const at::Tensor logits = task.per_pixel ? taught.movedim(1, -1) : taught;
  const int64_t top = std::min<int64_t>(recipe.teacher_top, logits.size(-1));
  return distilled_loss(distillation, task, output, nn::top_logits(logits, top, distillation.temperature), labels);
}

LossFn dry_run_loss(const Recipe& recipe, const Model& model, const Task& task,
                    const std::optional<Distillation>& distillation, std::shared_ptr<MadeUpBatch> batch) {
  return [recipe, model, task, distillation, batch = std::move(batch)](const data::Batch&) -> StepOutput {
    {
      const inspect::TraceScope load("load");
      batch->step_inputs.clear();
      batch->step_labels = at::Tensor();
      for (const at::Tensor& input : batch->inputs) batch->step_inputs.push_back(input.clone());
      batch->step_labels = batch->labels.clone();
    }
    const at::Tensor& labels = batch->step_labels;
    const bool cached = !recipe.teacher_cache.empty();
    const at::Tensor taught = distillation && !cached ? distillation->output(batch->step_inputs) : at::Tensor();
    if (!distillation && task.loss == LossKind::next_token)
      return token_loss(model, batch->step_inputs.front(), labels, task.label_smoothing) / labels.numel();
    return model_loss(model, batch->step_inputs, [&](const at::Tensor& output) -> StepOutput {
      if (distillation && cached) return cached_loss(recipe, task, *distillation, output, labels);
      if (distillation) return distilled_loss(*distillation, task, output, taught, labels);
      return task_loss(task, output, labels);
    });
  };
}

/// Synthetic labels of the kind that the task's loss reads.
at::Tensor made_up_labels(const ModelEntry& entry, const Task& task, const at::Tensor& input) {
  const bool classes = task.loss == LossKind::cross_entropy || task.loss == LossKind::next_token;
  if (classes) return at::zeros(label_shape(entry, input), at::kLong);
  return at::zeros({input.size(0), std::max<int64_t>(task.outputs, 1)});
}

/// With the data where the model itself does not say what it reads or predicts.
ResolvedJob resolve_for_dry_run(const Recipe& recipe) {
  ResolvedJob job = resolve_model(recipe);
  const bool silent = job.model.input == InputKind::arrays || models::is_program_path(recipe.model);
  return silent && !recipe.data.empty() ? resolve(recipe) : job;
}

/// Takes input shapes from the data if the model does not declare them.
void learn_shapes(ModelEntry& entry, const ResolvedJob& job) {
  const bool unknown = std::ranges::any_of(entry.inputs, [](const auto& input) { return input.shape.empty(); });
  if (!unknown || !job.data) return;
  data::Loader loader = train_part(job).sequential().batch(1).threads(0).loader();
  loader.start(0);
  const auto batch = loader.next();
  if (!batch) return;
  const std::vector<at::Tensor> inputs = model_inputs(entry.make(std::max<int64_t>(job.task.outputs, 1), 1), *batch);
  for (size_t i = 0; i < entry.inputs.size(); ++i) entry.inputs[i].shape = inputs[i].sizes().slice(1).vec();
}

ModelEntry entry_of(const ResolvedJob& job) {
  ModelEntry entry = job.model;
  learn_shapes(entry, job);
  entry.input_shape[0] = job.input_width();
  if (entry.input == InputKind::tokens) entry.input_shape[1] = job.max_length();
  return entry;
}

/// The same model in another size.
ModelEntry sized_entry(ModelEntry entry, const std::optional<models::ModelSize>& model_size) {
  if (!model_size) return entry;
  entry.input_shape[0] = model_size->words;
  entry.make = [make = entry.make_sized, of = *model_size](int64_t classes, int64_t) { return make(of, classes); };
  return entry;
}

}  // namespace

ModelEntry dry_run_entry(const Recipe& recipe) {
  return entry_of(resolve_for_dry_run(recipe));
}

int64_t dry_run_length(const Recipe& recipe, const ModelEntry& entry, const StepSize& size) {
  if (size.length > 0) return size.length;
  if (entry.input == InputKind::image && recipe.image_size > 0) return recipe.image_size;
  if (entry.input == InputKind::arrays) return 1;
  if (entry.input_shape[1] > 0) return entry.input_shape[1];
  return entry.input == InputKind::image ? 224 : entry.input == InputKind::tokens ? 128 : 13;
}

struct DryRun::State {
  State(const ResolvedJob& job, const std::optional<models::ModelSize>& model_size)
      : recipe(for_dry_run(job.recipe)),
        entry(sized_entry(entry_of(job), model_size)),
        task(job.task),
        rows(data::from_tensors({{"image", at::zeros({1 << 12, 1})}})) {
    tap::install_cpu_allocator();
    seed_everything(static_cast<uint64_t>(recipe.seed));
    bytes_before = tap::cpu_allocation_counters().current_bytes;
    model = entry.make(outputs(), entry.input_shape[0]);
    place_model(recipe, *model);
    amp::MasterWeights masters;
    if (const amp::Policy policy = precision_policy(recipe); policy.low_weights) {
      amp::PreparedModel prepared = amp::apply(*model, policy);
      model = std::move(prepared.model);
      masters = std::move(prepared.masters);
    }
    if (const auto teacher = teacher_entry(job)) make_teacher(*teacher, job.recipe.teacher_compile);
    optimizer = make_optimizer(recipe, *model);
    keep_masters(*optimizer, masters);
    master_weights = masters.state_dict();
  }

  /// Creates the teacher, unless its outputs come from a cache. The step then reads only them.
  void make_teacher(const ModelEntry& teacher, bool compiled) {
    if (!recipe.teacher_cache.empty()) {
      distillation = {.teacher = *model, .weight = recipe.distill, .temperature = recipe.distill_temperature};
      return;
    }
    distillation = untrained_distillation(recipe, teacher, outputs(), entry.input_shape[0]);
    for (const auto& [name, tensor] : distillation->teacher.state_dict()) {
      teacher_tensors.emplace_back("teacher " + name, tensor);
      // A compiled teacher has its matrices and filters in oneDNN's layout, too.
      if (compiled && tensor.dim() > 1) teacher_tensors.emplace_back("compiled teacher " + name, tensor.clone());
    }
  }

  /// A loop over batches of this size. Their bytes are counted, but not those of the original samples.
  TrainLoop loop(const StepSize& size) {
    batch.reset();
    const int64_t before = tap::cpu_allocation_counters().current_bytes;
    batch = std::make_shared<MadeUpBatch>();
    batch->inputs = models::example_inputs(entry, size.batch, dry_run_length(recipe, entry, size));
    for (at::Tensor& input : batch->inputs) {
      if (recipe.channels_last && input.dim() == 4) input = input.contiguous(at::MemoryFormat::ChannelsLast);
    }
    batch->labels = made_up_labels(entry, task, batch->inputs.front());
    sample_bytes = tap::cpu_allocation_counters().current_bytes - before;
    if (recorder) {
      for (const at::Tensor& input : batch->inputs) recorder->add(inspect::TensorKind::other, made_up, input);
      recorder->add(inspect::TensorKind::other, made_up, batch->labels);
    }
    return TrainLoop({.recipe = recipe,
                      .model = *model,
                      .optimizers = {optimizer},
                      .loss = dry_run_loss(recipe, *model, task, distillation, batch),
                      .train = data::Dataset(rows).batch(1).threads(0)});
  }

  /// Names the optimizer state and averages after their parameters.
  void name_state(const TrainLoop& loop) {
    using inspect::TensorKind;
    const NamedTensors parameters = model->named_parameters();
    for (const auto& [key, tensor] : optim::state_dict(*optimizer)) {  // key: "state.3.exp_avg.absmax"
      if (!key.starts_with("state.") || tensor.dim() == 0) continue;
      const size_t dot = key.find('.', 6);
      std::string what = key.substr(dot + 1);
      std::ranges::replace(what, '.', ' ');
      recorder->add(TensorKind::optimizer, parameters[std::stoull(key.substr(6, dot))].first + " " + what, tensor);
    }
    if (!loop.average()) return;
    for (const auto& [name, tensor] : loop.average()->averaged())
      recorder->add(TensorKind::other, name + " average", tensor);
  }

  /// Makes each recorded step start in the same state.
  void forget_last_batch() {
    batch->step_inputs.clear();
    batch->step_labels = at::Tensor();
  }

  /// Number of the model's outputs; ten classes if it is not known.
  int64_t outputs() const {
    if (task.outputs > 0) return task.outputs;
    const bool classes = task.loss == LossKind::cross_entropy || task.loss == LossKind::next_token;
    return classes ? 10 : 1;
  }

  void step(TrainLoop& loop) {
    const auto begin = std::chrono::steady_clock::now();
    loop.run_steps(1);
    seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }

  const Recipe recipe;
  const ModelEntry entry;
  const Task task;
  const data::SourcePtr rows;
  int64_t bytes_before = 0, sample_bytes = 0;
  std::optional<Model> model;
  std::optional<Distillation> distillation;
  NamedTensors teacher_tensors;  ///< weights of the teacher
  std::shared_ptr<torch::optim::Optimizer> optimizer;
  NamedTensors master_weights;
  std::shared_ptr<MadeUpBatch> batch;
  std::optional<inspect::TensorRecorder> recorder;
  double seconds = 0;
};

DryRun::DryRun(const Recipe& recipe, const std::optional<models::ModelSize>& model_size)
    : state_(std::make_unique<State>(resolve_for_dry_run(recipe), model_size)) {}
DryRun::~DryRun() = default;

inspect::TensorTimeline DryRun::record(const StepSize& size) {
  const bool first = !state_->recorder;
  if (first) {
    state_->recorder.emplace(*state_->model);
    for (const auto& [name, tensor] : state_->teacher_tensors)
      state_->recorder->add(inspect::TensorKind::other, name, tensor);
    for (const auto& [name, master] : state_->master_weights)
      state_->recorder->add(inspect::TensorKind::master, name, master);
  }
  TrainLoop loop = state_->loop(size);
  if (first) state_->step(loop);
  state_->name_state(loop);
  state_->forget_last_batch();
  state_->recorder->begin();
  state_->step(loop);
  inspect::TensorTimeline result = state_->recorder->end();
  std::erase_if(result.tensors, [](const inspect::TensorLife& tensor) { return tensor.name == made_up; });
  return result;
}

int64_t DryRun::measure(const StepSize& size, int64_t steps) {
  TrainLoop loop = state_->loop(size);
  for (int64_t i = 1; i < steps; ++i) state_->step(loop);
  tap::reset_cpu_allocation_peak();
  state_->step(loop);
  return tap::cpu_allocation_counters().peak_bytes - state_->bytes_before - state_->sample_bytes;
}

inspect::OpReport DryRun::count(const StepSize& size) {
  TrainLoop loop = state_->loop(size);
  state_->step(loop);  // creates the optimizer state
  return inspect::count_ops(*state_->model, [&] { state_->step(loop); });
}

void DryRun::try_length(int64_t length) {
  // Auxiliary outputs exist only in training mode, and may need larger images and more than one of them.
  const bool trains = models::auxiliary_weight(*state_->model) > 0;
  std::optional<EvalMode> eval_mode;
  if (!trains) eval_mode.emplace(*state_->model);
  const c10::InferenceMode no_graph;
  state_->model->forward_all(models::example_inputs(state_->entry, trains ? 2 : 1, length));
}

bool DryRun::holds_few_scores() const {
  if (state_->entry.output != OutputKind::token) return false;
  const EvalMode eval_mode(*state_->model);
  const c10::InferenceMode no_graph;
  const auto hidden_states = [](const at::Tensor& hidden, const at::Tensor&, const at::Tensor&) { return hidden; };
  return models::forward_with_head(*state_->model, models::example_input(state_->entry, 1, 1), hidden_states).defined();
}

double DryRun::seconds() const {
  return state_->seconds;
}

const models::ModelEntry& DryRun::entry() const {
  return state_->entry;
}

NamedShapes DryRun::parameter_shapes() const {
  NamedShapes result;
  const NamedTensors parameters = state_->model->named_parameters();
  result.reserve(parameters.size());
  for (const auto& [name, parameter] : parameters) result.emplace_back(name, parameter.sizes().vec());
  return result;
}

}  // namespace bellows::train
