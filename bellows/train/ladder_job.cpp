#include "bellows/train/ladder_job.h"

#include <algorithm>
#include <utility>

#include "bellows/inspect/memory.h"
#include "bellows/tap/allocator.h"
#include "bellows/train/train_loop.h"

namespace bellows::train {

namespace {

class RecipeLadderJob final : public LadderJob {
 public:
  /// From the first tensor on, all are counted.
  explicit RecipeLadderJob(const Recipe& recipe)
      : device_(recipe.device), before_(inspect::memory_stats(device_).current_bytes), loop_(make_job(recipe)) {
    inspect::reset_peak(device_);
    TORCH_CHECK_VALUE(loop_.job().eval,
                      "ladder: expected held-out data to measure the accuracy on, and there is none "
                      "beside the files ",
                      recipe.data, ". Name a folder, of which a part is held out, or eval_data.");
  }

  int64_t run_steps(int64_t n) override {
    const int64_t before = loop_.sample_count();
    loop_.run_steps(n);
    loop_.take_losses();  // waits for the device, and notices a run that has blown up
    return loop_.sample_count() - before;
  }

  int64_t steps_per_epoch() const override { return loop_.steps_per_epoch(); }

  int64_t samples_per_epoch() const override {
    const data::LoaderOptions& options = loop_.job().train.loader_options();
    return options.remainder == data::Remainder::drop ? steps_per_epoch() * options.batch_size
                                                      : loop_.job().train.size();
  }

  double evaluate() override { return loop_.evaluate().accuracy; }
  /// Of the device, above what was there before.
  int64_t take_peak_bytes() override {
    const int64_t peak = inspect::memory_stats(device_).peak_bytes;
    inspect::reset_peak(device_);
    return std::max<int64_t>(0, peak - before_);
  }

  StepShares phases() override {
    const PhaseSeconds& seconds = loop_.phase_seconds();
    return {.load_ms = 1e3 * seconds.load,
            .forward_ms = 1e3 * seconds.forward,
            .backward_ms = 1e3 * seconds.backward,
            .optimizer_ms = 1e3 * seconds.update};
  }

  std::string bottleneck() override { return loop_.loader_report().bottleneck(); }

 private:
  const c10::Device device_;
  const int64_t before_;
  TrainLoop loop_;
};

}  // namespace

Recipe without_techniques(Recipe recipe) {
  recipe.precision = "fp32";
  recipe.precision_level = "O1";
  if (recipe.train_metrics == "device") recipe.train_metrics = "sync";
  recipe.channels_last = false;
  recipe.optimizer_impl = "loop";
  recipe.optimizer_state = "auto";
  recipe.loader_threads = 0;
  recipe.cache_mb = 0;
  recipe.length_buckets = false;
  recipe.keep_freed_memory = false;
  recipe.recompute = "none";
  recipe.recompute_keep = 0;
  recipe.recompute_keep_mb = 0;
  recipe.activations = "full";
  recipe.offload_folder.clear();
  recipe.batch_size_start = recipe.image_size_start = 0;
  recipe.growth_epochs = 0;
  recipe.run_folder.clear();
  return recipe;
}

Recipe at_full_size(Recipe recipe) {
  recipe.batch_size_start = recipe.image_size_start = 0;
  recipe.growth_epochs = 0;
  recipe.run_folder.clear();
  recipe.sample_stats = false;
  return recipe;
}

std::unique_ptr<LadderJob> make_ladder_job(Recipe recipe, uint64_t seed) {
  recipe.seed = static_cast<int64_t>(seed);
  return std::make_unique<RecipeLadderJob>(recipe);
}

int64_t take_cpu_peak_bytes() {
  tap::install_cpu_allocator();
  const int64_t peak = tap::cpu_allocation_counters().peak_bytes;
  tap::reset_cpu_allocation_peak();
  return peak;
}

}  // namespace bellows::train
