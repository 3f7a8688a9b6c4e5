#pragma once

#include <algorithm>
#include <functional>
#include <utility>

#include "bellows/core/seed.h"
#include "bellows/ladder/ladder.h"
#include "bellows/train/recipe/recipe.h"

namespace bellows::train {

/// A world in which the speed and the learning of every recipe are known and time passes only when somebody trains.
struct LadderWorld {
  double clock_s = 0;
  double noise = 0.01;
  int64_t live_bytes = 0, peak = 0;
  int64_t evaluation_factor = 10;  ///< what an evaluation holds, over what training does
  bool compiles_for_ever = false;
  int64_t bytes_later = 0;  ///< more of them once a job has taken ten steps
  RandomStream random{7};
  std::vector<double> evaluations;
  std::function<double(const Recipe*)> ms_per_sample = [](const Recipe*) { return 1.0; };
  std::function<double(const Recipe*)> epochs_needed = [](const Recipe*) { return 4.0; };
  std::function<int64_t(const Recipe*)> bytes = [](const Recipe*) { return int64_t{1000}; };
};

class FakeLadderJob final : public LadderJob {
 public:
  FakeLadderJob(LadderWorld& world, const Recipe* recipe)
      : world_(world), recipe_(recipe ? *recipe : Recipe{}), plain_(!recipe) {
    world_.live_bytes += world_.bytes(which());
  }
  ~FakeLadderJob() override { world_.live_bytes -= world_.bytes(which()); }

  int64_t run_steps(int64_t n) override {
    world_.peak = std::max(world_.peak, world_.live_bytes + (step_ + n > 10 ? world_.bytes_later : 0));
    int64_t samples = 0;
    for (int64_t i = 0; i < n; ++i, ++step_) {
      const bool last = step_ % steps_per_epoch() == steps_per_epoch() - 1;
      samples += last ? samples_per_epoch() - (steps_per_epoch() - 1) * recipe_.batch_size : recipe_.batch_size;
    }
    const double jitter = 1 + world_.noise * (world_.random.uniform() - 0.5);
    world_.clock_s += 1e-3 * static_cast<double>(samples) * world_.ms_per_sample(which()) * jitter;
    return samples;
  }
  bool settle() override {
    if (world_.compiles_for_ever) run_steps(1);
    return !world_.compiles_for_ever;
  }
  int64_t steps_per_epoch() const override {
    return (samples_per_epoch() + recipe_.batch_size - 1) / recipe_.batch_size;
  }
  int64_t samples_per_epoch() const override { return 1000; }
  double evaluate() override {
    world_.clock_s += 100;  // must not be counted
    world_.peak = std::max(world_.peak, world_.evaluation_factor * world_.live_bytes);
    const double needed = world_.epochs_needed(which()) * static_cast<double>(steps_per_epoch());
    return std::min(0.98, 0.9 + 0.07 * static_cast<double>(step_) / needed + 1e-9);
  }
  int64_t take_peak_bytes() override { return std::exchange(world_.peak, world_.live_bytes); }
  StepShares phases() override {
    const auto steps = static_cast<double>(step_);
    return {.load_ms = 1 * steps, .forward_ms = 2 * steps, .backward_ms = 3 * steps, .optimizer_ms = 0.5 * steps};
  }
  std::string bottleneck() override { return plain_ ? "" : "reads wait for <the disk>"; }

 private:
  const Recipe* which() const { return plain_ ? nullptr : &recipe_; }

  LadderWorld& world_;
  Recipe recipe_;
  bool plain_;
  int64_t step_ = 0;
};

class FakeLadderJobs final : public LadderJobs {
 public:
  explicit FakeLadderJobs(LadderWorld& world) : world_(world) {}
  std::unique_ptr<LadderJob> plain(uint64_t) override { return std::make_unique<FakeLadderJob>(world_, nullptr); }
  std::unique_ptr<LadderJob> with(const Recipe& recipe, uint64_t) override {
    return std::make_unique<FakeLadderJob>(world_, &recipe);
  }

 private:
  LadderWorld& world_;
};

inline Technique rung_that(std::string name, std::function<void(Recipe&)> apply,
                           Exactness exactness = Exactness::exact) {
  return {.name = name, .title = name, .apply = std::move(apply), .exactness = exactness};
}

inline Technique sets_channels_last() {
  return rung_that("channels_last", [](Recipe& recipe) { recipe.channels_last = true; });
}

inline Technique sets_bf16() {
  return rung_that(
      "bf16", [](Recipe& recipe) { recipe.precision = "bf16"; }, Exactness::lossy);
}

inline Technique doubles_batch() {
  Technique technique = rung_that(
      "larger_batch",
      [](Recipe& recipe) {
        recipe.batch_size *= 2;
        recipe.lr *= 2;
      },
      Exactness::lossy);
  technique.equal_batch = false;
  return technique;
}

inline bool is_bf16(const Recipe* recipe) {
  return recipe && recipe->precision == "bf16";
}

inline LadderReport climb(LadderWorld& world, const std::vector<Technique>& techniques, LadderOptions options = {},
                          std::function<bool()> stop = {},
                          const std::function<void(const LadderEvent&)>& on_event = {}) {
  FakeLadderJobs jobs(world);
  Recipe base;
  base.batch_size = 32;
  LadderInstruments instruments;
  instruments.seconds = [&world] { return world.clock_s; };
  instruments.stop = std::move(stop);
  return run_ladder(base, techniques, jobs, options, instruments, on_event);
}

}  // namespace bellows::train
