#include <algorithm>
#include <cmath>
#include <filesystem>

#include "bellows/core/error.h"
#include "bellows/core/stats.h"
#include "bellows/system/file.h"
#include "bellows/tune/lr_range.h"
#include "bellows/tune/search.h"
#include "bellows/tune/study_page.h"
#include "cli/interrupt.h"
#include "cli/json_text.h"
#include "cli/options.h"
#include "cli/terminal.h"

namespace bellows::cli {

namespace {

using tune::Study;
using tune::StudyFile;
using tune::Trial;
using tune::TrialState;

constexpr size_t listed_trials = 10, lr_rows_between = 5;

StudyFile study_file(const TuneArguments& arguments) {
  try {
    StudyFile file = tune::load_study(arguments.study);
    if (arguments.trials >= 0) file.trials = arguments.trials;
    if (arguments.seed >= 0) file.study.seed = static_cast<uint64_t>(arguments.seed);
    return file;
  } catch (const c10::ValueError& error) {
    throw UsageError(user_message(error));
  }
}

std::string study_folder(const TuneArguments& arguments) {
  if (!arguments.out.empty()) return arguments.out;
  const std::filesystem::path path(arguments.study);
  if (path.extension().empty()) throw UsageError("the study file has no extension. Pass --out with a folder.");
  return (path.parent_path() / path.stem()).string();
}

std::vector<std::string> trial_command(const std::vector<std::string>& plugins) {
  std::error_code failed;
  const std::string program = std::filesystem::read_symlink("/proc/self/exe", failed).string();
  std::vector<std::string> command = {failed ? "bellows" : program, "train"};
  for (const std::string& plugin : plugins) command.insert(command.end(), {"--plugin", plugin});
  return command;
}

std::string metric_text(const std::string& name, double value) {
  if (name == "peak_memory") return format_bytes(value);
  const bool time = name == "seconds" || name == "train_seconds" || name == "time_to_target";
  return time ? format_seconds(value) : number("%.4g", value);
}

std::string objective_text(const Study& study, const Trial& trial) {
  const std::string& name = study.options().objective;
  return name + " " + metric_text(name, study.options().metric_of(trial));
}

std::string trial_text(const Study& study, const Trial& trial) {
  return objective_text(study, trial) + " (trial " + std::to_string(trial.number) + ")";
}

int64_t count_of(const Study& study, TrialState state) {
  return std::count_if(study.trials().begin(), study.trials().end(),
                       [&](const Trial& trial) { return trial.state == state; });
}

int64_t violating(const Study& study) {
  return std::count_if(study.trials().begin(), study.trials().end(),
                       [](const Trial& trial) { return trial.state == TrialState::complete && trial.violation > 0; });
}

std::string counts_text(const Study& study) {
  std::string text = c10::str("Trials: ", count_of(study, TrialState::complete), " complete");
  if (const int64_t outside = violating(study)) text += c10::str(" (", outside, " outside of the constraints)");
  text +=
      c10::str(", ", count_of(study, TrialState::pruned), " pruned, ", count_of(study, TrialState::failed), " failed");
  const int64_t interrupted = count_of(study, TrialState::interrupted);
  return text + (interrupted > 0 ? c10::str(", ", interrupted, " interrupted and run again") : "") + ".";
}

/// Complete trials, the best one first.
std::vector<Trial> ranked(const Study& study) {
  std::vector<Trial> trials;
  std::copy_if(study.trials().begin(), study.trials().end(), std::back_inserter(trials),
               [](const Trial& trial) { return trial.state == TrialState::complete; });
  std::stable_sort(trials.begin(), trials.end(), [](const Trial& a, const Trial& b) {
    return std::pair(a.violation, a.objective) < std::pair(b.violation, b.objective);
  });
  return trials;
}

std::string table_of(const Study& study) {
  std::string text;
  std::vector<Trial> trials = ranked(study);
  trials.resize(std::min(trials.size(), listed_trials));
  for (const Trial& trial : trials) {
    text += wrapped(c10::str(trial_text(study, trial), trial.violation > 0 ? ", violates a constraint" : "", ": ",
                             study.options().space.text(trial.values)),
                    "  ");
  }
  return text;
}

/// The reasons of failed trials, each with its number of trials.
std::string failures_of(const Study& study) {
  std::map<std::string, std::vector<int64_t>> reasons;
  for (const Trial& trial : study.trials()) {
    if (trial.state == TrialState::failed) reasons[one_line(trial.failure)].push_back(trial.number);
  }
  std::string text;
  for (const auto& [reason, trials] : reasons)
    text += wrapped(c10::str(trials.size(), trials.size() == 1 ? " trial" : " trials", " failed, such as trial ",
                             trials.front(), ": ", reason, "."),
                    "  ");
  return text;
}

std::string result_text(const Study& study, const StudyFile& file, const std::string& folder) {
  std::string text = wrapped(counts_text(study)) + failures_of(study);
  const Trial* best = best_trial(study.trials());
  if (!best) {
    std::string constraints;
    for (const tune::Constraint& constraint : file.study.constraints)
      constraints += (constraints.empty() ? "" : ", ") + constraint.text();
    const bool any = std::any_of(study.trials().begin(), study.trials().end(),
                                 [](const Trial& trial) { return trial.state == TrialState::complete; });
    return text + wrapped(any ? "No trial holds the constraints: " + constraints + "." : "No trial is complete.") +
           table_of(study);
  }
  return text + wrapped("Best: " + trial_text(study, *best) + ".") + table_of(study) +
         wrapped("Recipe: " + folder + "/best.yaml");
}

nlohmann::ordered_json trial_json(const Study& study, const Trial& trial) {
  nlohmann::ordered_json json{{"trial", trial.number},
                              {"state", tune::state_name(trial.state)},
                              {"violation", trial.violation},
                              {"seconds", trial.seconds},
                              {"failure", trial.failure}};
  for (size_t i = 0; i < trial.values.size(); ++i) {
    const tune::Parameter& parameter = study.options().space.parameters[i];
    json["values"][parameter.name] = parameter.text(trial.values[i]);
  }
  json["metrics"] = trial.metrics;
  return json;
}

std::string study_json(const Study& study, const StudyFile& file, const std::string& folder) {
  const Trial* best = best_trial(study.trials());
  nlohmann::ordered_json json{{"objective", file.study.objective}, {"maximize", file.study.maximize}};
  json["best"] = best ? trial_json(study, *best) : nlohmann::ordered_json(nullptr);
  json["recipe"] = best ? nlohmann::ordered_json(read_text_file(folder + "/best.yaml")) : nullptr;
  json["trials"] = nlohmann::ordered_json::array();
  for (const Trial& trial : study.trials()) json["trials"].push_back(trial_json(study, trial));
  return json_text(json);
}

void show_progress(Terminal& terminal, const Study& study, int64_t trials) {
  const Trial* best = best_trial(study.trials());
  terminal.status(c10::str("tune: ", study.finished(), " of ", trials, " trials"),
                  best ? "best " + trial_text(study, *best) : "");
}

int run_lr_range(const TuneArguments& arguments) {
  const train::Recipe recipe = load_recipe(arguments.study);
  check_usable(recipe);
  const tune::LrRange range = tune::lr_range_test(recipe);
  std::string table = pad_left("lr", 12) + pad_left("loss", 12) + pad_left("smooth loss", 14) + "\n";
  nlohmann::ordered_json json{{"suggested_lr", range.suggested}, {"diverged", range.diverged}};
  json["steps"] = nlohmann::ordered_json::array();
  for (size_t i = 0; i < range.steps.size(); ++i) {
    const tune::LrRangeStep& step = range.steps[i];
    json["steps"].push_back({{"lr", step.lr}, {"loss", step.loss}, {"smooth_loss", step.smooth_loss}});
    if (i % lr_rows_between != 0) continue;
    table += pad_left(number("%.2e", step.lr), 12) + pad_left(number("%.4f", step.loss), 12) +
             pad_left(number("%.4f", step.smooth_loss), 14) + "\n";
  }
  const std::string result = range.suggested > 0
                                 ? number("Suggested: lr: %.2e", range.suggested)
                                 : std::string("No rate reduces the loss. Check the data and the model");
  if (arguments.json != "-") print_result(table + result + "\n");
  write_json(arguments.json, json_text(json));
  return range.suggested > 0 ? exit_done : exit_failed;
}

}  // namespace

int run_tune(const TuneArguments& arguments) {
  check_alone("tune", "", "Use --jobs for parallel trials.");
  if (arguments.lr_range) return run_lr_range(arguments);
  const StudyFile file = study_file(arguments);
  const std::string folder = study_folder(arguments);
  check_output_file(arguments.json);
  check_output_file(arguments.html);
  Study study(file.study, folder, arguments.resume);
  // run_search() blocks signals. `timeout` and a second Ctrl-C send another one, which arrives after it.
  const Interrupt interrupt("printing the results so far. Continue the search with --resume");
  int signal = 0;
  {
    Terminal terminal;
    signal = run_search(study, file,
                        {.folder = folder,
                         .command = trial_command(arguments.plugins),
                         .jobs = arguments.jobs,
                         .on_change = [&](const Study& now) { show_progress(terminal, now, file.trials); }});
  }
  if (arguments.json != "-") print_result(result_text(study, file, folder));
  if (!arguments.html.empty()) write_text_file(arguments.html, study_page(study, arguments.study));
  write_json(arguments.json, study_json(study, file, folder));
  if (signal != 0) print_error("stopped on request. Continue the search with --resume.");
  if (signal != 0) return 128 + signal;
  return best_trial(study.trials()) ? exit_done : exit_failed;
}

}  // namespace bellows::cli
