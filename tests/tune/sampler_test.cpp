#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "bellows/core/seed.h"
#include "bellows/core/stats.h"
#include "bellows/tune/parzen_estimator.h"
#include "bellows/tune/pruner.h"
#include "bellows/tune/sampler.h"
#include "functions.h"

namespace bellows::tune {

namespace {

/// Results of Optuna, from tools/goldens/tune.py.
const nlohmann::json& optuna() {
  static const nlohmann::json goldens =
      nlohmann::json::parse(std::ifstream(BELLOWS_SOURCE_DIR "/tests/goldens/tune/optuna.json"));
  return goldens;
}

/// The best values after the counts of trials.
std::vector<double> bests(const TestFunction& function, uint64_t seed, const std::vector<int64_t>& counts) {
  Study study({.space = function.space, .objective = "value", .maximize = false, .seed = seed}, "", false);
  std::vector<double> result;
  for (const int64_t count : counts) {
    run_trials(study, count - study.finished(), [&](const Assignment& values) {
      return std::map<std::string, double>{{"value", function.value(values)}};
    });
    result.push_back(best_trial(study.trials())->objective);
  }
  return result;
}

std::vector<Trial> golden_trials(const nlohmann::json& golden) {
  std::vector<Trial> trials(golden["trials"].size());
  for (size_t i = 0; i < trials.size(); ++i) {
    trials[i] = {.number = static_cast<int64_t>(i),
                 .values = golden["trials"][i],
                 .state = TrialState::complete,
                 .objective = golden["objectives"][i],
                 .violation = golden["violations"][i]};
  }
  return trials;
}

class TpeGoldens : public ::testing::TestWithParam<size_t> {};

}  // namespace

// The two densities determine the acquisition function of TPE. Differences to Optuna come from the order of sums.
TEST_P(TpeGoldens, SplitAndDensitiesEqualOptunas) {
  const nlohmann::json& golden = optuna()["densities"][GetParam()];
  const std::vector<Trial> trials = golden_trials(golden);
  const TrialSplit split = split_trials(trials);
  std::vector<Assignment> expected_good;
  for (const size_t number : golden["good"]) expected_good.push_back(trials[number].values);
  EXPECT_EQ(split.good, expected_good);
  EXPECT_EQ(split.good.size() + split.others.size(), trials.size());
  const SearchSpace space = mixed_space();
  const ParzenEstimator good(space, split.good), others(space, split.others);
  for (size_t i = 0; i < golden["probes"].size(); ++i) {
    const Assignment probe = golden["probes"][i];
    const double expected_log = golden["log_good"][i], expected_others = golden["log_others"][i];
    EXPECT_NEAR(good.log_density(probe), expected_log, 1e-9 * std::max(1.0, std::abs(expected_log))) << i;
    EXPECT_NEAR(others.log_density(probe), expected_others, 1e-9 * std::max(1.0, std::abs(expected_others))) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Densities, TpeGoldens, ::testing::Values(0, 1));

// The samples of an estimator have its density: the frequency of each choice, and the mean of each kind of number.
TEST(ParzenEstimator, SamplesFollowTheDensity) {
  const SearchSpace space{{choice("optimizer", {"sgd", "adam", "lion"}), integer("layers", 1, 4)}};
  const ParzenEstimator estimator(space, {{0, 2}, {0, 3}, {2, 2}});
  RandomStream random(1);
  std::map<Assignment, int64_t> counts;
  constexpr int64_t draws = 20000;
  for (int64_t i = 0; i < draws; ++i) ++counts[estimator.sample(random)];
  double total = 0;
  for (double optimizer = 0; optimizer < 3; ++optimizer) {
    for (double layers = 1; layers <= 4; ++layers) {
      const double probability = std::exp(estimator.log_density({optimizer, layers}));
      total += probability;
      // Five standard deviations of a binomial distribution.
      const double frequency = static_cast<double>(counts[{optimizer, layers}]) / draws;
      EXPECT_NEAR(frequency, probability, 5 * std::sqrt(probability / draws)) << optimizer << " " << layers;
    }
  }
  EXPECT_NEAR(total, 1, 1e-12);
}

// At equal numbers of trials, the median over 20 seeds is at most as far from the minimum as Optuna's, plus a tolerance
// of a quarter of that distance, because the median over 20 seeds varies by about this much between sets of seeds.
TEST(TpeSampler, IsAsGoodAsOptuna) {
  const std::map<std::string, double> minimum = {{"branin", 0.397887}, {"hartmann6", -3.32237}, {"mixed", 0.0}};
  const std::vector<int64_t> counts = {20, 40, 80};
  for (const TestFunction& function : test_functions()) {
    std::vector<std::vector<double>> by_count(counts.size());
    for (uint64_t seed = 0; seed < 20; ++seed) {
      const std::vector<double> best = bests(function, seed, counts);
      for (size_t i = 0; i < counts.size(); ++i) by_count[i].push_back(best[i] - minimum.at(function.name));
    }
    for (size_t i = 0; i < counts.size(); ++i) {
      const double reference =
          optuna()["functions"][function.name][std::to_string(counts[i])].get<double>() - minimum.at(function.name);
      EXPECT_LE(median(by_count[i]), 1.25 * reference) << function.name << ", " << counts[i] << " trials";
    }
  }
}

TEST(TpeSampler, IsBetterThanRandom) {
  for (const TestFunction& function : test_functions()) {
    std::vector<double> gains;
    for (uint64_t seed = 0; seed < 5; ++seed) {
      Study random(
          {.space = function.space, .objective = "value", .maximize = false, .sampler = "random", .seed = seed}, "",
          false);
      run_trials(random, 60, [&](const Assignment& values) {
        return std::map<std::string, double>{{"value", function.value(values)}};
      });
      gains.push_back(best_trial(random.trials())->objective - bests(function, seed, {60}).front());
    }
    EXPECT_GT(median(gains), 0) << function.name;
  }
}

TEST(Halving, EndsTheSameTrialsAsOptuna) {
  for (const nlohmann::json& golden : optuna()["halving"]) {
    const HalvingOptions options{.first_rung = golden["first_rung"], .factor = golden["factor"]};
    std::vector<Trial> trials;
    std::vector<int64_t> ends;
    for (const nlohmann::json& curve : golden["curves"]) {
      trials.push_back({.number = static_cast<int64_t>(trials.size())});
      int64_t end = 0;
      for (size_t step = 1; step <= curve.size() && end == 0; ++step) {
        const nlohmann::json& value = curve[step - 1];
        trials.back().reports.push_back({static_cast<int64_t>(step), value.is_null() ? NAN : value.get<double>()});
        if (should_prune(options, trials, trials.back().number)) end = static_cast<int64_t>(step);
      }
      ends.push_back(end);
    }
    EXPECT_EQ(ends, golden["ends"].get<std::vector<int64_t>>());
  }
}

// Trials 0 and 1 take ten steps in the time of one step of trials 2 and 3. After one step they are worse, after the
// same time they are better.
TEST(Halving, ComparesTimesAfterTheSameTime) {
  const auto trial = [](int64_t number, double step_s, double last_value) {
    Trial result{.number = number, .state = TrialState::pruned};
    for (int64_t step = 1; step <= 10; ++step) {
      const double value = step == 10 ? last_value : 1.1 - 0.01 * static_cast<double>(step);
      result.reports.push_back({step, value, step_s * static_cast<double>(step)});
    }
    return result;
  };
  std::vector<Trial> trials = {trial(0, 1, 0.2), trial(1, 1, 0.3), trial(2, 10, 0.1), trial(3, 10, 0.1)};
  for (size_t slow : {2, 3}) trials[slow].reports.front().value = 0.4;
  const auto ends = [&](const TrialReport& report) {
    std::vector<Trial> now = trials;
    now.push_back({.number = 4, .reports = {report}});
    return should_prune({.first_rung = 1, .factor = 2}, now, 4);
  };
  EXPECT_TRUE(ends({1, 0.5}));      // without times: 0.4, 0.4 and 1.09 twice
  EXPECT_FALSE(ends({1, 0.5, 1}));  // after 1 s: 1.09 twice
  EXPECT_TRUE(ends({1, 0.5, 10}));  // after 10 s: 0.2, 0.3, 0.4, 0.4
  EXPECT_FALSE(ends({1, 0.25, 10}));
  EXPECT_FALSE(ends({1, 0.5, 0.5}));  // no other trial has reported a value
  EXPECT_TRUE(ends({1, NAN, 0.5}));
}

}  // namespace bellows::tune
