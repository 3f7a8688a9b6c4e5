#include "bellows/tune/batch_size.h"

#include <c10/util/Exception.h>
#include <poll.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "bellows/advice/recipe_profile.h"
#include "bellows/core/stats.h"
#include "bellows/core/text.h"
#include "bellows/inspect/memory.h"
#include "bellows/plan/plan.h"
#include "bellows/report/json_text.h"
#include "bellows/train/data/data_assembly.h"
#include "bellows/train/recipe/rank_keys.h"
#include "bellows/train/resolved_job.h"
#include "bellows/train/step/train_loop.h"
#include "bellows/tune/trial_process.h"

namespace bellows::tune {

namespace {

using train::Recipe;

constexpr double least_gain = 1.05, batch_tolerance = 1.05;
constexpr double least_difference = 0.05;  ///< share of the memory, from which on two trials correct the prediction
constexpr double least_factor = 0.01;
constexpr int64_t most_batch = 1 << 20;
constexpr int64_t untimed_batch_steps = 1, least_timed_steps = 1, most_timed_steps = 10;
constexpr double timed_seconds = 1;

/// The state of a search for the largest and the fastest batch.
class Batches {
 public:
  explicit Batches(const BatchSearchOptions& options) : options_(options), process_bytes_(options.process_bytes) {}

  BatchSearch run() {
    const int64_t first = std::clamp<int64_t>(options_.start, 1, std::max<int64_t>(predicted_largest(), 1));
    for (int64_t batch = first; batch > 0 && !measure(batch); batch /= 2) {
    }
    if (largest() > 0) double_while_faster();
    while (largest() > 0) {
      const int64_t next = candidate();
      if (next <= largest()) break;
      measure(next);
    }
    result_.largest = largest();
    result_.tested_up_to = options_.most;
    double best = 0;
    for (const BatchTrial& trial : result_.trials) best = std::max(best, trial.samples_per_s);
    for (const BatchTrial& trial : result_.trials) {
      const bool fast = trial.fits() && trial.samples_per_s * least_gain >= best;
      if (fast && (result_.fastest == 0 || trial.batch_size < result_.fastest)) result_.fastest = trial.batch_size;
    }
    return result_;
  }

 private:
  bool measure(int64_t batch) {
    const int64_t predicted = predict(batch);
    BatchTrial trial = options_.measure(batch);
    trial.predicted_bytes = predicted;
    if (trial.fits() && trial.peak_bytes > 0) correct(trial);
    result_.trials.push_back(trial);
    return trial.fits();
  }

  int64_t predict(int64_t batch) const {
    return process_bytes_ + std::llround(factor_ * static_cast<double>(options_.predict(batch)));
  }

  /// Corrects the prediction, so that it is exact for this trial. It is also exact for the smallest batch if both steps
  /// differ by so many bytes that other memory does not matter.
  void correct(const BatchTrial& trial) {
    if (!smallest_ || trial.batch_size < smallest_->batch_size) smallest_ = trial;
    const auto step = static_cast<double>(options_.predict(trial.batch_size)),
               more = step - static_cast<double>(options_.predict(smallest_->batch_size));
    if (more >= least_difference * static_cast<double>(options_.memory_bytes))
      factor_ = std::max(static_cast<double>(trial.peak_bytes - smallest_->peak_bytes) / more, least_factor);
    process_bytes_ = trial.peak_bytes - std::llround(factor_ * step);
  }

  void double_while_faster() {
    double before = 0;
    for (;;) {
      const BatchTrial& last = result_.trials.back();
      if (!last.fits() || last.samples_per_s < least_gain * before) return;
      const int64_t next = 2 * last.batch_size;
      if (next >= smallest_too_large() || next > predicted_largest()) return;
      before = last.samples_per_s;
      measure(next);
    }
  }

  /// The next batch to try, or the largest one so far if no other one is worth a trial.
  int64_t candidate() const {
    const int64_t low = largest(), high = smallest_too_large();
    const auto near = static_cast<int64_t>(static_cast<double>(low) * batch_tolerance);
    const int64_t guess = predicted_largest();
    if (high > options_.most) return guess > near || (guess == options_.most && guess > low) ? guess : low;
    if (high <= near + 1) return low;
    const auto less = static_cast<int64_t>(0.85 * static_cast<double>(high));
    const auto mean = std::llround(std::sqrt(static_cast<double>(low) * static_cast<double>(high)));
    const bool first_failure = std::ranges::count_if(result_.trials, [](auto& trial) { return !trial.fits(); }) == 1;
    const int64_t between = first_failure && less > low ? less : mean;
    return std::clamp<int64_t>(guess > near && guess < high ? guess : between, low + 1, high - 1);
  }

  int64_t predicted_largest() const {
    const auto fits = [&](int64_t batch) { return predict(batch) <= options_.memory_bytes; };
    int64_t low = 0, high = 1;
    while (high <= options_.most && fits(high)) low = high, high *= 2;
    high = std::min(high, options_.most + 1);
    while (high - low > 1) {
      const int64_t middle = low + (high - low) / 2;
      (fits(middle) ? low : high) = middle;
    }
    return low;
  }

  int64_t largest() const {
    int64_t largest = 0;
    for (const BatchTrial& trial : result_.trials) largest = std::max(largest, trial.fits() ? trial.batch_size : 0);
    return largest;
  }

  int64_t smallest_too_large() const {
    int64_t smallest = options_.most + 1;
    for (const BatchTrial& trial : result_.trials)
      smallest = std::min(smallest, trial.fits() ? smallest : trial.batch_size);
    return smallest;
  }

  const BatchSearchOptions& options_;
  int64_t process_bytes_;
  double factor_ = 1;
  std::optional<BatchTrial> smallest_;  ///< smallest batch that fits
  BatchSearch result_;
};

struct StopSignal {
  int number = 0;
};

/// Whether a trial failed because it needs more memory than the limit.
bool is_out_of_memory(const std::string& failure) {
  const std::string text = lower_case(failure);
  const auto contains = [&](const char* words) { return text.find(words) != std::string::npos; };
  return contains("memory") || contains("alloc") || contains("killed by signal 9");
}

/// Runs a process with one batch size.
class BatchTrials {
 public:
  BatchTrials(const Recipe& recipe, std::string folder, const std::vector<std::string>& command, int64_t memory_bytes,
              int64_t most)
      : folder_(std::move(folder)), program_{.command = command, .recipe_option = ""} {
    file_.recipe = recipe;
    file_.trial_bytes = memory_bytes;
    file_.study.space.parameters = {{.name = "batch_size",
                                     .kind = Parameter::Kind::integer,
                                     .low = 1,
                                     .high = static_cast<double>(most),
                                     .step = 1}};
  }

  /// Throws: StopSignal if a signal requests a stop
  BatchTrial run(int64_t batch) {
    const std::string folder = folder_ + "/batch-" + std::to_string(batch);
    TrialProcess process(file_, {.values = {static_cast<double>(batch)}}, folder, program_, signals_);
    while (!process.ended()) {
      process.watch();
      if (const int signal = stop_signal(signals_)) throw StopSignal{signal};
      pollfd event{signals_.fd(), POLLIN, 0};
      constexpr int period_ms = 10;  // between two measurements of the memory
      poll(&event, 1, period_ms);
    }
    const TrialResult result = process.result();
    const auto metric = [&](const char* name) {
      const auto found = result.metrics.find(name);
      return found == result.metrics.end() ? 0 : found->second;
    };
    BatchTrial trial{.batch_size = batch,
                     .peak_bytes = static_cast<int64_t>(metric("peak_memory")),
                     .samples_per_s = metric("samples_per_s"),
                     .failure = result.failure};
    if (trial.fits()) {
      TORCH_CHECK(trial.samples_per_s > 0, "tune: the trial with batch_size = ", batch, " reported no throughput.");
      return trial;
    }
    TORCH_CHECK(is_out_of_memory(trial.failure), "tune: the trial with batch_size = ", batch,
                " failed, but not for lack of memory: ", trial.failure, ".");
    trial.samples_per_s = 0;
    return trial;
  }

 private:
  const std::string folder_;
  const TrialProgram program_;
  StudyFile file_;
  const comm::Signals signals_;
};

/// The recipe of a trial: one process, and the same step size from the first step on.
Recipe recipe_of_trials(const Recipe& recipe) {
  return train::without_output(train::with_total_batch(recipe, 1));
}

}  // namespace

BatchSearch search_batch_sizes(const BatchSearchOptions& options) {
  return Batches(options).run();
}

BatchSearch search_batch_sizes(const Recipe& recipe, const std::string& folder, const std::vector<std::string>& command,
                               int64_t memory_bytes, const std::function<void(const BatchTrial&)>& on_trial) {
  TORCH_CHECK_VALUE(recipe.device == "cpu",
                    "tune: the search for a batch size measures the memory of a process, so it "
                    "needs device: cpu, got ",
                    recipe.device, ".");
  const Recipe base = recipe_of_trials(recipe);
  const int64_t process_bytes = inspect::memory_stats().rss_bytes;
  const int64_t samples = base.data.empty() ? most_batch : train::train_part(train::resolve(base)).size();
  const int64_t most = std::max<int64_t>(1, samples / base.gradient_accumulation_steps);
  const train::MemoryPlan plan = train::plan_memory(base, {.batch = std::min(base.batch_size, most)});
  const auto predict = [&](int64_t batch) {
    const double waiting = static_cast<double>(plan.waiting) / static_cast<double>(plan.size.batch);
    return plan.model.at({batch, plan.size.length}).peak().bytes +
           static_cast<int64_t>(waiting * static_cast<double>(batch));
  };
  BatchTrials trials(base, folder, command, memory_bytes, most);
  BatchSearch partial;  // if a signal stops the search
  const auto measure = [&](int64_t batch) {
    const BatchTrial trial = trials.run(batch);
    partial.trials.push_back(trial);
    if (on_trial) on_trial(trial);
    return trial;
  };
  try {
    return search_batch_sizes({.start = base.batch_size,
                               .most = most,
                               .memory_bytes = memory_bytes,
                               .process_bytes = process_bytes,
                               .predict = predict,
                               .measure = measure});
  } catch (const StopSignal& stop) {
    partial.signal = stop.number;
    return partial;
  }
}

namespace {

/// Takes steps with `step`, which returns their seconds, and returns the median time of a step.
double seconds_of_steps(const std::function<double()>& step) {
  for (int64_t i = 0; i < untimed_batch_steps; ++i) step();
  std::vector<double> seconds;
  seconds.reserve(most_timed_steps);
  double sum = 0;
  for (int64_t i = 0; i < most_timed_steps && (i < least_timed_steps || sum < timed_seconds); ++i)
    sum += seconds.emplace_back(step());
  return median(seconds);
}

}  // namespace

std::string measured_batch_json(const Recipe& recipe) {
  double seconds = 0;
  int64_t batches = recipe.gradient_accumulation_steps;
  if (recipe.data.empty()) {
    batches = std::min<int64_t>(batches, 2);  // see DryRun
    train::DryRun run(recipe);
    seconds = seconds_of_steps([&] {
      run.measure({.batch = recipe.batch_size}, 1);
      return run.seconds();
    });
  } else {
    train::TrainLoop loop(train::make_job(recipe));
    train::settle(loop);
    seconds = seconds_of_steps([&] {
      const auto begin = std::chrono::steady_clock::now();
      loop.run_steps(1);
      return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    });
  }
  const auto samples = static_cast<double>(recipe.batch_size * batches);
  return json_text(nlohmann::ordered_json{{"metrics", {{"samples_per_s", samples / seconds}}}});
}

}  // namespace bellows::tune
