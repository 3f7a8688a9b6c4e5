#include "bellows/ladder/job.h"

#include <ATen/ops/scalar_tensor.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>
#include <vector>

#include "bellows/comm/collectives.h"
#include "bellows/data/text/text_source.h"
#include "bellows/inspect/memory.h"
#include "bellows/models/registry.h"
#include "bellows/tap/allocator.h"
#include "bellows/train/recipe/rank_keys.h"
#include "bellows/train/step/train_loop.h"

namespace bellows::train {

namespace {

/// Returns the text with the most tokens among those whose text or token list has the most bytes. Only these are
/// tokenized.
int64_t longest_text_of(const data::TextSource& texts) {
  std::vector<std::pair<size_t, int64_t>> by_bytes;
  by_bytes.reserve(static_cast<size_t>(texts.size()));
  data::Sample sample;
  const auto try_sample = [&](const data::Source& source, int64_t i, const auto& use) {
    try {
      source.read(i, sample);
      use();
    } catch (const c10::ValueError&) {  // reported by the code that reads it for training
    }
  };
  for (int64_t i = 0; i < texts.size(); ++i)
    try_sample(*texts.origin(), i, [&] {
      const data::Field* text = sample.find(texts.options().field);
      if (text) by_bytes.emplace_back(text->bytes.size(), i);
    });
  const size_t tried = std::min<size_t>(by_bytes.size(), 64);
  std::ranges::partial_sort(by_bytes, by_bytes.begin() + static_cast<std::ptrdiff_t>(tried), std::greater<>());
  by_bytes.resize(tried);
  std::pair<int64_t, int64_t> longest(0, 0);
  for (const auto& [bytes, position] : by_bytes) {
    const int64_t at = position;
    try_sample(texts, at, [&] { longest = std::max(longest, {sample.find("tokens")->sizes[0], at}); });
  }
  return longest.second;
}

/// The first of the series with the most steps.
int64_t longest_series_of(const data::Source& source) {
  std::pair<int64_t, int64_t> longest(0, 0);
  data::Sample sample;
  for (int64_t i = 0; i < source.size(); ++i) {
    try {
      source.read(i, sample);
    } catch (const c10::ValueError&) {  // reported by the code that reads it for training
      continue;
    }
    const data::Field* series = sample.find("series");
    const int64_t steps = series && !series->sizes.empty() ? series->sizes[0] : 0;
    if (steps > longest.first) longest = {steps, i};
  }
  return longest.second;
}

/// An order whose epochs start with a given sample.
class BeginningWith final : public data::Order {
 public:
  BeginningWith(data::OrderPtr order, int64_t first) : order_(std::move(order)), first_(first) {}

  int64_t length(const data::Source& source, int64_t epoch) const override { return order_->length(source, epoch); }
  data::Positions positions(const data::Source& source, uint64_t seed, int64_t epoch) const override {
    data::Positions positions = order_->positions(source, seed, epoch);
    int64_t at = 0;
    while (at < positions.size() && positions[at] != first_) ++at;
    if (at > 0 && at < positions.size()) positions.swap(0, at);
    return positions;
  }
  bool repeats() const override { return order_->repeats(); }

 private:
  data::OrderPtr order_;
  int64_t first_;
};

/// Puts the longest sample of all into the first batch, because batches of texts and series are padded to their longest
/// sample. So a few batches have the same peak as a whole training.
Job largest_batch_first(Job job) {
  const auto* texts = dynamic_cast<const data::TextSource*>(job.train.source().get());
  const bool series = job.input == models::InputKind::series;
  const data::LoaderOptions& options = job.train.loader_options();
  if (!options.order || !(texts || series)) return job;
  const int64_t longest = texts ? longest_text_of(*texts) : longest_series_of(*job.train.source());
  job.train = job.train.order(std::make_shared<BeginningWith>(options.order, longest), options.seed);
  return job;
}

Job with_ranks(Job job, const std::optional<comm::Group>& ranks) {
  if (ranks) job.ranks = ranks;
  return job;
}

class RecipeLadderJob final : public LadderJob {
 public:
  /// Records the memory before it creates the first tensor.
  RecipeLadderJob(const Recipe& recipe, const std::optional<comm::Group>& ranks)
      : device_(recipe.device),
        before_(inspect::memory_stats(device_).current_bytes),
        loop_(with_ranks(largest_batch_first(make_job(with_total_batch(recipe, ranks ? ranks->size() : 1))), ranks)) {
    inspect::reset_peak(device_);
    TORCH_CHECK_VALUE(loop_.job().task.has_accuracy(), "ladder: a model with loss = ", recipe.loss,
                      " has no accuracy that the ladder can compare. Use a classification model or a language model.");
    TORCH_CHECK_VALUE(
        loop_.job().eval,
        "ladder: there is no held-out data to measure the accuracy, because the dataset is a file or a list of files (",
        recipe.data, "). Use a folder, set `eval_split` to a share such as 0.1, or set `eval_data`.");
  }

  int64_t run_steps(int64_t n) override {
    const int64_t before = loop_.sample_count();
    loop_.run_steps(n);
    loop_.take_losses();  // waits for the device, and throws if the loss is not finite
    return loop_.sample_count() - before;
  }

  bool settle() override {
    if (!all_compiled()) run_steps(1);
    return all_compiled();
  }

  int64_t steps_per_epoch() const override { return loop_.steps_per_epoch(); }

  int64_t samples_per_epoch() const override {
    const data::LoaderOptions& options = loop_.job().train.loader_options();
    return options.remainder == data::Remainder::drop ? steps_per_epoch() * options.batch_size
                                                      : loop_.job().train.size();
  }

  double evaluate() override { return loop_.evaluate().accuracy; }
  /// The peak of the device, above the memory used before the job was created.
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

  int64_t sent_bytes() override {
    const comm::Group* group = loop_.ranks().group();
    if (group && !loop_.job().recipe.mesh.empty()) return -1;  // the groups of a mesh have their own counters
    if (group) return sent_by_ring(*group);
    if (!loop_.replicas().on()) return -1;
    const parallel::ReplicaTraffic traffic = loop_.replicas().exchanged();
    return traffic.weights + traffic.buffers + traffic.gradients;
  }

 private:
  /// Whether all ranks have compiled their code. A step needs all ranks, so they must agree.
  bool all_compiled() {
    const comm::Group* group = loop_.ranks().group();
    const bool compiled = loop_.is_compiled();
    if (!group) return compiled;
    return comm::all_reduce(at::scalar_tensor(compiled ? 1 : 0), *group, comm::Reduce::min).item<double>() > 0;
  }

  const c10::Device device_;
  const int64_t before_;
  TrainLoop loop_;
};

}  // namespace

Recipe without_techniques(Recipe recipe) {
  recipe.precision = "fp32";
  recipe.amp_level = "O1";
  if (recipe.train_metrics == "device") recipe.train_metrics = "sync";
  recipe.channels_last = false;
  recipe.optimizer_impl = "loop";
  recipe.optimizer_state = "auto";
  recipe.num_workers = 0;
  recipe.image_cache_mb = 0;
  recipe.length_buckets = false;
  recipe.allocator_reuse = false;
  recipe.fast_random = false;
  recipe.compile = "none";
  recipe.memory_budget = 1;
  recipe.optimizer_in_backward = false;
  recipe.recompute = "none";
  recipe.activation_memory_budget = 0;
  recipe.activation_memory_budget_mb = 0;
  recipe.activation_dtype = "full";
  recipe.offload_folder.clear();
  recipe.offload_reserve_mb = 0;
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

std::unique_ptr<LadderJob> make_ladder_job(Recipe recipe, uint64_t seed, const std::optional<comm::Group>& ranks) {
  recipe.seed = static_cast<int64_t>(seed);
  return std::make_unique<RecipeLadderJob>(recipe, ranks);
}

int64_t sent_by_ring(const comm::Group& group) {
  const double ranks = group.size();
  double bytes = 0;
  for (const auto& [name, traffic] : comm::traffic(group)) {
    const auto own = static_cast<double>(traffic.bytes);
    if (name == "all_reduce") bytes += 2 * (ranks - 1) / ranks * own;
    if (name == "reduce_scatter") bytes += (ranks - 1) / ranks * own;
    if (name == "all_gather") bytes += (ranks - 1) * own;
    if (name == "broadcast") bytes += own;
  }
  return std::llround(bytes);
}

int64_t take_cpu_peak_bytes() {
  tap::install_cpu_allocator();
  const int64_t peak = tap::cpu_allocation_counters().peak_bytes;
  tap::reset_cpu_allocation_peak();
  return peak;
}

}  // namespace bellows::train
