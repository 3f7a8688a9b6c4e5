#include "bellows/train/job.h"

#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <utility>

#include "bellows/core/channels_last.h"
#include "bellows/core/device.h"
#include "bellows/core/error.h"
#include "bellows/core/grad_mode.h"
#include "bellows/core/log.h"
#include "bellows/core/seed.h"
#include "bellows/models/pretrained/pretrained.h"
#include "bellows/models/weights.h"
#include "bellows/optim/adafactor.h"
#include "bellows/optim/lamb.h"
#include "bellows/optim/muon.h"
#include "bellows/optim/novograd.h"
#include "bellows/optim/optimizers.h"
#include "bellows/train/data/data_assembly.h"
#include "bellows/train/distillation.h"
#include "bellows/train/recipe/recipe_error.h"
#include "bellows/train/teacher/teacher_cache.h"

namespace bellows::train {

namespace {

template <class Options>
Options optimizer_options(const Recipe& recipe) {
  Options options;
  const bool sgd = recipe.optimizer == "sgd" || recipe.optimizer == "larc" || recipe.optimizer == "auto";
  options.lr = recipe.lr > 0 ? recipe.lr : sgd ? 0.05 : 1e-3;
  options.weight_decay = recipe.weight_decay;
  options.master_weights = precision_policy(recipe).master_weights;
  options.impl = recipe.optimizer_impl == "loop"      ? optim::Impl::loop
                 : recipe.optimizer_impl == "foreach" ? optim::Impl::foreach
                 : recipe.optimizer_impl == "fused"   ? optim::Impl::fused
                                                      : optim::Impl::automatic;
  if constexpr (requires { options.state_dtype; }) {
    options.state_dtype = recipe.optimizer_state == "int8"   ? optim::State::int8
                          : recipe.optimizer_state == "int4" ? optim::State::int4
                                                             : optim::State::automatic;
  }
  return options;
}

template <class Options>
Options with_momentum(const Recipe& recipe) {
  auto options = optimizer_options<Options>(recipe);
  options.momentum = recipe.momentum;
  return options;
}

template <class Optimizer, class Options>
std::shared_ptr<torch::optim::Optimizer> optimizer_of(const Options& options, std::vector<at::Tensor> parameters) {
  return std::make_shared<Optimizer>(std::move(parameters), options);
}

/// The matrices that AdamW updates with the optimizer muon: embeddings, and the layer of the outputs.
const std::vector<std::string> not_for_muon = {"*embed*",  "*.wte.*",  "*.wpe.*", "*classifier*", "*lm_head*",
                                               "*pooler*", "*vocab_*", "fc.*",    "head.*"};

optim::MuonOptions muon_options(const Recipe& recipe) {
  auto options = with_momentum<optim::MuonOptions>(recipe);
  options.adjust_lr_fn = optim::MuonRate::match_rms_adamw;  // so that lr means the same as for AdamW
  return options;
}

/// Whether a weight belongs to the head of a transformer. Pretrained weights may lack the model's head, which is then
/// initialized randomly, and may have another head.
bool is_head(std::string_view name) {
  for (const char* head : {"classifier.", "pre_classifier.", "bert.pooler.", "pooler.", "cls.", "vocab_", "lm_head."}) {
    if (name.starts_with(head)) return true;
  }
  return false;
}

/// The name of the last layer, such as "fc."
std::string last_layer(const Model& model) {
  const NamedTensors parameters = model.named_parameters();
  if (parameters.empty()) return "";
  const std::string& name = parameters.back().first;
  return name.substr(0, name.rfind('.') + 1);
}

/// Loads weights for images. The last layer may be that of another number of classes, which is not loaded.
void start_from_images(const std::string& source, const Model& model, const NamedTensors& weights) {
  const std::string layer = last_layer(model);
  const LoadReport report = models::load_weights(model, weights, /*strict=*/false);
  const auto in_layer = [&](const std::string& text) { return !layer.empty() && text.starts_with(layer); };
  const bool usable =
      report.missing.empty() && report.unexpected.empty() && std::ranges::all_of(report.mismatched, in_layer);
  TORCH_CHECK_VALUE(usable, report.to_string());
  if (!report.mismatched.empty())
    log_warn("weights: ", source, " has another number of classes, so these tensors are initialized randomly: ",
             c10::Join(", ", report.mismatched), ".");
}

void start_from(const Recipe& recipe, const Model& model, bool text) {
  const NamedTensors weights = models::load_pretrained(recipe.weights);
  try {
    if (!text) {
      start_from_images(recipe.weights, model, weights);
      return;
    }
    const LoadReport report = models::load_weights(model, weights, /*strict=*/false);
    const bool usable = report.mismatched.empty() && std::ranges::all_of(report.missing, is_head) &&
                        std::ranges::all_of(report.unexpected, is_head);
    TORCH_CHECK_VALUE(usable, report.to_string());
    if (!report.missing.empty())
      log_info("weights: these tensors are missing in ", recipe.weights,
               " and are initialized randomly: ", c10::Join(", ", report.missing), ".");
  } catch (const c10::Error& error) {
    TORCH_CHECK_VALUE(false, "weights = ", recipe.weights, ": ", user_message(error));
  }
}

/// Runs the longest text once, so that errors in text length and output size occur before the first step.
void try_longest_text(const Recipe& recipe, const Model& model, bool next_tokens, int64_t least_scores) {
  const EvalMode eval_mode(model);
  const inference_mode no_graph;
  const int64_t length = std::max<int64_t>(recipe.max_length, 1);
  at::Tensor scores;
  try {
    scores = model.forward(at::ones({1, length}, at::TensorOptions(parse_device(recipe.device)).dtype(at::kLong)));
  } catch (const c10::Error& error) {
    check_recipe(false, "max_length = ", recipe.max_length, ": ", user_message(error));
  }
  const bool fits = next_tokens ? scores.dim() == 3 && scores.size(1) == length && scores.size(2) >= least_scores
                                : scores.dim() == 2 && scores.size(1) == least_scores;
  TORCH_CHECK_VALUE(
      fits, "expected the model \"", recipe.model, "\" to return logits ",
      next_tokens ? c10::str("[1, ", length, ", ", least_scores, "]") : c10::str("[1, ", least_scores, "]"),
      " for a text of ", length, " tokens, got ", scores.sizes(), ".");
}

/// Runs one sample of zeros, so that a model that cannot read feature columns fails with an error that names the key.
void try_features(const Recipe& recipe, const Model& model, int64_t width) {
  const EvalMode eval_mode(model);
  const inference_mode no_graph;
  try {
    model.forward(at::zeros({1, width}, at::TensorOptions(parse_device(recipe.device)).dtype(at::kFloat)));
  } catch (const c10::Error& error) {
    check_recipe(false, "features = ", recipe.features, ": the model \"", recipe.model, "\" cannot read ", width,
                 width == 1 ? " feature column" : " feature columns", ". Use a model with an input of shape [batch, ",
                 width, "], such as tabular_mlp. (", user_message(error), ")");
  }
}

int64_t output_count(const ResolvedJob& job) {
  return job.task.classifies_samples() ? job.num_classes() : job.task.outputs;
}

Model model_for(const ResolvedJob& job) {
  const Recipe& recipe = job.recipe;
  const bool text = job.model.input == models::InputKind::tokens;
  const bool next_tokens = job.task.loss == LossKind::next_token;
  const int64_t classes = output_count(job);
  const int64_t width = job.input_width();
  TORCH_CHECK_VALUE(next_tokens || classes > 0,
                    "the number of classes is unknown: num_classes is 0, the dataset declares no classes, and no "
                    "sample has a readable label (\"cls\" or \"label\" with an integer or a class name). Set "
                    "num_classes, or set `target` to the field with the classes.");
  if (job.task.classifies_samples() && classes == 1)
    log_warn(
        "train: all labels have the same class, so every prediction is correct and the model learns nothing. Check the "
        "labels.");
  const Model model = job.model.make(std::max<int64_t>(classes, 1), width);
  if (!recipe.weights.empty()) start_from(recipe, model, text);
  place_model(recipe, model);
  if (text) try_longest_text(recipe, model, next_tokens, next_tokens ? width : classes);
  if (!recipe.features.empty() && job.data) try_features(recipe, model, width);
  return model;
}

/// The loss function; reads the teacher's outputs from the data if the recipe caches them.
LossFn loss_with_teacher(const Model& model, const Recipe& recipe, const Task& task,
                         const std::optional<Distillation>& distillation) {
  if (!distillation) return loss_function(model, task);
  return recipe.teacher_cache.empty() ? distilled_loss_function(model, task, *distillation)
                                      : cached_loss_function(model, task, *distillation);
}

/// The function that creates replicas; empty if the recipe does not need it.
std::function<Replica()> replica_maker(const ResolvedJob& job, const Model& model,
                                       std::optional<Distillation> distillation) {
  if (job.recipe.data_parallel != "dp") return nullptr;
  // The loss reads the teacher's outputs from the data, so the teacher itself need not stay in memory.
  if (distillation && !job.recipe.teacher_cache.empty()) distillation->teacher = model;
  return
      [recipe = job.recipe, task = job.task, make = job.model.make, outputs = std::max<int64_t>(output_count(job), 1),
       width = job.input_width(), distillation = std::move(distillation)] {
        Model replica = make(outputs, width);
        place_model(recipe, replica);
        if (const amp::Policy policy = precision_policy(recipe); policy.low_weights)
          replica = amp::apply(replica, policy).model;
        return Replica{replica, loss_with_teacher(replica, recipe, task, distillation)};
      };
}

}  // namespace

Model make_model(const ResolvedJob& job) {
  return model_for(job);
}

void place_model(const Recipe& recipe, const Model& model) {
  model.to(parse_device(recipe.device));
  if (recipe.channels_last) to_channels_last(model);
}

std::shared_ptr<torch::optim::Optimizer> make_optimizer(const Recipe& recipe, const Model& model) {
  if (recipe.optimizer != "muon") return make_optimizer(recipe, model.parameters());
  const optim::MuonOptions options = muon_options(recipe);
  return std::make_shared<optim::Muon>(optim::muon_groups(model, not_for_muon, options), options);
}

std::shared_ptr<torch::optim::Optimizer> make_optimizer(const Recipe& recipe, std::vector<at::Tensor> parameters) {
  if (recipe.optimizer == "sgd" || recipe.optimizer == "auto")
    return optimizer_of<optim::SGD>(with_momentum<optim::SGDOptions>(recipe), std::move(parameters));
  if (recipe.optimizer == "larc") {
    auto sgd = std::make_shared<optim::SGD>(std::move(parameters), with_momentum<optim::SGDOptions>(recipe));
    sgd->set_larc(optim::LarcOptions{});
    return sgd;
  }
  if (recipe.optimizer == "lamb") {
    auto options = optimizer_options<optim::LambOptions>(recipe);
    options.max_grad_norm = 0;  // the key max_grad_norm clips
    return optimizer_of<optim::Lamb>(options, std::move(parameters));
  }
  if (recipe.optimizer == "novograd")
    return optimizer_of<optim::NovoGrad>(optimizer_options<optim::NovoGradOptions>(recipe), std::move(parameters));
  if (recipe.optimizer == "muon") return optimizer_of<optim::Muon>(muon_options(recipe), std::move(parameters));
  if (recipe.optimizer == "rmsprop")
    return optimizer_of<optim::RMSprop>(with_momentum<optim::RMSpropOptions>(recipe), std::move(parameters));
  if (recipe.optimizer == "adam")
    return optimizer_of<optim::Adam>(optimizer_options<optim::AdamOptions>(recipe), std::move(parameters));
  if (recipe.optimizer == "adagrad")
    return optimizer_of<optim::Adagrad>(optimizer_options<optim::AdagradOptions>(recipe), std::move(parameters));
  if (recipe.optimizer == "lion")
    return optimizer_of<optim::Lion>(optimizer_options<optim::LionOptions>(recipe), std::move(parameters));
  if (recipe.optimizer == "adafactor") {
    // As in transformers' documentation, so that lr and lr_schedule mean the same as for other optimizers.
    auto options = optimizer_options<optim::AdafactorOptions>(recipe);
    options.relative_step = options.scale_parameter = false;
    return optimizer_of<optim::Adafactor>(options, std::move(parameters));
  }
  return optimizer_of<optim::AdamW>(optimizer_options<optim::AdamWOptions>(recipe), std::move(parameters));
}

void keep_masters(torch::optim::Optimizer& optimizer, const amp::MasterWeights& masters) {
  auto* ours = dynamic_cast<optim::LibtorchOptimizer*>(&optimizer);
  if (!ours) return;
  for (const auto& [parameter, master] : masters.pairs()) ours->set_master_weight(parameter, master);
}

amp::Policy precision_policy(const Recipe& recipe) {
  if (recipe.precision == "fp32") return amp::policy("O0");
  return amp::policy(recipe.amp_level, recipe.precision == "fp16" ? at::kHalf : at::kBFloat16);
}

Job make_job(const Recipe& recipe) {
  parse_device(recipe.device);  // before the slow parts
  seed_everything(static_cast<uint64_t>(recipe.seed));
  return make_job(resolve(recipe));
}

Job make_job(const ResolvedJob& resolved) {
  const Recipe& recipe = resolved.recipe;
  data::Dataset train = train_part(resolved);
  std::optional<data::Dataset> eval = eval_part(resolved);
  Model model = model_for(resolved);
  const std::optional<Distillation> distillation = make_distillation(resolved, model);
  amp::MasterWeights masters;
  if (const amp::Policy policy = precision_policy(recipe); policy.low_weights) {
    amp::PreparedModel prepared = amp::apply(model, policy);
    model = std::move(prepared.model);
    masters = std::move(prepared.masters);
  }
  auto optimizer = make_optimizer(recipe, model);
  keep_masters(*optimizer, masters);
  if (distillation && !recipe.teacher_cache.empty()) train = with_teacher_outputs(resolved, *distillation, train);
  LossFn loss = loss_with_teacher(model, recipe, resolved.task, distillation);
  return {.recipe = recipe,
          .model = model,
          .optimizers = {std::move(optimizer)},
          .loss = std::move(loss),
          .train = std::move(train),
          .eval = std::move(eval),
          .note = resolved.split().held_out_note(),
          .task = resolved.task,
          .input = resolved.model.input,
          .make_replica = replica_maker(resolved, model, distillation),
          .output_loss = output_loss(resolved.task)};
}

}  // namespace bellows::train
