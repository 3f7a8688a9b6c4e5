#include "bellows/tune/trial_process.h"

#include <c10/util/Exception.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "bellows/comm/launch/launch_environment.h"
#include "bellows/core/stats.h"
#include "bellows/inspect/memory.h"
#include "bellows/io/tables/number_text.h"
#include "bellows/system/file.h"
#include "bellows/system/stop.h"

namespace bellows::tune {

namespace {

namespace fs = std::filesystem;

/// Memory that a process may reserve without using it, such as the stacks of its threads.
constexpr uint64_t reserved_bytes = uint64_t{512} << 20;

void fill_folder(const StudyFile& file, const Trial& trial, const std::string& folder) {
  train::Recipe recipe = recipe_of(file, trial.values);
  std::error_code failed;
  fs::remove_all(folder, failed);
  fs::create_directories(folder, failed);
  TORCH_CHECK(!failed, "tune: cannot create ", folder, ": ", failed.message(), ".");
  set_model(recipe, file, trial.values, folder + "/model.json");
  recipe.run_folder.clear();
  if (file.study.halving) {  // the log contains the evaluations of the run
    recipe.run_folder = folder + "/run";
    recipe.log = "json";
    recipe.save_total_limit = 1;
  }
  write_text_file(folder + "/recipe.yaml", recipe.to_yaml());
}

std::vector<std::string> prepared_command(const StudyFile& file, const Trial& trial, const std::string& folder,
                                          const TrialProgram& program) {
  fill_folder(file, trial, folder);
  std::vector<std::string> command = program.command;
  if (!program.recipe_option.empty()) command.push_back(program.recipe_option);
  command.insert(command.end(), {folder + "/recipe.yaml", "--json", folder + "/result.json"});
  return command;
}

/// Whether a launcher sets this variable for its ranks.
bool is_of_launcher(const std::string& name) {
  static const std::set<std::string> names = {"RANK",
                                              "WORLD_SIZE",
                                              "LOCAL_RANK",
                                              "LOCAL_WORLD_SIZE",
                                              "ROLE_RANK",
                                              "ROLE_WORLD_SIZE",
                                              "GROUP_RANK",
                                              "MASTER_ADDR",
                                              "MASTER_PORT",
                                              "BELLOWS_TOKEN",
                                              "BELLOWS_LAUNCHER",
                                              "BELLOWS_MEMBER",
                                              "BELLOWS_STORE",
                                              "SLURM_PROCID",
                                              "SLURM_NTASKS",
                                              "SLURM_LOCALID",
                                              "SLURM_NTASKS_PER_NODE"};
  return names.contains(name) || name.starts_with("TORCHELASTIC_") || name.starts_with("OMPI_COMM_WORLD_");
}

/// If this process is a rank, its trials are not, and they do not use the number of threads of a rank.
/// Params: ranks – number of processes of the trial; their launcher divides the cores
std::vector<std::string> trial_environment(size_t cores, int64_t ranks) {
  comm::Variables variables = comm::environment_variables();
  if (comm::read_launch_environment(variables).world_size > 1) {
    std::erase_if(variables, [](const auto& variable) { return is_of_launcher(variable.first); });
    variables.erase("OMP_NUM_THREADS");
  }
  if (cores > 0 && ranks == 1) variables.try_emplace("OMP_NUM_THREADS", std::to_string(cores));
  std::vector<std::string> environment;
  environment.reserve(variables.size());
  for (const auto& [name, value] : variables) environment.push_back(c10::str(name, "=", value));
  return environment;
}

/// The highest resident memory of a process and of its children together.
int64_t peak_rss_with_children(pid_t process) {
  int64_t bytes = inspect::peak_rss_of(process);
  const std::string number = std::to_string(process);
  std::ifstream children("/proc/" + number + "/task/" + number + "/children");
  for (pid_t child = 0; children >> child;) bytes += inspect::peak_rss_of(child);
  return bytes;
}

double json_number(const nlohmann::json& json, const char* key) {
  const auto value = json.find(key);
  return value != json.end() && value->is_number() ? value->get<double>() : std::nan("");
}

}  // namespace

TrialProcess::TrialProcess(const StudyFile& file, const Trial& trial, const std::string& folder,
                           const TrialProgram& program, const comm::Signals& signals)
    : file_(file),
      number_(trial.number),
      folder_(folder),
      process_(static_cast<int>(trial.number), prepared_command(file, trial, folder, program),
               trial_environment(program.cores.size(), file.ranks), signals) {
  output_.open(folder + "/output.txt");
  set_limits(program.cores);
}

void TrialProcess::set_limits(const std::vector<int>& cores) const {
  const pid_t process = process_.pid();
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int core : cores) CPU_SET(core, &set);
  if (!cores.empty()) sched_setaffinity(process, sizeof set, &set);
  std::ofstream("/proc/" + std::to_string(process) + "/oom_score_adj") << 1000;
  if (file_.trial_bytes <= 0) return;
  // A single large allocation fails here. watch() limits the memory that the process really uses.
  const rlim_t most = static_cast<uint64_t>(file_.trial_bytes) + reserved_bytes;
  const rlimit limit{most, most};
  prlimit(process, RLIMIT_DATA, &limit, nullptr);
}

void TrialProcess::stop(std::string reason) {
  if (stopped_.empty()) stopped_ = std::move(reason);
  process_.send(SIGKILL);
}

void TrialProcess::prune() {
  pruned_ = true;
  stop("pruned");
}

/// The part of the objective that the run has used, if it is a time or a cost.
double TrialProcess::spent(double trained_seconds) const {
  const std::string& objective = file_.study.objective;
  if (file_.study.maximize) return std::nan("");
  if (objective == "time_to_target" || objective == "train_seconds") return trained_seconds;
  if (objective == "seconds") return seconds_;
  return objective == "cost" ? seconds_ / 3600 * file_.price_per_hour : std::nan("");
}

std::vector<TrialReport> TrialProcess::watch() {
  process_.read_output(on_line_);
  if (process_.running()) {
    const pid_t pid = process_.pid();
    peak_bytes_ = std::max(peak_bytes_, file_.ranks > 1 ? peak_rss_with_children(pid) : inspect::peak_rss_of(pid));
  }
  seconds_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
  if (file_.trial_bytes > 0 && peak_bytes_ > file_.trial_bytes)
    stop("out of memory: the trial used more than " + format_bytes(static_cast<double>(file_.trial_bytes)));
  if (file_.trial_seconds > 0 && seconds_ > file_.trial_seconds)
    stop("the trial did not end within " + format_seconds(file_.trial_seconds));
  std::vector<TrialReport> reports;
  if (!file_.study.halving) return reports;
  std::ifstream log(folder_ + "/run/log.jsonl");
  log.seekg(log_position_);
  for (std::string line; std::getline(log, line) && !log.eof(); log_position_ = log.tellg()) {
    const auto row = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (row.is_discarded() || !row.contains("eval_loss")) continue;
    const bool by_loss = file_.study.objective == "loss" || !row.contains("eval_accuracy");
    reports.push_back({.step = ++evaluations_,
                       .value = by_loss ? json_number(row, "eval_loss") : -json_number(row, "eval_accuracy"),
                       .spent = spent(json_number(row, "trained_seconds"))});
  }
  return reports;
}

bool TrialProcess::ended() {
  return process_.reap(on_line_);
}

std::map<std::string, double> TrialProcess::metrics() const {
  std::map<std::string, double> result{{"seconds", seconds_}};
  if (peak_bytes_ > 0) result["peak_memory"] = static_cast<double>(peak_bytes_);
  if (file_.price_per_hour > 0) result["cost"] = seconds_ / 3600 * file_.price_per_hour;
  std::ifstream text(folder_ + "/result.json");
  const auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return result;
  const auto add = [&](const std::string& name, double value) {
    if (!std::isnan(value)) result[name] = value;
  };
  if (json.contains("metrics")) {
    for (const auto& [name, value] : json["metrics"].items()) {
      if (value.is_number()) add(name, value.get<double>());
    }
  }
  add("accuracy", json_number(json, "eval_accuracy"));
  add("loss", json_number(json, "eval_loss"));
  const double train_seconds = json_number(json, "train_seconds"), target = json_number(json, "time_to_target_s");
  add("train_seconds", train_seconds);
  // The constraint on the accuracy excludes runs that did not reach the target.
  add("time_to_target", std::isnan(target) ? train_seconds : target);
  return result;
}

std::string TrialProcess::failure() const {
  if (!stopped_.empty()) return stopped_;
  if (process_.exit_code() == 0) return "";
  constexpr std::string_view prefix = "bellows: ";
  // `bellows launch` indents the last line of a rank.
  const size_t at = last_error_.find_first_not_of(' ');
  const bool has_words = at != std::string::npos && last_error_.compare(at, prefix.size(), prefix) == 0;
  return failure_words(has_words ? last_error_.substr(at + prefix.size()) : "the trial " + process_.how());
}

TrialResult TrialProcess::result() {
  output_.close();
  const bool pruned = pruned_ && process_.exit_code() != 0;  // otherwise it ended just before, and is complete
  const TrialResult result{
      .metrics = metrics(), .seconds = seconds_, .pruned = pruned, .failure = pruned_ ? "" : failure()};
  std::error_code ignored;
  fs::remove_all(folder_ + "/run", ignored);  // checkpoints
  return result;
}

int stop_signal(const comm::Signals& signals) {
  for (int signal = signals.next(); signal != 0; signal = signals.next()) {
    if (comm::asks_to_stop(signal)) return signal;
  }
  return stop_requested() ? SIGTERM : 0;
}

std::string failure_words(std::string message) {
  if (message.ends_with('.')) message.pop_back();
  return message;
}

std::string trial_folder(const std::string& folder, int64_t number) {
  std::array<char, 32> name{};
  std::snprintf(name.data(), name.size(), "/trial-%04d", static_cast<int>(number));
  return folder + name.data();
}

std::vector<std::vector<int>> divide_cores(int64_t jobs) {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> cores;
  if (sched_getaffinity(0, sizeof set, &set) == 0) {
    for (int core = 0; core < CPU_SETSIZE; ++core) {
      if (CPU_ISSET(core, &set)) cores.push_back(core);
    }
  }
  std::vector<std::vector<int>> parts(static_cast<size_t>(std::max<int64_t>(jobs, 1)));
  if (cores.empty()) return parts;
  for (size_t i = 0; i < parts.size(); ++i) {
    const size_t from = i * cores.size() / parts.size(), to = (i + 1) * cores.size() / parts.size();
    if (from == to) {
      parts[i] = {cores[i % cores.size()]};
    } else {
      parts[i].assign(cores.begin() + static_cast<ptrdiff_t>(from), cores.begin() + static_cast<ptrdiff_t>(to));
    }
  }
  return parts;
}

}  // namespace bellows::tune
