#include <ATen/ops/equal.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bellows/checkpoint/folder.h"
#include "bellows/core/error.h"
#include "bellows/core/log.h"
#include "bellows/io/tensors/safetensors.h"
#include "bellows/train/distillation.h"
#include "bellows/train/inference/model_evaluation.h"
#include "bellows/train/recipe/recipe_error.h"
#include "bellows/train/student_recipe.h"
#include "cli/json_text.h"
#include "cli/options.h"
#include "cli/tables/model_table.h"
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

/// Whether there is a run to resume in --out.
bool resumes(const DistillArguments& arguments) {
  return arguments.resume && exists(arguments.out + "/recipe.yaml");
}

std::string teacher_file(const DistillArguments& arguments) {
  return arguments.out + "/teacher.safetensors";
}

void check_folders(const DistillArguments& arguments) {
  const bool starts = !resumes(arguments);
  if (arguments.resume && starts && arguments.student.empty() && arguments.recipe.empty())
    throw UsageError(c10::str("--resume: there is no run in ", arguments.out,
                              ". To start one, leave out --resume, and pass TEACHER and --student."));
  if (arguments.teacher.empty() && starts)
    throw UsageError(
        "expected TEACHER, the run folder of the trained model. Only with --resume, you can leave it out.");
  std::error_code unreadable;
  if (fs::equivalent(arguments.teacher, arguments.out, unreadable))
    throw UsageError(c10::str("TEACHER and --out name the same folder, ", arguments.out,
                              ". Choose another folder for the student."));
  if (!arguments.resume && exists(arguments.out) && !checkpoint::list_checkpoints(arguments.out).empty())
    throw UsageError(c10::str("--out ", arguments.out,
                              " contains the checkpoints of a run already. Pass --resume to continue it, or choose "
                              "another folder."));
}

/// Calls a function that reads the run of TEACHER. Errors of the library name it `run`.
template <class Function>
auto reading_teacher(Function function) {
  try {
    return function();
  } catch (const train::RecipeError&) {
    throw;
  } catch (const c10::ValueError& error) {
    std::string message = user_message(error);
    constexpr std::string_view name = "`run`";
    if (message.starts_with(name)) message.replace(0, name.size(), "TEACHER");
    TORCH_CHECK_VALUE(false, message);
  }
}

/// The recipe of the run in --out.
Recipe resumed_recipe(const DistillArguments& arguments) {
  Recipe recipe = load_recipe(arguments.out + "/recipe.yaml");
  if (recipe.teacher.empty() || !exists(teacher_file(arguments)))
    throw UsageError(c10::str("--resume: the run in ", arguments.out,
                              " was not started by `bellows distill`. Resume it with `bellows train --resume`."));
  return recipe;
}

/// The student's recipe, without its teacher. A resumed run uses the recipe in its folder.
Recipe student_settings(const DistillArguments& arguments, const std::optional<Recipe>& of_teacher) {
  if (arguments.recipe.empty() && resumes(arguments)) return resumed_recipe(arguments);
  if (arguments.student.empty() && arguments.recipe.empty())
    throw UsageError("distill needs a student. Pass --student, or --recipe with a model.");
  if (arguments.recipe.empty()) return train::student_recipe(*of_teacher, arguments.student);
  Recipe recipe = load_recipe(arguments.recipe);
  if (recipe.data.empty() && of_teacher) recipe.data = of_teacher->data;
  return recipe;
}

/// Params: of_teacher – empty if TEACHER was left out
Recipe recipe_of(const DistillArguments& arguments, const std::optional<Recipe>& of_teacher) {
  Recipe recipe = student_settings(arguments, of_teacher);
  apply_overrides(recipe, {.data = arguments.data, .model = arguments.student, .set = arguments.set});
  if (arguments.weight > 0) recipe.distill = arguments.weight;
  if (arguments.temperature > 0) recipe.distill_temperature = arguments.temperature;
  recipe.run_folder = arguments.out;
  recipe.teacher = of_teacher ? of_teacher->model : resumed_recipe(arguments).teacher;
  recipe.teacher_weights = teacher_file(arguments);
  check_usable(recipe);
  return recipe;
}

constexpr const char* run_entry = "run";  // of the file's metadata

/// The run of the teacher whose weights are in the folder of the student; "" if an older version saved them.
std::string saved_run(const DistillArguments& arguments) {
  const io::SafetensorsFile file(teacher_file(arguments));
  for (const auto& [name, value] : file.metadata()) {
    if (name == run_entry) return value;
  }
  return "";
}

bool same_weights(const NamedTensors& a, const NamedTensors& b) {
  const std::map<std::string, at::Tensor> expected(a.begin(), a.end());
  return a.size() == b.size() && std::ranges::all_of(b, [&](const auto& item) {
           const auto found = expected.find(item.first);
           return found != expected.end() && at::equal(found->second, item.second);
         });
}

/// A resumed run continues with the teacher of its start, so TEACHER must be that one.
void check_same_teacher(const DistillArguments& arguments, const TrainedModel& teacher) {
  const std::string saved = teacher_file(arguments), run = saved_run(arguments);
  if (same_weights(io::load_safetensors(saved), teacher.model.state_dict())) return;
  throw UsageError(
      c10::str("--resume: the weights of TEACHER ", arguments.teacher,
               " are not those of the teacher with which this run started (", saved, run.empty() ? "" : ", from " + run,
               "). Leave out TEACHER to resume with the saved teacher. To learn from another teacher, choose "
               "another folder for --out."));
}

/// Writes the teacher's weights, which training and evaluation read. A resumed run uses those of its start.
void save_teacher(const DistillArguments& arguments, Recipe of_teacher, const Recipe& recipe) {
  of_teacher.precision = "fp32";  // unrounded
  const TrainedModel teacher = reading_teacher([&] { return train::load_run(arguments.teacher, of_teacher); });
  if (resumes(arguments)) return check_same_teacher(arguments, teacher);
  const train::ResolvedJob student = train::resolve(recipe);
  train::teacher_entry(student);  // checks that both models fit together
  train::check_same_classes(teacher.job, student);
  std::error_code failed;
  fs::create_directories(arguments.out, failed);  // saving reports the reason
  io::save_safetensors(recipe.teacher_weights, teacher.model.state_dict(),
                       {.metadata = {{run_entry, arguments.teacher}}});
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
  const std::string teacher = arguments.teacher.empty() ? "" : shell_word(arguments.teacher) + " ";
  std::string command = "Resume with: bellows distill " + teacher + "--out " + shell_word(arguments.out) +
                        (arguments.compare ? " --compare" : "") + " --resume";
  for (const std::string& plugin : arguments.plugins) command += " --plugin " + shell_word(plugin);
  return command;
}

/// The trainings of the command.
class Distilling {
 public:
  Distilling(const DistillArguments& arguments, Recipe recipe)
      : arguments_(arguments), recipe_(std::move(recipe)), quiet_(arguments.json == "-") {}

  /// Params: of_teacher – empty if TEACHER was left out
  int run(const std::optional<Recipe>& of_teacher) {
    if (of_teacher) save_teacher(arguments_, *of_teacher, recipe_);
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
    const std::string run = arguments_.teacher.empty() ? saved_run(arguments_) : arguments_.teacher;
    json["teacher"] = column_json(recipe_.teacher, run, columns_.front());
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
  // Several ranks would write the same files.
  check_alone("distill", "", "On several ranks, use `bellows train` with the recipe key teacher.");
  check_output_file(arguments.json);
  check_folders(arguments);
  std::optional<Recipe> of_teacher;
  if (!arguments.teacher.empty()) of_teacher = reading_teacher([&] { return train::recipe_of_run(arguments.teacher); });
  return Distilling(arguments, recipe_of(arguments, of_teacher)).run(of_teacher);
}

}  // namespace bellows::cli
