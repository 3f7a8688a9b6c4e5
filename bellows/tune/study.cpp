#include "bellows/tune/study.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "bellows/checkpoint/folder_lock.h"
#include "bellows/core/error.h"
#include "bellows/core/seed.h"
#include "bellows/report/json_text.h"
#include "bellows/tune/journal.h"

namespace bellows::tune {

namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t proposals = 32;       ///< attempts of the sampler to find a new configuration
constexpr int64_t random_draws = 1000;  ///< attempts after these, in spaces that are too large to enumerate
constexpr int64_t enumerable = 1 << 20;

Json numbers(const std::vector<double>& values) {
  Json list = Json::array();
  for (const double value : values) list.push_back(number_or_null<Json>(value));
  return list;
}

double number_of(const Json& json) {
  return json.is_null() ? std::numeric_limits<double>::quiet_NaN() : json.get<double>();
}

/// The definition of a search as text, which a resumed search compares.
Json definition(const StudyOptions& options) {
  Json json{{"kind", "study"},
            {"version", 1},
            {"objective", options.objective},
            {"maximize", options.maximize},
            {"sampler", options.sampler},
            {"seed", options.seed},
            {"context", options.context}};
  for (const Parameter& p : options.space.parameters)
    json["space"].push_back({p.name, static_cast<int>(p.kind), p.low, p.high, p.log, p.step, p.points, p.choices});
  for (const Constraint& c : options.constraints)
    json["constraints"].push_back({c.metric, number_or_null<Json>(c.at_least), number_or_null<Json>(c.at_most)});
  if (options.halving) json["halving"] = {options.halving->first_rung, options.halving->factor};
  return json;
}

/// The first key in which two definitions differ.
std::string difference(const Json& before, const Json& now) {
  for (const auto& [key, value] : now.items()) {
    if (!before.contains(key) || before[key] != value) return key == "context" ? "recipe or another setting" : key;
  }
  for (const auto& [key, value] : before.items()) {
    if (!now.contains(key)) return key;
  }
  return "";
}

Json end_entry(const Trial& trial) {
  Json json{{"kind", "end"},
            {"trial", trial.number},
            {"state", static_cast<int>(trial.state)},
            {"objective", number_or_null<Json>(trial.objective)},
            {"violation", trial.violation},
            {"seconds", trial.seconds},
            {"failure", trial.failure},
            {"metrics", Json::object()}};
  for (const auto& [name, value] : trial.metrics) json["metrics"][name] = number_or_null<Json>(value);
  return json;
}

void apply_end(const Json& json, Trial& trial) {
  trial.state = static_cast<TrialState>(json.at("state").get<int>());
  trial.objective = number_of(json.at("objective"));
  trial.violation = json.at("violation").get<double>();
  trial.seconds = json.at("seconds").get<double>();
  trial.failure = json.at("failure").get<std::string>();
  for (const auto& [name, value] : json.at("metrics").items()) trial.metrics[name] = number_of(value);
}

/// A permutation of the grid, so that an unfinished grid covers the whole space.
class GridSampler final : public Sampler {
 public:
  GridSampler(const SearchSpace& space, uint64_t seed) {
    TORCH_CHECK_VALUE(space.grid_count() <= enumerable, "tune: the grid has ", space.grid_count(),
                      " configurations, expected at most ", enumerable, ". Use fewer values, or another sampler.");
    order_ = random_permutation(space.grid_count(), seed);
  }
  Assignment propose(const SearchSpace& space, const std::vector<Trial>& trials, RandomStream&) const override {
    int64_t begun = 0;  // repeated configurations do not advance the grid
    for (const Trial& trial : trials) begun += trial.state != TrialState::interrupted;
    return space.grid_point(order_[static_cast<size_t>(begun) % order_.size()]);
  }

 private:
  std::vector<int64_t> order_;
};

std::unique_ptr<Sampler> sampler_of(const StudyOptions& options) {
  check_sampler(options.sampler);
  if (options.sampler == "grid") return std::make_unique<GridSampler>(options.space, options.seed);
  return options.sampler == "random" ? random_sampler() : tpe_sampler(options.tpe);
}

void check_options(const StudyOptions& options) {
  options.space.check();
  for (const Constraint& constraint : options.constraints) {
    TORCH_CHECK_VALUE(constraint.at_least <= constraint.at_most, "tune: the constraint of ", constraint.metric,
                      " cannot be satisfied, because at_least = ", constraint.at_least,
                      " is greater than at_most = ", constraint.at_most, ".");
  }
}

std::string missing_metric(const StudyOptions& options, const std::map<std::string, double>& metrics) {
  const auto missing = [&](const std::string& name) {
    const auto found = metrics.find(name);
    return found == metrics.end() || !std::isfinite(found->second);
  };
  if (missing(options.objective)) return options.objective;
  for (const Constraint& constraint : options.constraints) {
    if (missing(constraint.metric)) return constraint.metric;
  }
  return "";
}

}  // namespace

void check_sampler(const std::string& name) {
  const std::vector<std::string> known = {"tpe", "random", "grid"};
  TORCH_CHECK_VALUE(std::find(known.begin(), known.end(), name) != known.end(), "tune: unknown sampler \"", name,
                    "\". Expected tpe, random or grid.", did_you_mean(name, known));
}

double Constraint::violation(double value) const {
  const double bound = value < at_least ? at_least : at_most,
               excess = std::max({at_least - value, value - at_most, 0.0});
  return excess > 0 && bound != 0 ? excess / std::abs(bound) : excess;
}

std::string Constraint::text() const {
  const bool low = std::isfinite(at_least), high = std::isfinite(at_most);
  return metric + (low ? c10::str(" at least ", at_least) : "") + (low && high ? " and" : "") +
         (high ? c10::str(" at most ", at_most) : "");
}

namespace {

/// Returns the number of trials in a file that may belong to another search, such as "1 trial".
std::string started_trials(const Journal& journal) {
  const auto count = std::ranges::count_if(journal.entries(), [](const std::string& entry) {
    const Json json = Json::parse(entry, nullptr, /*allow_exceptions=*/false);
    return json.is_object() && json.value("kind", "") == "start";
  });
  return c10::str(count, count == 1 ? " trial" : " trials");
}

}  // namespace

struct Study::Files {
  explicit Files(const std::string& folder) : lock(folder), journal(folder + "/trials.jsonl") {}
  checkpoint::FolderLock lock;
  Journal journal;
};

Study::Study(StudyOptions options, const std::string& folder, bool resume) : options_(std::move(options)) {
  check_options(options_);
  sampler_ = sampler_of(options_);
  if (folder.empty()) return;
  std::error_code failed;
  std::filesystem::create_directories(folder, failed);
  TORCH_CHECK(!failed, "tune: cannot create ", folder, ": ", failed.message(), ".");
  files_ = std::make_unique<Files>(folder);
  const bool started = !files_->journal.entries().empty();
  if (!started) {
    files_->journal.append(json_text(definition(options_)), true);
    return;
  }
  TORCH_CHECK_VALUE(resume, "tune: ", folder, " already contains a search with ", started_trials(files_->journal),
                    ". Resume it (`resume`), or choose another folder.");
  read_entries();
}

Study::~Study() = default;

void Study::read_entries() {
  const std::vector<std::string>& entries = files_->journal.entries();
  const std::string changed = difference(Json::parse(entries.front(), nullptr, false), definition(options_));
  TORCH_CHECK_VALUE(changed.empty(), "tune: the folder contains another search, which differs in its ", changed,
                    ". Choose another folder, or restore the definition of the search.");
  for (size_t i = 1; i < entries.size(); ++i) {
    try {
      apply(entries[i]);
    } catch (const std::exception& error) {
      TORCH_CHECK_VALUE(false, "tune: trials.jsonl, line ", i + 1, ": the entry is invalid: ", user_message(error),
                        ". Restore the file from a copy, or delete this line and all lines after it.");
    }
  }
  for (Trial& trial : trials_) {
    if (trial.state != TrialState::running) continue;
    trial.state = TrialState::interrupted;
    again_.push_back(trial.values);
  }
}

void Study::apply(const std::string& entry) {
  const Json json = Json::parse(entry);
  const auto kind = json.at("kind").get<std::string>();
  const auto number = json.at("trial").get<int64_t>();
  if (kind == "start") {
    Trial trial{.number = number, .values = json.at("values").get<Assignment>()};
    TORCH_CHECK(number == static_cast<int64_t>(trials_.size()), "trial ", trials_.size(), " is missing");
    TORCH_CHECK(trial.values.size() == options_.space.parameters.size(), "trial ", number, " has ", trial.values.size(),
                " values");
    for (Trial& earlier : trials_) {
      if (earlier.state == TrialState::running && earlier.values == trial.values)
        earlier.state = TrialState::interrupted;
    }
    trials_.push_back(std::move(trial));
    return;
  }
  Trial& trial = trials_.at(static_cast<size_t>(number));
  if (kind == "report") {
    trial.reports.push_back({json.at("step").get<int64_t>(), number_of(json.at("value")),
                             json.contains("spent") ? number_of(json["spent"]) : std::nan("")});
  } else {
    apply_end(json, trial);
  }
}

bool Study::is_seen(const Assignment& values) const {
  return std::any_of(trials_.begin(), trials_.end(), [&](const Trial& trial) {
    return trial.state != TrialState::interrupted && trial.values == values;
  });
}

/// A configuration that is neither finished nor running.
std::optional<Assignment> Study::unseen() {
  const uint64_t number = trials_.size();
  for (int64_t attempt = 0; attempt < proposals; ++attempt) {
    RandomStream random(mix_seed(options_.seed, number, static_cast<uint64_t>(attempt)));
    Assignment values = sampler_->propose(options_.space, trials_, random);
    if (!is_seen(values)) return values;
  }
  const bool grid = options_.sampler == "grid";
  const int64_t count = grid ? options_.space.grid_count() : options_.space.count();
  RandomStream random(mix_seed(options_.seed, number, proposals));
  if (count > 0 && count <= enumerable) {
    for (const int64_t index : random_permutation(count, random.next())) {
      Assignment values = options_.space.grid_point(index);
      if (!is_seen(values)) return values;
    }
    return std::nullopt;
  }
  for (int64_t draw = 0; draw < random_draws; ++draw) {
    Assignment values = options_.space.draw(random);
    if (!is_seen(values)) return values;
  }
  return std::nullopt;
}

void Study::begin(Trial trial) {
  if (files_) {
    files_->journal.append(
        json_text(Json{{"kind", "start"}, {"trial", trial.number}, {"values", numbers(trial.values)}}), false);
  }
  trials_.push_back(std::move(trial));
}

std::optional<Trial> Study::ask() {
  std::optional<Assignment> values;
  if (!again_.empty()) {
    values = again_.front();
    again_.erase(again_.begin());
  } else {
    values = unseen();
  }
  if (!values) return std::nullopt;
  begin({.number = static_cast<int64_t>(trials_.size()), .values = *std::move(values)});
  return trials_.back();
}

bool Study::report(int64_t number, const TrialReport& report) {
  Trial& trial = trials_.at(static_cast<size_t>(number));
  if (!trial.reports.empty() && report.step <= trial.reports.back().step) return false;
  if (files_) {
    Json entry{
        {"kind", "report"}, {"trial", number}, {"step", report.step}, {"value", number_or_null<Json>(report.value)}};
    if (std::isfinite(report.spent)) entry["spent"] = report.spent;
    files_->journal.append(json_text(entry), false);
  }
  trial.reports.push_back(report);
  if (!options_.halving) return false;
  const Trial* const best = best_trial(trials_);
  const bool too_late = best && !options_.maximize && report.spent >= best->objective;
  return too_late || should_prune(*options_.halving, trials_, number);
}

void Study::tell(int64_t number, const TrialResult& result) {
  Trial trial = trials_.at(static_cast<size_t>(number));
  trial.metrics = result.metrics, trial.seconds = result.seconds, trial.failure = result.failure;
  const std::string missing = missing_metric(options_, result.metrics);
  if (trial.failure.empty() && !result.pruned && !missing.empty())
    trial.failure = "the trial did not report " + missing;
  trial.state = !trial.failure.empty() ? TrialState::failed : result.pruned ? TrialState::pruned : TrialState::complete;
  const auto objective = result.metrics.find(options_.objective);
  if (objective != result.metrics.end()) trial.objective = options_.maximize ? -objective->second : objective->second;
  for (const Constraint& constraint : options_.constraints) {
    const auto metric = result.metrics.find(constraint.metric);
    if (metric != result.metrics.end() && !std::isnan(metric->second))
      trial.violation += constraint.violation(metric->second);
  }
  if (files_) files_->journal.append(json_text(end_entry(trial)), true);
  trials_[static_cast<size_t>(number)] = std::move(trial);
}

int64_t Study::finished() const {
  return std::count_if(trials_.begin(), trials_.end(), [](const Trial& trial) { return trial.finished(); });
}

}  // namespace bellows::tune
