#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "bellows/comm/world.h"
#include "bellows/core/device.h"
#include "bellows/core/error.h"
#include "bellows/core/log.h"
#include "bellows/core/stats.h"
#include "bellows/system/file.h"
#include "bellows/system/stop.h"
#include "bellows/train/trainer.h"
#include "cli/interrupt.h"
#include "cli/json_text.h"
#include "cli/options.h"
#include "cli/terminal.h"

namespace bellows::cli {

namespace {

using train::EpochRecord;
using train::FitResult;
using train::Recipe;

std::string recipe_in(const std::string& folder) {
  return folder + "/recipe.yaml";
}

bool exists(const std::string& path) {
  struct stat status {};
  return stat(path.c_str(), &status) == 0;
}

/// The recipe of the command line. Without --recipe, a resumed run uses the recipe in its folder.
Recipe recipe_of(const TrainArguments& arguments) {
  if (arguments.resume && arguments.out.empty())
    throw UsageError("--resume needs --out with the folder of the run to resume.");
  std::string path = arguments.recipe;
  if (path.empty() && arguments.resume && exists(recipe_in(arguments.out))) path = recipe_in(arguments.out);
  Recipe recipe = path.empty() ? Recipe{} : load_recipe(path);
  apply_overrides(recipe, {.data = arguments.data, .model = arguments.model, .set = arguments.set});
  if (!arguments.out.empty()) recipe.run_folder = arguments.out;
  if (recipe.data.empty()) throw UsageError("train needs a dataset. Pass --data, or set the key data in the recipe.");
  check_usable(recipe);
  return recipe;
}

/// The default sink, but it erases the progress bar of a finished epoch, because the table has a row for it. Of several
/// ranks, only the first one logs more than warnings.
class TrainSink final : public LogSink {
 public:
  explicit TrainSink(bool first) : first_(first) {}
  void write(LogLevel level, std::string_view message) override {
    if (first_ || level >= LogLevel::warn) usual_->write(level, message);
  }
  void progress(const ProgressState& state) override {
    if (!state.finished) {
      usual_->progress(state);
    } else if (isatty(STDERR_FILENO) == 1) {
      std::fputs("\r\033[K", stderr);
    }
  }

 private:
  const bool first_;
  std::shared_ptr<LogSink> usual_ = make_default_log_sink();
};

/// Handles stop signals: before training, they end all waits; during training, the run ends after the current step.
class Stopping {
 public:
  /// During its lifetime, signals also stop the trainer.
  class Of {
   public:
    Of(Stopping& stopping, train::Trainer& trainer, bool several_ranks) : stopping_(stopping) {
      stopping.several_ranks_ = several_ranks;
      stopping.trainer_ = &trainer;
    }
    ~Of() { stopping_.trainer_ = nullptr; }
    Of(const Of&) = delete;
    Of& operator=(const Of&) = delete;

   private:
    Stopping& stopping_;
  };

  static void on_signal(void* self) {
    auto& stopping = *static_cast<Stopping*>(self);
    train::Trainer* const trainer = stopping.trainer_;
    if (trainer) trainer->request_stop();
    // Several ranks finish a step together, so waits must not end in only one of them.
    if (!trainer || !stopping.several_ranks_ || !trainer->in_steps()) request_stop();
  }

 private:
  std::atomic<train::Trainer*> trainer_ = nullptr;
  std::atomic<bool> several_ranks_ = false;
};

/// ", mae 0.1234, r2 0.9876"
std::string metrics_text(const std::vector<std::pair<std::string, double>>& metrics) {
  std::string text;
  for (const auto& [name, value] : metrics) text += ", " + name + " " + number("%.4f", value);
  return text;
}

nlohmann::ordered_json metrics_json(const std::vector<std::pair<std::string, double>>& metrics) {
  auto json = nlohmann::ordered_json::object();
  for (const auto& [name, value] : metrics) json[name] = number_or_null<nlohmann::ordered_json>(value);
  return json;
}

std::string epoch_line(const EpochRecord& record) {
  const bool evaluated = record.eval_seconds > 0, accuracy = evaluated && std::isfinite(record.eval_accuracy);
  const std::string metrics = metrics_text(record.eval_metrics);
  return pad_left(std::to_string(record.epoch + 1), 5) + pad_left(std::to_string(record.steps), 9) +
         pad_left(number("%.4f", record.train_loss), 12) +
         pad_left(std::isfinite(record.train_accuracy) ? number("%.2f %%", 100 * record.train_accuracy) : "-", 12) +
         pad_left(evaluated ? number("%.4f", record.eval_loss) : "-", 12) +
         pad_left(accuracy ? number("%.2f %%", 100 * record.eval_accuracy) : "-", 11) +
         pad_left(format_seconds(record.train_seconds), 12) + (metrics.empty() ? "" : "  " + metrics.substr(2));
}

constexpr const char* epoch_head = "epoch    steps  train loss  train acc.   eval loss  eval acc.        time";

std::string result_json(const Recipe& recipe, const FitResult& result) {
  nlohmann::ordered_json json;
  json["model"] = recipe.model;
  json["data"] = recipe.data;
  json["epochs"] = nlohmann::ordered_json::array();
  for (const EpochRecord& record : result.history) {
    json["epochs"].push_back({{"epoch", record.epoch},
                              {"steps", record.steps},
                              {"train_loss", record.train_loss},
                              {"train_accuracy", number_or_null<nlohmann::ordered_json>(record.train_accuracy)},
                              {"eval_loss", record.eval_loss},
                              {"eval_accuracy", number_or_null<nlohmann::ordered_json>(record.eval_accuracy)},
                              {"train_seconds", record.train_seconds},
                              {"eval_seconds", record.eval_seconds}});
    if (!record.eval_metrics.empty()) json["epochs"].back()["metrics"] = metrics_json(record.eval_metrics);
  }
  json["steps"] = result.steps;
  if (result.evaluation) {
    json["eval_loss"] = result.evaluation->loss;
    json["eval_accuracy"] = number_or_null<nlohmann::ordered_json>(result.evaluation->accuracy);
    if (!result.evaluation->metrics.empty()) json["metrics"] = metrics_json(result.evaluation->metrics);
  }
  json["skipped_steps"] = result.skipped_steps;
  json["stopped"] = result.stopped;
  json["stopped_early"] = result.stopped_early;
  json["reached_target"] = result.reached_target;
  json["time_to_target_s"] = result.reached_target ? nlohmann::ordered_json(result.time_to_target_s) : nullptr;
  json["train_seconds"] = result.train_seconds;
  json["checkpoint"] = result.checkpoint;
  json["recipe"] = recipe.to_yaml();
  return json_text(json);
}

/// The command that resumes a stopped job with as many ranks, under the same launcher.
std::string resume_hint(const std::string& folder, const std::vector<std::string>& plugins, const World& world) {
  const auto& place = world.environment();
  std::string command = "bellows train --out " + shell_word(folder) + " --resume";
  for (const std::string& plugin : plugins) command += " --plugin " + shell_word(plugin);
  if (world.size() == 1) return "Resume with: " + command;
  if (place.launcher == "bellows launch" && place.local_world_size == world.size())
    return c10::str("Resume with: bellows launch -n ", world.size(), " -- ", command);
  return c10::str("Resume under ", place.launcher, " with ", world.size(), " ranks: ", command);
}

void print_result(const Recipe& recipe, const FitResult& result, const std::string& go_on) {
  Terminal terminal;
  std::string text = c10::str(result.steps, " steps in ", format_seconds(result.train_seconds), " of training");
  if (recipe.target_accuracy > 0) {
    const std::string target = number("%.1f %%", 100 * recipe.target_accuracy);
    text += result.reached_target ? c10::str(", reached ", target, " after ", format_seconds(result.time_to_target_s))
                                  : c10::str(", did not reach ", target);
  }
  if (result.evaluation) {
    const double accuracy = result.evaluation->accuracy;
    text += std::isfinite(accuracy) ? ", accuracy " + number("%.2f %%", 100 * accuracy)
                                    : ", loss " + number("%.4f", result.evaluation->loss);
    text += metrics_text(result.evaluation->metrics);
  }
  if (result.stopped_early)
    text += c10::str(", stopped early after ", recipe.early_stopping_patience, " evaluations without a lower loss");
  if (result.skipped_steps > 0)
    text += c10::str(", ", result.skipped_steps, " steps skipped because of NaN or infinity");
  terminal.print(text + ".\n");
  if (!result.checkpoint.empty()) terminal.print("Checkpoint: " + result.checkpoint + "\n");
  if (result.stopped && !result.checkpoint.empty()) terminal.print(go_on + "\n");
}

}  // namespace

void check_usable(const Recipe& recipe) {
  try {
    recipe.validate();
    parse_device(recipe.device);
  } catch (const c10::Error& error) {
    throw UsageError(user_message(error));
  }
}

Recipe load_recipe(const std::string& path) {
  const Interrupt interrupt("the recipe was not read completely");  // a pipe may wait for its writer
  try {
    const Recipe recipe = Recipe::load(path);
    throw_if_stopped("reading the recipe");
    return recipe;
  } catch (const c10::Error& error) {
    throw UsageError(user_message(error));
  }
}

void apply_overrides(Recipe& recipe, const RecipeOverrides& overrides) {
  if (!overrides.data.empty()) recipe.data = overrides.data;
  if (!overrides.model.empty()) recipe.model = overrides.model;
  for (const std::string& item : overrides.set) {
    try {
      recipe.set(item);
    } catch (const c10::Error& error) {
      throw UsageError(user_message(error));
    }
  }
}

int run_train(const TrainArguments& arguments) {
  if (arguments.keys) return run_recipe_keys(arguments.json);
  Recipe recipe = recipe_of(arguments);
  check_output_file(arguments.json);
  const char* words =
      recipe.run_folder.empty() ? "nothing is saved without --out" : "saving a checkpoint if training has started";
  Stopping stopping;
  const Interrupt interrupt(words, &Stopping::on_signal, &stopping);
  const World world = init();
  const bool first = world.rank() == 0;
  if (world.size() > 1 && recipe.device == "cuda") recipe.device = world.device().str();
  set_log_sink(std::make_shared<TrainSink>(first));
  bool headed = false;
  train::Callbacks callbacks;
  callbacks.on_epoch = [&](const EpochRecord& record) {
    if (!headed) log_info(epoch_head);
    headed = true;
    log_info(epoch_line(record));
  };
  train::Trainer trainer(recipe, std::move(callbacks));
  trainer.set_process_group(world);
  trainer.resume(arguments.resume);
  trainer.accept_changes(arguments.accept_changes);
  const Stopping::Of while_it_runs(stopping, trainer, world.size() > 1);
  throw_if_stopped("preparing the training");
  const FitResult result = trainer.fit();
  // If another rank received the signal, this one has not finished, either.
  const int code = !result.stopped ? exit_done : Interrupt::requested() ? Interrupt::exit_code() : 128 + SIGTERM;
  if (!first) return code;
  if (arguments.json != "-") print_result(recipe, result, resume_hint(recipe.run_folder, arguments.plugins, world));
  write_json(arguments.json, result_json(recipe, result));
  return code;
}

}  // namespace bellows::cli
