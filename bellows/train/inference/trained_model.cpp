#include "bellows/train/inference/trained_model.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "bellows/amp/policy.h"
#include "bellows/checkpoint/checkpoint.h"
#include "bellows/checkpoint/folder.h"
#include "bellows/checkpoint/format.h"
#include "bellows/core/error.h"
#include "bellows/core/log.h"
#include "bellows/core/seed.h"
#include "bellows/io/network/hub.h"
#include "bellows/io/tensors/torch_file.h"
#include "bellows/models/pretrained/pretrained.h"
#include "bellows/models/registry.h"
#include "bellows/models/weights.h"
#include "bellows/quant/file.h"
#include "bellows/quant/training/fake_quantizer.h"
#include "bellows/system/file.h"
#include "bellows/train/job.h"
#include "bellows/train/recipe/recipe_error.h"
#include "bellows/train/step/quantized_training.h"

namespace bellows::train {

namespace {

namespace fs = std::filesystem;

bool exists_as_folder(const std::string& path) {
  std::error_code unreadable;
  return fs::is_directory(path, unreadable);
}

/// Resolves the recipe, and its data unless `data` is empty.
ResolvedJob resolved(const Recipe& recipe) {
  if (!recipe.data.empty()) return resolve(recipe);
  ResolvedJob job = resolve_model(recipe);
  if (job.model.input == models::InputKind::image)
    log_warn("the recipe has no dataset, so images are scaled to [0, 1], but not normalized.");
  return job;
}

/// The untrained model, with the precision of the recipe.
Model prepared_model(const ResolvedJob& job) {
  const Model model = make_model(job);
  const amp::Policy policy = precision_policy(job.recipe);
  return policy.low_weights ? amp::apply(model, policy).model : model;
}

/// The entries whose names start with `prefix`, without it.
NamedTensors without_prefix(const NamedTensors& tensors, std::string_view prefix) {
  NamedTensors result;
  for (const auto& [name, tensor] : tensors) {
    if (name.starts_with(prefix)) result.emplace_back(name.substr(prefix.size()), tensor);
  }
  return result;
}

/// Loads the weights with which the run was evaluated: the moving average, if there is one.
void restore(TrainedModel& trained, const checkpoint::State& state) {
  checkpoint::restore_model(trained.model, state.model);
  trained.step = state.step;
  const NamedTensors average = without_prefix(state.extra, "average.");
  for (const auto& [name, value] : average) {
    if (name == "n_averaged") trained.averaged = value.item<int64_t>() > 0;
  }
  if (trained.averaged) load_state_dict(trained.model, without_prefix(average, "module."));
  const NamedTensors quantized = without_prefix(state.extra, quantized_training_prefix);
  if (quantized.empty()) return;
  const bool learned =
      std::ranges::any_of(quantized, [](const auto& item) { return item.first.ends_with("weight_step"); });
  quant::FakeQuantizer quantizer(trained.model, {.learned_steps = learned});
  quantizer.load_state(quantized);
  trained.trained_layers = quantizer.trained_layers();
}

/// The content of a checkpoint, or nothing if the file is of another kind.
std::optional<checkpoint::State> checkpoint_in(const std::string& path) {
  if (exists_as_folder(path)) {
    std::error_code unreadable;
    TORCH_CHECK_VALUE(fs::exists(path + "/index.json", unreadable), path,
                      " is a folder, but not a checkpoint that several ranks wrote. Expected a safetensors file, a "
                      "torch.save file or a checkpoint. To use the newest checkpoint of a run folder, set `run`.");
    return checkpoint::load(path);
  }
  {
    const MappedFile file(path);
    if (file.bytes().size() < 2 || io::as_text(file.bytes().first(2)) != "PK") return std::nullopt;
  }
  const io::PickleValue value = io::torch_load(path);
  if (!value.is_dict() || !value.contains("format") || !value.contains("position")) return std::nullopt;
  return checkpoint::unpickle_state(value, path);
}

void load_into(TrainedModel& trained, const std::string& path) {
  try {
    if (io::is_remote_address(path)) {
      models::load_weights(trained.model, models::load_pretrained(path));
    } else if (path.ends_with(".safetensors") && !exists_as_folder(path) && quant::is_quantized_file(path)) {
      trained.model = quant::load_quantized(path, trained.model).model;
      trained.quantized = true;
    } else if (const auto state = checkpoint_in(path)) {
      restore(trained, *state);
    } else {
      models::load_weights(trained.model, models::load_pretrained(path));
    }
  } catch (const c10::Error& error) {
    TORCH_CHECK_VALUE(false, "`weights`: ", path, ": ", user_message(error));
  }
}

/// Creates the model of a recipe without its trained weights.
TrainedModel untrained(Recipe recipe) {
  recipe = with_pretrained_model(std::move(recipe));  // before the address is lost
  recipe.weights.clear();                             // of the model at the start of training
  ResolvedJob job = resolved(recipe);
  Model model = prepared_model(job);
  return {.job = std::move(job), .model = std::move(model), .weights = ""};
}

}  // namespace

Recipe recipe_of_run(const std::string& run) {
  TORCH_CHECK_VALUE(exists_as_folder(run), "`run`: there is no folder ", run,
                    ". Expected the folder in which `bellows train` saved its checkpoints.");
  const std::string path = run + "/recipe.yaml";
  std::error_code unreadable;
  TORCH_CHECK_VALUE(fs::exists(path, unreadable), "`run`: ", run,
                    " contains no recipe.yaml, so it is not a run folder.");
  return Recipe::load(path);
}

TrainedModel load_run(const std::string& run) {
  return load_run(run, recipe_of_run(run));
}

TrainedModel load_run(const std::string& run, const Recipe& recipe) {
  const std::vector<std::string> paths = checkpoint::list_checkpoints(run);
  TORCH_CHECK_VALUE(!paths.empty(), "`run`: ", run,
                    " contains no checkpoint. Wait until the first checkpoint was saved.");
  TrainedModel trained = untrained(recipe);
  std::string of_newest;
  for (auto path = paths.rbegin(); path != paths.rend(); ++path) {
    std::optional<checkpoint::State> state;
    try {
      state = checkpoint::load(*path);
    } catch (const c10::Error& error) {
      if (of_newest.empty()) of_newest = user_message(error);
      log_warn("checkpoint: ", *path, " cannot be read; trying the previous one. ", user_message(error));
      continue;
    }
    try {
      restore(trained, *state);
    } catch (const c10::Error& error) {
      TORCH_CHECK_VALUE(false, *path, " does not fit the model \"", recipe.model, "\": ", user_message(error));
    }
    trained.weights = *path;
    return trained;
  }
  TORCH_CHECK_VALUE(false, "`run`: ", run, ": none of the ", paths.size(),
                    " checkpoints can be read. Error of the newest one: ", of_newest);
}

TrainedModel load_trained(const Recipe& recipe, const std::string& weights) {
  const std::string path = weights.empty() ? recipe.weights : weights;
  Recipe complete = with_pretrained_model(recipe);
  if (io::is_hub_address(path)) {
    complete.weights = path;
    complete = with_pretrained_model(std::move(complete));
  }
  check_recipe(!path.empty() || models::is_program_path(complete.model), "the model \"", complete.model,
               "\" would have random weights. Set `weights` to a safetensors file, a torch.save file or a checkpoint.");
  TrainedModel trained = untrained(complete);
  trained.weights = path;
  if (!path.empty()) load_into(trained, path);
  return trained;
}

TrainedModel load_untrained(const Recipe& recipe) {
  constexpr int64_t usual_classes = 10;
  Recipe complete = recipe;
  if (complete.data.empty() && complete.num_classes == 0) complete.num_classes = usual_classes;
  seed_everything(static_cast<uint64_t>(complete.seed));
  return untrained(complete);
}

}  // namespace bellows::train
