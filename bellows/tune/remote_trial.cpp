#include "bellows/tune/remote_trial.h"

#include <c10/util/Exception.h>
#include <poll.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "bellows/core/error.h"
#include "bellows/core/log.h"
#include "bellows/report/json_text.h"
#include "bellows/tune/search.h"

namespace bellows::tune {

namespace {

using RemoteJson = nlohmann::ordered_json;
using RemoteClock = std::chrono::steady_clock;

// The messages of trial N of a slot. "N/task" ends the slot if its value is `no_trial`.
constexpr const char *task_key = "task", *prune_key = "prune", *result_key = "result", *no_trial = "end";
constexpr std::chrono::milliseconds message_period{50};

comm::Store messages_of(const comm::Store& slot, int64_t count) {
  return slot.under(std::to_string(count) + "/");
}

std::string report_key(size_t index) {
  return "report/" + std::to_string(index);
}

std::string result_text(const TrialResult& result) {
  RemoteJson json{{"seconds", result.seconds}, {"pruned", result.pruned}, {"failure", result.failure}};
  json["metrics"] = RemoteJson::object();
  for (const auto& [name, value] : result.metrics) {
    if (std::isfinite(value)) json["metrics"][name] = value;
  }
  return json_text(json);
}

TrialResult result_of(const std::string& text) {
  const auto json = RemoteJson::parse(text);
  return {.metrics = json.at("metrics").get<std::map<std::string, double>>(),
          .seconds = json.at("seconds").get<double>(),
          .pruned = json.at("pruned").get<bool>(),
          .failure = json.at("failure").get<std::string>()};
}

class RemoteTrial final : public RunningTrial {
 public:
  RemoteTrial(comm::Store messages, const Trial& trial) : messages_(std::move(messages)), number_(trial.number) {
    messages_.set(task_key, json_text(RemoteJson{{"trial", trial.number}, {"values", trial.values}}));
  }

  int64_t number() const override { return number_; }
  std::vector<int> outputs() const override { return {}; }
  bool running() const override { return !result_; }
  void prune() override { messages_.set(prune_key, ""); }
  TrialResult result() override { return *result_; }

  std::vector<TrialReport> watch() override {
    std::vector<TrialReport> reports;
    if (!has_news_) return reports;
    has_news_ = false;
    while (const auto text = messages_.find(report_key(seen_))) {
      const auto json = RemoteJson::parse(*text);
      const auto number = [&](size_t at) { return json.at(at).is_number() ? json[at].get<double>() : std::nan(""); };
      reports.push_back({.step = json.at(0).get<int64_t>(), .value = number(1), .spent = number(2)});
      ++seen_;
    }
    return reports;
  }

  bool ended() override {
    const auto now = RemoteClock::now();
    if (now - asked_ < message_period) return false;
    asked_ = now, has_news_ = true;
    if (const auto text = messages_.find(result_key)) result_ = result_of(*text);
    return result_.has_value();
  }

 private:
  const comm::Store messages_;
  const int64_t number_;
  RemoteClock::time_point asked_{};
  bool has_news_ = false;  ///< ended() has asked the store, so watch() does so, too
  size_t seen_ = 0;        ///< number of reports
  std::optional<TrialResult> result_;
};

/// A slot of this process, which runs trials for a search in another process.
class ServedSlot {
 public:
  ServedSlot(comm::Store slot, const StudyFile& file, const SearchOptions& options, std::vector<int> cores,
             const comm::Signals& signals)
      : slot_(std::move(slot)),
        file_(file),
        options_(options),
        program_{.command = options.command, .cores = std::move(cores)},
        signals_(signals) {}

  /// Returns false after the last trial.
  bool advance() {
    if (trial_) return advance_trial(), true;
    const comm::Store messages = messages_of(slot_, count_);
    const auto task = messages.find(task_key);
    if (!task) return true;
    if (*task == no_trial) return false;
    const auto json = RemoteJson::parse(*task);
    const Trial trial{.number = json.at("trial").get<int64_t>(), .values = json.at("values").get<Assignment>()};
    try {
      trial_ =
          std::make_unique<TrialProcess>(file_, trial, trial_folder(options_.folder, trial.number), program_, signals_);
    } catch (const c10::ValueError& error) {
      // Keys that do not fit together.
      messages.set(result_key, result_text({.failure = failure_words(user_message(error))}));
      ++count_;
    }
    return true;
  }

 private:
  void advance_trial() {
    const comm::Store messages = messages_of(slot_, count_);
    const bool ended = trial_->ended();
    for (const TrialReport& report : trial_->watch())
      messages.set(report_key(reports_++), json_text(RemoteJson{report.step, report.value, report.spent}));
    if (!ended) {
      if (messages.find(prune_key)) trial_->prune();
      // The search has ended, so nobody waits for this trial.
      if (messages_of(slot_, count_ + 1).find(task_key)) trial_.reset(), ++count_, reports_ = 0;
      return;
    }
    messages.set(result_key, result_text(trial_->result()));
    trial_.reset(), ++count_, reports_ = 0;
  }

  const comm::Store slot_;
  const StudyFile& file_;
  const SearchOptions& options_;
  const TrialProgram program_;
  const comm::Signals& signals_;
  std::unique_ptr<TrialProcess> trial_;
  int64_t count_ = 0;   ///< trials that have ended
  size_t reports_ = 0;  ///< of this trial
};

}  // namespace

std::unique_ptr<RunningTrial> remote_trial(const comm::Store& slot, int64_t count, const Trial& trial) {
  return std::make_unique<RemoteTrial>(messages_of(slot, count), trial);
}

void end_remote_trials(const comm::Store& slot, int64_t count) noexcept {
  try {
    messages_of(slot, count).set(task_key, no_trial);
  } catch (const std::exception& error) {
    log_warn("tune: cannot end the trials of another process: ", error.what());
  }
}

std::vector<comm::Store> remote_slots(const comm::Store& store, int rank, int64_t jobs) {
  std::vector<comm::Store> slots;
  slots.reserve(static_cast<size_t>(jobs));
  for (int64_t i = 0; i < jobs; ++i) slots.push_back(store.under(c10::str("trials/", rank, "/", i, "/")));
  return slots;
}

int serve_trials(const StudyFile& file, const SearchOptions& options, const std::vector<comm::Store>& slots) {
  const std::vector<std::vector<int>> cores = cores_of(options);
  const comm::Signals signals;
  std::vector<std::unique_ptr<ServedSlot>> running;
  running.reserve(slots.size());
  for (size_t i = 0; i < slots.size(); ++i)
    running.push_back(std::make_unique<ServedSlot>(slots[i], file, options, cores.at(i), signals));
  while (!running.empty()) {
    std::erase_if(running, [](auto& slot) { return !slot->advance(); });
    if (const int signal = stop_signal(signals)) return signal;
    pollfd event{signals.fd(), POLLIN, 0};
    poll(&event, 1, static_cast<int>(message_period.count()));
  }
  return 0;
}

}  // namespace bellows::tune
