#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bellows/checkpoint/folder.h"
#include "bellows/comm/launch/launch_environment.h"
#include "bellows/core/log.h"
#include "bellows/io/tensors/safetensors.h"
#include "bellows/train/distillation.h"
#include "bellows/train/inference/model_evaluation.h"
#include "bellows/train/student_recipe.h"
#include "cli/json_text.h"
#include "cli/model_table.h"
#include "cli/options.h"
#include "cli/terminal.h"
#include "cli/train_session.h"

namespace bellows::cli {

namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;
using train::FitResult;
using train::Recipe;
using train::TrainedModel;

bool exists(const std::string& path) {
  std::error_code unreadable;
  return fs::exists(path, unreadable);
}

std::string alone_folder(const DistillArguments& arguments) {
  return arguments.out + "/alone";
}

/// Several ranks would write the same files.
void check_alone() {
  const comm::LaunchEnvironment place = comm::read_launch_environment();
  if (place.world_size == 1) return;
  throw UsageError(c10::str("distill: the command must run as a single process, but ", place.launcher,
                            " started it as rank ", place.rank, " of ", place.world_size,
                            ". On several ranks, use `bellows train` with the recipe key teacher."));
}

void check_folders(const DistillArguments& arguments) {
  std::error_code unreadable;
  if (fs::equivalent(arguments.teacher, arguments.out, unreadable))
    throw UsageError(c10::str("TEACHER and --out name the same folder, ", arguments.out,
                              ". Choose another folder for the student."));
  if (!arguments.resume && exists(arguments.out) && !checkpoint::list_checkpoints(arguments.out).empty())
    throw UsageError(c10::str("--out ", arguments.out,
                              " contains the checkpoints of a run already. Pass --resume to continue it, or choose "
                              "another folder."));
}

/// The student's recipe, without its teacher's weights. A resumed run uses the recipe in its folder.
Recipe recipe_of(const DistillArguments& arguments, const Recipe& of_teacher) {
  const std::string saved = arguments.out + "/recipe.yaml";
  Recipe recipe;
  if (arguments.resume && arguments.recipe.empty() && exists(saved)) {
    recipe = load_recipe(saved);
  } else {
    if (arguments.student.empty() && arguments.recipe.empty())
      throw UsageError("distill needs a student. Pass --student, or --recipe with a model.");
    recipe =
        arguments.recipe.empty() ? train::student_recipe(of_teacher, arguments.student) : load_recipe(arguments.recipe);
    if (recipe.data.empty()) recipe.data = of_teacher.data;
  }
  apply_overrides(recipe, {.data = arguments.data, .model = arguments.student, .set = arguments.set});
  if (arguments.weight > 0) recipe.distill = arguments.weight;
  if (arguments.temperature > 0) recipe.distill_temperature = arguments.temperature;
  recipe.run_folder = arguments.out;
  recipe.teacher = of_teacher.model;
  recipe.teacher_weights = arguments.out + "/teacher.safetensors";
  check_usable(recipe);
  return recipe;
}

/// Writes the teacher's weights, which training and evaluation read. A resumed run uses those of its start.
void save_teacher(const DistillArguments& arguments, Recipe of_teacher, const Recipe& recipe) {
  of_teacher.precision = "fp32";  // unrounded
  const TrainedModel teacher = train::load_run(arguments.teacher, of_teacher);
  const train::ResolvedJob student = train::resolve(recipe);
  train::teacher_entry(student);  // checks that both models fit together
  train::check_same_classes(teacher.job, student);
  if (arguments.resume && exists(recipe.teacher_weights)) return;
  std::error_code failed;
  fs::create_directories(arguments.out, failed);  // saving reports the reason
  io::save_safetensors(recipe.teacher_weights, teacher.model.state_dict());
}

/// Compiled on the CPU, as in the table of `bellows quantize`.
ModelColumn column_of(std::string title, const TrainedModel& trained) {
  const bool compile = trained.job.device.is_cpu();
  ModelColumn column{.title = std::move(title), .evaluation = train::evaluate(trained, {.compile = compile})};
  for (const at::Tensor& parameter : trained.model.parameters()) column.parameters += parameter.numel();
  return column;
}

/// The teacher, evaluated on the student's data.
ModelColumn teacher_column(const Recipe& recipe) {
  Recipe of_teacher = train::without_teacher(recipe);
  of_teacher.model = recipe.teacher;
  return column_of("teacher", train::load_trained(of_teacher, recipe.teacher_weights));
}

std::string points_text(double points) {
  return number("%.2f", std::abs(points)) + (points < 0 ? " points lower" : " points higher");
}

/// Params: columns – the teacher first, and the student last
std::string result_text(const std::vector<ModelColumn>& columns) {
  const train::ModelEvaluation& student = columns.back().evaluation;
  std::string text = "\n" + model_table(columns) +
                     c10::str("Latency: median time of a batch of ", student.batch_size,
                              ", compiled.\nData: ", student.data, ", ", student.evaluation.samples, " samples.\n");
  if (columns.size() < 3 || !std::isfinite(student.evaluation.accuracy)) return text;
  const double gain = 100 * (student.evaluation.accuracy - columns[1].evaluation.evaluation.accuracy);
  return text + "With the teacher, the student's accuracy is " + points_text(gain) + " than alone.\n";
}

ordered_json column_json(const std::string& model, const std::string& run, const ModelColumn& column) {
  ordered_json json = {{"model", model}, {"run", run}, {"parameters", column.parameters}};
  json.update(evaluation_json(column.evaluation));
  return json;
}

/// The command that resumes.
std::string resume_hint(const DistillArguments& arguments) {
  std::string command = "Resume with: bellows distill " + shell_word(arguments.teacher) + " --out " +
                        shell_word(arguments.out) + (arguments.compare ? " --compare" : "") + " --resume";
  for (const std::string& plugin : arguments.plugins) command += " --plugin " + shell_word(plugin);
  return command;
}

/// The trainings of the command.
class Distilling {
 public:
  Distilling(const DistillArguments& arguments, Recipe recipe)
      : arguments_(arguments), recipe_(std::move(recipe)), quiet_(arguments.json == "-") {}

  int run(const Recipe& of_teacher) {
    save_teacher(arguments_, of_teacher, recipe_);
    columns_.push_back(teacher_column(recipe_));
    log_info("teacher ", recipe_.teacher, ": ", columns_.front().parameters, " parameters, ", quality());
    if (const int code = train(recipe_, "student"); code != exit_done) return code;
    if (arguments_.compare) {
      Recipe alone = train::without_teacher(recipe_);
      alone.run_folder = alone_folder(arguments_);
      if (const int code = train(alone, "alone"); code != exit_done) return code;
      columns_.push_back(column_of("alone", train::load_run(alone.run_folder, alone)));
    }
    columns_.push_back(column_of("student", train::load_run(arguments_.out, recipe_)));
    if (!quiet_) Terminal().print(result_text(columns_));
    write(false);
    return exit_done;
  }

 private:
  std::string quality() const {
    const train::Evaluation& one = columns_.front().evaluation.evaluation;
    return std::isfinite(one.accuracy) ? "accuracy " + number("%.2f %%", 100 * one.accuracy)
                                       : "loss " + number("%.4f", one.loss);
  }

  int train(Recipe& recipe, const std::string& what) {
    log_info("training ", what == "alone" ? "the student alone" : "the student with its teacher", ": ", recipe.model);
    const FitResult result =
        session_.train(recipe, {.resume = arguments_.resume, .accept_changes = arguments_.accept_changes});
    if (!quiet_) {
      Terminal().print(what + ": ");
      print_fit(recipe, result, resume_hint(arguments_));
    }
    if (result.stopped) write(true);
    return TrainSession::exit_code(result);
  }

  void write(bool stopped) const {
    ordered_json json = {{"stopped", stopped}, {"recipe", recipe_.to_yaml()}};
    json["teacher"] = column_json(recipe_.teacher, arguments_.teacher, columns_.front());
    json["student"] = nullptr;
    json["alone"] = nullptr;
    if (!stopped) json["student"] = column_json(recipe_.model, arguments_.out, columns_.back());
    if (columns_.size() == 3) json["alone"] = column_json(recipe_.model, alone_folder(arguments_), columns_[1]);
    write_json(arguments_.json, json_text(json));
  }

  const DistillArguments& arguments_;
  Recipe recipe_;
  const bool quiet_;
  TrainSession session_{true};
  std::vector<ModelColumn> columns_;  ///< the teacher, the student alone with --compare, and the student
};

}  // namespace

int run_distill(const DistillArguments& arguments) {
  check_alone();
  check_output_file(arguments.json);
  const Recipe of_teacher = train::recipe_of_run(arguments.teacher);
  check_folders(arguments);
  return Distilling(arguments, recipe_of(arguments, of_teacher)).run(of_teacher);
}

}  // namespace bellows::cli
