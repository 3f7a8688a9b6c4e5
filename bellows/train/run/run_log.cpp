#include "bellows/train/run/run_log.h"

#include <c10/util/Exception.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <ctime>
#include <filesystem>
#include <optional>

#include "bellows/core/error.h"
#include "bellows/core/log.h"
#include "bellows/io/records/event_file.h"
#include "bellows/train/run/log_file.h"
#include "bellows/train/trainer.h"

namespace bellows::train {

namespace {

using SteadyClock = std::chrono::steady_clock;

std::string time_of_day() {
  const std::time_t now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  char text[32];
  return std::string(text, std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &parts));
}

void check_names(const NamedValues& values) {
  for (const auto& [name, value] : values) {
    TORCH_CHECK_VALUE(!name.empty() && name != "step" && name != "seconds" && name != "time",
                      "RunLog: expected names other than step, seconds and time, which every row has, got \"", name,
                      "\".");
  }
}

/// What of `values` is not in `row` as it is: an event file keeps everything that it is given.
NamedValues not_in(const NamedValues& row, const NamedValues& values) {
  NamedValues result;
  for (const auto& value : values) {
    if (std::find(row.begin(), row.end(), value) == row.end()) result.push_back(value);
  }
  return result;
}

/// The keys of a recipe with their values, as the HPARAMS tab wants them. Where a run is kept is none of them.
std::vector<std::pair<std::string, io::HyperParameter>> hyper_parameters_of(const Recipe& recipe) {
  std::vector<std::pair<std::string, io::HyperParameter>> result;
  const YAML::Node values = YAML::Load(recipe.to_yaml());
  for (const RecipeField& field : recipe_fields()) {
    const YAML::Node value = values[field.name];
    if (field.name == "run_folder" || !value) continue;
    if (field.type == "true or false") {
      result.emplace_back(field.name, value.as<bool>());
    } else if (field.type == "text") {
      result.emplace_back(field.name, value.as<std::string>());
    } else {
      result.emplace_back(field.name, value.as<double>());
    }
  }
  return result;
}

}  // namespace

std::vector<std::string> parse_log_kinds(std::string_view text) {
  static const std::vector<std::string> known{"csv", "json", "tensorboard"};
  std::vector<std::string> kinds;
  std::string word;
  const auto take_word = [&] {
    if (word.empty()) return;
    TORCH_CHECK_VALUE(std::find(known.begin(), known.end(), word) != known.end(),
                      "log: expected a list of csv, json and tensorboard, got \"", word, "\".",
                      did_you_mean(word, known));
    TORCH_CHECK_VALUE(std::find(kinds.begin(), kinds.end(), word) == kinds.end(), "log: \"", word,
                      "\" stands there twice.");
    kinds.push_back(std::exchange(word, ""));
  };
  for (const char c : text) {
    if (c == ',' || c == ' ') {
      take_word();
    } else {
      word += c;
    }
  }
  take_word();
  return kinds;
}

struct RunLog::State {
  State(const std::vector<std::string>& kinds, const std::string& folder, int64_t last_step) {
    std::error_code error;
    std::filesystem::create_directories(folder, error);
    TORCH_CHECK(!error, "log: cannot make the folder ", folder, ": ", errno_message(error.value()), ".");
    const std::filesystem::path in(folder);
    for (const std::string& kind : kinds) {
      if (kind == "csv") csv.emplace(in / "log.csv", last_step);
      if (kind == "json") json.emplace(in / "log.jsonl", last_step);
      if (kind == "tensorboard") events.emplace(folder, io::EventWriterOptions{.purge_step = last_step + 1});
    }
    if (csv) row = csv->last();
    if (json && json->last().step >= row.step) row = json->last();
    seconds_before = row.seconds;
  }

  /// Logs are worth less than the run: what cannot be written is said once and given up.
  template <class Log, class Action>
  static void attempt(std::optional<Log>& log, const Action& action) {
    if (!log) return;
    try {
      action(*log);
    } catch (const c10::ValueError&) {
      throw;  // the caller's mistake
    } catch (const std::exception& error) {
      log_warn("log: ", user_message(error), " This log ends here; the run goes on.");
      log.reset();
    }
  }

  double seconds() const { return seconds_before + std::chrono::duration<double>(SteadyClock::now() - start).count(); }

  std::optional<CsvLog> csv;
  std::optional<JsonLog> json;
  std::optional<io::EventWriter> events;
  LogRow row;
  double seconds_before = 0;
  SteadyClock::time_point start = SteadyClock::now();
};

RunLog::RunLog(std::string_view kinds, const std::string& folder, int64_t last_step) {
  const std::vector<std::string> wanted = parse_log_kinds(kinds);
  if (!wanted.empty() && !folder.empty()) state_ = std::make_unique<State>(wanted, folder, last_step);
}

RunLog::~RunLog() = default;

void RunLog::step(int64_t step, const NamedValues& values) {
  if (!state_) return;
  check_names(values);
  LogRow& row = state_->row;
  TORCH_CHECK_VALUE(step >= std::max<int64_t>(row.step, 0), "RunLog: step ", step, " comes after step ", row.step,
                    ", which is logged already. Log steps in order.");
  if (step != row.step) row = {step, state_->seconds(), time_of_day(), {}};
  const NamedValues fresh = not_in(row.values, values);
  row.merge(values);
  // The events first: after a kill in between, a resume finds the row without these values and brings them again.
  State::attempt(state_->events, [&](io::EventWriter& events) {
    for (const auto& [name, value] : fresh) events.scalar(name, value, step);
    events.flush();
  });
  State::attempt(state_->csv, [&](CsvLog& log) { log.write(row); });
  State::attempt(state_->json, [&](JsonLog& log) { log.write(row); });
}

void RunLog::epoch(const EpochRecord& record) {
  if (!state_) return;
  NamedValues values{{"epoch", static_cast<double>(record.epoch)}, {"train_loss", record.train_loss}};
  if (!std::isnan(record.train_accuracy)) values.emplace_back("train_accuracy", record.train_accuracy);
  if (record.eval_seconds > 0) {
    values.insert(values.end(), {{"eval_loss", record.eval_loss}, {"eval_accuracy", record.eval_accuracy}});
  }
  values.emplace_back("train_seconds", record.train_seconds);
  if (record.eval_seconds > 0) values.emplace_back("eval_seconds", record.eval_seconds);
  step(record.steps, values);
}

void RunLog::text(std::string_view name, std::string_view text, int64_t step) {
  if (!state_) return;
  State::attempt(state_->events, [&](io::EventWriter& events) { events.text(name, text, step); });
}

void RunLog::image(std::string_view name, const at::Tensor& image, int64_t step) {
  if (!state_) return;
  State::attempt(state_->events, [&](io::EventWriter& events) { events.image(name, image, step); });
}

void RunLog::histogram(std::string_view name, const at::Tensor& values, int64_t step) {
  if (!state_) return;
  State::attempt(state_->events, [&](io::EventWriter& events) { events.histogram(name, values, step); });
}

void RunLog::histograms(const Model& model, int64_t step) {
  if (!state_ || !state_->events) return;
  for (const auto& [name, parameter] : model.named_parameters()) {
    histogram(name, parameter, step);
    if (parameter.grad().defined()) histogram(name + ".grad", parameter.grad(), step);
  }
}

void RunLog::hyperparameters(const Recipe& recipe, const NamedValues& metrics, int64_t step) {
  if (!state_) return;
  State::attempt(state_->events, [&](io::EventWriter& events) {
    std::vector<std::string> tags;
    for (const auto& [name, value] : metrics) {
      tags.push_back("final/" + name);
      events.scalar(tags.back(), value, step);
    }
    events.hyperparameters(hyper_parameters_of(recipe), tags);
    events.end_session();
  });
}

void RunLog::flush() {
  if (!state_) return;
  State::attempt(state_->events, [](io::EventWriter& events) { events.flush(); });
}

}  // namespace bellows::train
