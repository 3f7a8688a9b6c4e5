#include "bellows/ladder/inference_ladder.h"

#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "bellows/core/error.h"
#include "bellows/core/log.h"
#include "bellows/ladder/html_report.h"
#include "bellows/ladder/inference_job.h"
#include "bellows/ladder/job.h"
#include "bellows/ladder/json_report.h"
#include "bellows/ladder/process.h"
#include "bellows/models/registry.h"
#include "bellows/train/resolved_job.h"
#include "cli/interrupt.h"
#include "cli/ladder_files.h"
#include "cli/tables/ladder_table.h"
#include "cli/trained_options.h"

namespace bellows::cli {

namespace {

using train::InferenceSettings;
using train::InferenceSubject;
using train::Recipe;

/// The jobs log nothing, because the table shows their results. Only the first one prints warnings, and each warning only
/// once, because a job loads several models.
class JobSink final : public LogSink {
 public:
  void write(LogLevel level, std::string_view message) override {
    if (level > LogLevel::warn || (level == LogLevel::warn && is_new(message))) usual_->write(level, message);
  }
  void progress(const ProgressState&) override {}
  void silence_warnings() { silent_ = true; }

 private:
  bool is_new(std::string_view message) { return !silent_ && warnings_.emplace(message).second; }

  std::shared_ptr<LogSink> usual_ = make_default_log_sink();
  std::set<std::string> warnings_;  ///< those that were printed
  bool silent_ = false;
};

class InferenceProcesses final : public train::InferenceJobs {
 public:
  explicit InferenceProcesses(train::InferenceSource source) : source_(std::move(source)) { set_log_sink(sink_); }
  ~InferenceProcesses() override { set_log_sink(make_default_log_sink()); }

  std::unique_ptr<train::LadderJob> with(const InferenceSettings& settings) override {
    const auto make = [this, settings] { return train::make_inference_job(source_, settings); };
    auto job = settings.recipe.device.starts_with("cpu") ? train::in_own_process(make) : make();
    sink_->silence_warnings();  // also of later processes, which inherit the sink
    return job;
  }

 private:
  train::InferenceSource source_;
  std::shared_ptr<JobSink> sink_ = std::make_shared<JobSink>();
};

void check_training_options(const LadderArguments& arguments) {
  for (const auto& [option, is_set] : {std::pair{"--target-accuracy", arguments.target_accuracy > 0},
                                       {"--memory", arguments.memory},
                                       {"--memory-target", arguments.memory_target > 0},
                                       {"--eval-every-steps", arguments.eval_every_steps > 0},
                                       {"--max-epochs", arguments.max_epochs > 0},
                                       {"--write-recipe", !arguments.write_recipe.empty()}}) {
    if (is_set)
      throw UsageError(std::string(option) + " is an option for training. It cannot be combined with --inference.");
  }
}

/// The member that --inference VALUE sets, and the option that sets the same member.
struct InferenceValue {
  std::string TrainedArguments::*member;
  const char* option;
};

InferenceValue meaning_of(const std::string& value) {
  std::error_code unreadable;
  if (std::filesystem::is_directory(value, unreadable)) return {&TrainedArguments::run, "--run"};
  const bool is_file = std::filesystem::exists(value, unreadable);
  const std::string file_name = std::filesystem::path(value).filename();
  const bool is_model = is_file ? models::is_program_path(file_name) || file_name.ends_with(".json")
                                : models::registry().find(value) != nullptr;
  if (is_model) return {&TrainedArguments::model, "--model"};
  if (is_file) return {&TrainedArguments::recipe, "--recipe"};
  throw UsageError(c10::str("--inference ", value, ": there is no folder, file or registered model of this name. ",
                            "Expected a run folder, a recipe file (YAML), a TorchScript file, a program of "
                            "torch.export (.pt2), a config.json, or the ",
                            "name of a registered model.", did_you_mean(value, models::registry().names())));
}

/// The model as in `bellows evaluate`.
TrainedArguments trained_arguments(const LadderArguments& arguments) {
  TrainedArguments trained;
  trained.run = arguments.run;
  trained.recipe = arguments.recipe;
  trained.model = arguments.model;
  trained.weights = arguments.weights;
  trained.data = arguments.data;
  trained.split = arguments.split;
  trained.set = arguments.set;
  trained.batch_size = arguments.batch_size;
  if (arguments.inference != "-") {
    const InferenceValue value = meaning_of(arguments.inference);
    std::string& given = trained.*value.member;
    if (!given.empty())
      throw UsageError(c10::str("--inference ", arguments.inference, " and ", value.option, " ", given,
                                " both name the model. Leave out one of them."));
    given = arguments.inference;
  }
  if (trained.run.empty() && trained.recipe.empty() && trained.model.empty())
    throw UsageError(
        "expected a model. Name it after --inference (a run folder, a recipe or a model), or pass --run, --recipe or "
        "--model.");
  return trained;
}

bool has_weights(const TrainedArguments& arguments, const Recipe& recipe) {
  return !arguments.run.empty() || !arguments.weights.empty() || !recipe.weights.empty() ||
         models::is_program_path(recipe.model);
}

/// Where the inputs come from, in words.
std::string inputs_text(const TrainedArguments& arguments, const Recipe& recipe) {
  if (recipe.data.empty()) return "synthetic inputs";
  const std::string& data = arguments.data.empty() ? recipe.data : arguments.data;
  return arguments.split.empty() ? data : data + ", split " + arguments.split;
}

InferenceSubject subject_of(const TrainedArguments& arguments, const Recipe& recipe) {
  const bool trained = has_weights(arguments, recipe);
  const train::ResolvedJob job = recipe.data.empty() ? train::resolve_model(recipe) : train::resolve(recipe);
  InferenceSubject subject{.model = recipe.model + (trained ? "" : " (random weights)"),
                           .data = inputs_text(arguments, recipe),
                           .start = {.recipe = train::without_techniques(job.recipe)},
                           .has_accuracy = trained && job.data && job.task.has_accuracy()};
  return subject;
}

train::LadderOptions inference_options(const LadderArguments& arguments) {
  train::LadderOptions options;
  if (arguments.max_drop >= 0) options.max_drop = arguments.max_drop / 100;
  if (arguments.max_seconds > 0) options.max_seconds = arguments.max_seconds;
  if (arguments.quick) {
    options.pairs = options.max_pairs = 5;
    options.window_s = 0.1;
  }
  return options;
}

void print_inference_start(Terminal& terminal, const InferenceSubject& subject, const train::LadderOptions& options) {
  terminal.print(terminal.paint(Colour::bold, "bellows ladder --inference: " + subject.model + " on " + subject.data) +
                 "\n");
  print_machine(terminal);
  const std::string bound =
      subject.has_accuracy
          ? c10::str("Its accuracy may fall by ", number("%.4g", 100 * options.max_drop), " percentage points.")
          : c10::str("There is no accuracy to compare, so its outputs may differ by ",
                     number("%.4g", 100 * options.max_difference), " %.");
  terminal.print(
      wrapped(c10::str("Each technique is compared with the previous configuration in ", options.pairs,
                       options.max_pairs > options.pairs ? " or more" : "", " pairs of timed windows. ", bound)));
  terminal.print("\n" + terminal.paint(Colour::bold, ladder_head(train::LadderGoal::inference)));
}

/// Where the jobs get the model.
train::InferenceSource source_of(const TrainedArguments& trained, const InferenceSubject& subject, bool with_weights,
                                 double max_drop) {
  const auto load = [trained, with_weights](const Recipe& recipe) {
    return with_weights ? load_trained_model(trained, recipe) : train::load_untrained(recipe);
  };
  return {.load = load,
          .start = subject.start,
          .evaluation = {.data = trained.data, .split = trained.split, .batch_size = trained.batch_size},
          .max_drop = max_drop};
}

int measure_inference(const LadderArguments& arguments, const Registry<train::InferenceTechnique>& techniques) {
  const TrainedArguments trained = trained_arguments(arguments);
  const Recipe recipe = trained_recipe(trained);
  for (const std::string& file : {arguments.json, arguments.html}) check_output_file(file);
  const Interrupt interrupt("keeping the results");
  const InferenceSubject subject = subject_of(trained, recipe);
  const train::LadderOptions options = inference_options(arguments);
  InferenceProcesses jobs(source_of(trained, subject, has_weights(trained, recipe), options.max_drop));
  const bool quiet = arguments.json == "-";
  Terminal terminal;
  if (!quiet) print_inference_start(terminal, subject, options);
  const auto show = [&](const train::LadderEvent& event) {
    if (quiet) return;
    if (event.finished) {
      terminal.print(ladder_row(terminal, *event.rung, train::LadderGoal::inference));
    } else {
      terminal.live(event.rung->title + ": " + event.activity, ladder_live_line(event, train::LadderGoal::inference));
    }
  };
  const train::LadderReport report =
      train::run_inference_ladder(subject, {techniques.rows().begin(), techniques.rows().end()}, jobs, options,
                                  {.seconds = {}, .stop = Interrupt::requested}, show);
  if (!quiet) terminal.print(ladder_foot(terminal, report));
  write_ladder_files(terminal, arguments, {to_json(report), train::ladder_page(report), ""});
  if (report.interrupted) return Interrupt::exit_code();
  return report.failure.empty() ? exit_done : exit_failed;
}

}  // namespace

int run_ladder_inference(const LadderArguments& arguments) {
  check_training_options(arguments);
  Registry<train::InferenceTechnique> techniques("technique");
  train::register_inference_techniques(techniques);
  if (!arguments.list) return measure_inference(arguments, techniques);
  Terminal().print(train::techniques_page(techniques));
  return exit_done;
}

}  // namespace bellows::cli
