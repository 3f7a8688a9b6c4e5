#include "bellows/plan/dry_run.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Reduction.h>
#include <ATen/ops/cross_entropy_loss.h>
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
#include "bellows/optim/state/state.h"
#include "bellows/tap/allocator.h"
#include "bellows/train/data/data_assembly.h"
#include "bellows/train/loss.h"
#include "bellows/train/step/train_loop.h"

namespace bellows::train {

/// One batch, as the loader's last one is there until the next.
struct MadeUpBatch {
  at::Tensor input, labels;            // kept from step to step
  at::Tensor step_input, step_labels;  // of the present step
};

namespace {

using models::InputKind;
using models::ModelEntry;
using models::OutputKind;

/// What decides memory stays; the rest must not get in the way.
Recipe for_dry_run(Recipe recipe) {
  recipe.validate();
  recipe.device = "cpu";
  recipe.data = recipe.eval_data = recipe.subset = recipe.weights = recipe.run_folder = "";
  recipe.batch_size = 1;  // of the rows that stand for samples
  recipe.batch_size_start = recipe.image_size_start = 0;
  recipe.growth_epochs = recipe.target_accuracy = recipe.warmup_epochs = 0;
  recipe.schedule = "constant";
  recipe.accumulate = std::min<int64_t>(recipe.accumulate, 2);
  recipe.lr = 1e-8;  // nothing is learned from made-up samples
  recipe.loader_threads = 0;
  recipe.sample_stats = false;
  recipe.compile = "none";  // which allocates later, and no more
  return recipe;
}

/// The name of the samples that are copied: a training has none of them.
constexpr const char* made_up = "(made up)";

std::vector<int64_t> label_shape(const ModelEntry& entry, const at::Tensor& input) {
  if (entry.output == OutputKind::sample) return {input.size(0)};
  if (entry.output == OutputKind::token) return {input.size(0), input.size(1)};
  return {input.size(0), input.size(2), input.size(3)};
}

LossFn dry_run_loss(const Model& model, const ModelEntry& entry, const Recipe& recipe,
                    std::shared_ptr<MadeUpBatch> batch) {
  return [model, entry, recipe, batch = std::move(batch)](const data::Batch&) -> StepOutput {
    {
      const inspect::TraceScope load("load");
      batch->step_input = batch->step_labels = at::Tensor();
      batch->step_input = batch->input.clone();
      batch->step_labels = batch->labels.clone();
    }
    const at::Tensor& labels = batch->step_labels;
    if (entry.output == OutputKind::token)
      return token_loss(model, batch->step_input, labels, recipe.label_smoothing) / labels.numel();
    return at::cross_entropy_loss(model.forward(batch->step_input), labels, {}, at::Reduction::Mean, -100,
                                  recipe.label_smoothing);
  };
}

/// The same in another extent.
ModelEntry sized_entry(ModelEntry entry, const std::optional<models::Extent>& extent) {
  if (!extent) return entry;
  entry.input_shape[0] = extent->words;
  entry.make = [make = entry.make_sized, of = *extent](int64_t classes, int64_t) { return make(of, classes); };
  return entry;
}

}  // namespace

ModelEntry dry_run_entry(const Recipe& recipe) {
  ModelEntry entry = models::model_entry(recipe.model);
  check_input_keys(recipe, entry.input);
  entry.input_shape[0] = input_width(entry, {}, tokenizer_of(recipe, entry));
  if (entry.input == InputKind::tokens) entry.input_shape[1] = longest_text(recipe, entry);
  return entry;
}

int64_t dry_run_length(const Recipe& recipe, const ModelEntry& entry, const StepSize& size) {
  if (size.length > 0) return size.length;
  if (entry.input == InputKind::image && recipe.image_size > 0) return recipe.image_size;
  if (entry.input_shape[1] > 0) return entry.input_shape[1];
  return entry.input == InputKind::image ? 224 : entry.input == InputKind::tokens ? 128 : 13;
}

struct DryRun::State {
  State(Recipe the_recipe, const std::optional<models::Extent>& extent)
      : recipe(for_dry_run(std::move(the_recipe))),
        entry(sized_entry(dry_run_entry(recipe), extent)),
        rows(data::from_tensors({{"image", at::zeros({1 << 12, 1})}})) {
    tap::install_cpu_allocator();
    seed_everything(static_cast<uint64_t>(recipe.seed));
    bytes_before = tap::cpu_allocation_counters().current_bytes;
    model = entry.make(recipe.num_classes > 0 ? recipe.num_classes : 10, entry.input_shape[0]);
    place_model(recipe, *model);
    amp::MasterWeights masters;
    if (const amp::Policy policy = precision_policy(recipe); policy.low_weights) {
      amp::PreparedModel prepared = amp::apply(*model, policy);
      model = std::move(prepared.model);
      masters = std::move(prepared.masters);
    }
    optimizer = make_optimizer(recipe, *model);
    keep_masters(*optimizer, masters);
    master_weights = masters.state_dict();
  }

  /// A loop over batches of this size. Its bytes count, those of the samples that it copies do not.
  TrainLoop loop(const StepSize& size) {
    batch.reset();
    const int64_t before = tap::cpu_allocation_counters().current_bytes;
    batch = std::make_shared<MadeUpBatch>();
    batch->input = models::example_input(entry, size.batch, dry_run_length(recipe, entry, size));
    if (recipe.channels_last && batch->input.dim() == 4)
      batch->input = batch->input.contiguous(at::MemoryFormat::ChannelsLast);
    batch->labels = at::zeros(label_shape(entry, batch->input), at::kLong);
    sample_bytes = tap::cpu_allocation_counters().current_bytes - before;
    if (recorder) {
      recorder->add(inspect::TensorKind::other, made_up, batch->input);
      recorder->add(inspect::TensorKind::other, made_up, batch->labels);
    }
    return TrainLoop({.recipe = recipe,
                      .model = *model,
                      .optimizers = {optimizer},
                      .loss = dry_run_loss(*model, entry, recipe, batch),
                      .train = data::Dataset(rows).batch(1).threads(0)});
  }

  /// What there is for each parameter, by the parameter's name.
  void name_state(const TrainLoop& loop) {
    using inspect::TensorKind;
    const NamedTensors parameters = model->named_parameters();
    for (const auto& [key, tensor] : optim::state_dict(*optimizer)) {  // "state.3.exp_avg.absmax"
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

  /// So that each recorded step begins as the first did.
  void forget_last_batch() { batch->step_input = batch->step_labels = at::Tensor(); }

  void step(TrainLoop& loop) {
    const auto begin = std::chrono::steady_clock::now();
    loop.run_steps(1);
    seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }

  const Recipe recipe;
  const ModelEntry entry;
  const data::SourcePtr rows;
  int64_t bytes_before = 0, sample_bytes = 0;
  std::optional<Model> model;
  std::shared_ptr<torch::optim::Optimizer> optimizer;
  NamedTensors master_weights;
  std::shared_ptr<MadeUpBatch> batch;
  std::optional<inspect::TensorRecorder> recorder;
  double seconds = 0;
};

DryRun::DryRun(Recipe recipe, const std::optional<models::Extent>& extent)
    : state_(std::make_unique<State>(std::move(recipe), extent)) {}
DryRun::~DryRun() = default;

inspect::TensorTimeline DryRun::record(const StepSize& size) {
  const bool first = !state_->recorder;
  if (first) {
    state_->recorder.emplace(*state_->model);
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

void DryRun::try_length(int64_t length) {
  const EvalMode eval_mode(*state_->model);
  const c10::InferenceMode no_graph;
  state_->model->forward(models::example_input(state_->entry, 1, length));
}

bool DryRun::holds_few_scores() const {
  if (state_->entry.output != OutputKind::token) return false;
  const EvalMode eval_mode(*state_->model);
  const c10::InferenceMode no_graph;
  const auto hidden_states = [](const at::Tensor& hidden, const at::Tensor&, const at::Tensor&) { return hidden; };
  return models::forward_into(*state_->model, models::example_input(state_->entry, 1, 1), hidden_states).defined();
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
