#include <algorithm>
#include <cmath>
#include <filesystem>

#include "bellows/comm/launch/launch_environment.h"
#include "bellows/comm/rendezvous/rendezvous.h"
#include "bellows/core/error.h"
#include "bellows/core/stats.h"
#include "bellows/system/file.h"
#include "bellows/system/machine.h"
#include "bellows/system/stop.h"
#include "bellows/tune/batch_size.h"
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

/// Returns a command of this program, such as {"/usr/bin/bellows", "train"}. With several ranks, it is a command of
/// `bellows launch`.
std::vector<std::string> own_command(const std::vector<std::string>& words, const std::vector<std::string>& plugins,
                                     int64_t ranks = 1) {
  std::error_code failed;
  const std::string path = std::filesystem::read_symlink("/proc/self/exe", failed).string(),
                    program = failed ? "bellows" : path;
  std::vector<std::string> command = {program};
  if (ranks > 1) command.insert(command.end(), {"launch", "-n", std::to_string(ranks), "--", program});
  command.insert(command.end(), words.begin(), words.end());
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
    return text + wrapped(any ? "No trial satisfies the constraints: " + constraints + "." : "No trial is complete.") +
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

/// A folder for the files of trials, which is deleted with the object.
class TrialFolder {
 public:
  TrialFolder() : path_((std::filesystem::temp_directory_path() / "bellows-tune-XXXXXX").string()) {
    TORCH_CHECK(mkdtemp(path_.data()), "tune: cannot create ", path_, ": ", errno_message(errno), ".");
  }
  ~TrialFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TrialFolder(const TrialFolder&) = delete;
  TrialFolder& operator=(const TrialFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

std::string bytes_text(int64_t bytes) {
  return bytes > 0 ? format_bytes(static_cast<double>(bytes)) : "-";
}

std::string batch_text(const tune::BatchSearch& search, int64_t memory) {
  std::string text =
      pad_left("batch size", 12) + pad_left("predicted", 13) + pad_left("peak", 13) + pad_left("samples/s", 13) + "\n";
  std::vector<tune::BatchTrial> trials = search.trials;
  std::ranges::sort(trials, {}, &tune::BatchTrial::batch_size);
  for (const tune::BatchTrial& trial : trials) {
    text += pad_left(std::to_string(trial.batch_size), 12) + pad_left(bytes_text(trial.predicted_bytes), 13) +
            pad_left(bytes_text(trial.peak_bytes), 13) +
            pad_left(trial.fits() ? brief_number(trial.samples_per_s) : "too large", 13) + "\n";
  }
  if (search.largest == 0) return text + wrapped("No batch size fits into " + bytes_text(memory) + ".");
  const bool all = search.largest == search.tested_up_to;
  return text +
         wrapped(c10::str("Largest batch size that fits into ", bytes_text(memory), ": ", search.largest,
                          all ? " (no larger one was considered)" : "", ".")) +
         wrapped(c10::str("Fastest batch size: ", search.fastest, "."));
}

std::string batch_json(const tune::BatchSearch& search, int64_t memory, const std::string& recipe) {
  nlohmann::ordered_json json{{"memory_bytes", memory}};
  const auto known = [](const auto& value, bool is_known) {
    return is_known ? nlohmann::ordered_json(value) : nullptr;
  };
  json["largest"] = known(search.largest, search.largest > 0);
  json["fastest"] = known(search.fastest, search.fastest > 0);
  json["recipe"] = known(recipe, !recipe.empty());
  json["trials"] = nlohmann::ordered_json::array();
  for (const tune::BatchTrial& trial : search.trials) {
    json["trials"].push_back({{"batch_size", trial.batch_size},
                              {"predicted_bytes", trial.predicted_bytes},
                              {"peak_bytes", known(trial.peak_bytes, trial.peak_bytes > 0)},
                              {"samples_per_s", known(trial.samples_per_s, trial.fits())},
                              {"failure", trial.failure}});
  }
  return json_text(json);
}

int run_measure_batch(const TuneArguments& arguments) {
  const std::string json = tune::measured_batch_json(load_recipe(arguments.study));
  write_json(arguments.json, json + "\n");
  return exit_done;
}

int run_batch_size(const TuneArguments& arguments) {
  train::Recipe recipe = load_recipe(arguments.study);
  check_usable(recipe);
  for (const std::string& file : {std::string(arguments.json), arguments.write_recipe}) check_output_file(file);
  const auto available = static_cast<double>(this_machine().memory_available_bytes);
  const auto memory = arguments.memory > 0 ? static_cast<int64_t>(arguments.memory) : std::llround(0.9 * available);
  const Interrupt interrupt("ending the trial");  // search_batch_sizes() blocks signals while trials run
  const TrialFolder folder;
  Terminal terminal;
  const tune::BatchSearch search =
      tune::search_batch_sizes(recipe, folder.path(), own_command({"tune", "--measure-batch"}, arguments.plugins),
                               memory, [&](const tune::BatchTrial& trial) {
                                 terminal.status(c10::str("tune: tried batch size ", trial.batch_size), "");
                               });
  if (search.signal != 0) print_error("stopped on request.");
  if (search.signal != 0) return Interrupt::requested() ? Interrupt::exit_code() : 128 + search.signal;
  recipe.batch_size = search.fastest, recipe.batch_size_per_rank = 0;
  const std::string fitting = search.fastest > 0 ? recipe.to_yaml() : "";
  if (arguments.json != "-") terminal.print(batch_text(search, memory));
  if (!arguments.write_recipe.empty() && !fitting.empty()) write_text_file(arguments.write_recipe, fitting);
  write_json(arguments.json, batch_json(search, memory, fitting));
  return search.largest > 0 ? exit_done : exit_failed;
}

/// The processes of a search: rank 0 runs the search, and the other ranks run trials for it.
struct TuneRanks {
  comm::LaunchEnvironment place = comm::read_launch_environment();
  std::optional<comm::Store> store{};  ///< empty if there is only one process

  std::string left_key(int rank) const { return "left/" + std::to_string(rank); }
};

/// Meets the other ranks.
/// Throws: UsageError if they have another study file
TuneRanks meet_tune_ranks(const TuneArguments& arguments, const StudyFile& file) {
  constexpr double join_timeout_s = 300, study_timeout_s = 60;
  TuneRanks ranks;
  if (ranks.place.world_size == 1) return ranks;
  ranks.store =
      comm::meet(ranks.place, 0, join_timeout_s, [] { throw_if_stopped("waiting for the other ranks"); }).store;
  const std::string study = read_text_file(arguments.study) + file.study.context;
  if (ranks.place.rank == 0) ranks.store->set("study", study);
  const std::optional<std::string> of_first = ranks.store->wait_for("study", study_timeout_s);
  if (of_first != study) {
    throw UsageError(c10::str("tune: ", arguments.study, " or its recipe differs between rank 0 and rank ",
                              ranks.place.rank, ". Copy both to all nodes."));
  }
  return ranks;
}

tune::SearchOptions search_options(const TuneArguments& arguments, const StudyFile& file, const TuneRanks& ranks) {
  tune::SearchOptions options{.folder = study_folder(arguments),
                              .command = own_command({"train"}, arguments.plugins, file.ranks),
                              .jobs = arguments.jobs,
                              .part = ranks.place.local_rank,
                              .parts = ranks.place.local_world_size};
  for (int rank = 1; ranks.place.rank == 0 && rank < ranks.place.world_size; ++rank) {
    const std::vector<comm::Store> slots = tune::remote_slots(*ranks.store, rank, arguments.jobs);
    options.remote.insert(options.remote.end(), slots.begin(), slots.end());
  }
  return options;
}

/// Runs trials for the search of rank 0.
int run_tune_rank(const TuneArguments& arguments, const StudyFile& file, const TuneRanks& ranks) {
  const Interrupt interrupt("ending the trials");
  const int rank = ranks.place.rank;
  const int signal = tune::serve_trials(file, search_options(arguments, file, ranks),
                                        tune::remote_slots(*ranks.store, rank, arguments.jobs));
  ranks.store->set(ranks.left_key(rank), "");
  return signal == 0 ? exit_done : 128 + signal;
}

/// The process of rank 0 may serve the store, so it leaves last.
void wait_for_tune_ranks(const TuneRanks& ranks) {
  constexpr double leave_timeout_s = 10;
  for (int rank = 1; rank < ranks.place.world_size; ++rank)
    ranks.store->wait_for(ranks.left_key(rank), leave_timeout_s);
}

}  // namespace

int run_tune(const TuneArguments& arguments) {
  if (arguments.measure_batch) return run_measure_batch(arguments);
  if (arguments.batch_size || arguments.lr_range) {
    check_alone("tune", " with --batch-size and --lr-range", "Start it without a launcher.");
    return arguments.lr_range ? run_lr_range(arguments) : run_batch_size(arguments);
  }
  const StudyFile file = study_file(arguments);
  const std::string folder = study_folder(arguments);
  const TuneRanks ranks = meet_tune_ranks(arguments, file);
  if (ranks.place.rank > 0) return run_tune_rank(arguments, file, ranks);
  check_output_file(arguments.json);
  check_output_file(arguments.html);
  Study study(file.study, folder, arguments.resume);
  // run_search() blocks signals. `timeout` and a second Ctrl-C send another one, which arrives after it.
  const Interrupt interrupt("printing the results so far. Continue the search with --resume");
  int signal = 0;
  {
    Terminal terminal;
    tune::SearchOptions options = search_options(arguments, file, ranks);
    options.on_change = [&](const Study& now) { show_progress(terminal, now, file.trials); };
    signal = run_search(study, file, options);
  }
  if (ranks.store) wait_for_tune_ranks(ranks);
  if (arguments.json != "-") print_result(result_text(study, file, folder));
  if (!arguments.html.empty()) write_text_file(arguments.html, study_page(study, arguments.study));
  write_json(arguments.json, study_json(study, file, folder));
  if (signal != 0) print_error("stopped on request. Continue the search with --resume.");
  if (signal != 0) return 128 + signal;
  return best_trial(study.trials()) ? exit_done : exit_failed;
}

}  // namespace bellows::cli
