#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cmath>

#include "bellows/advice/rules.h"
#include "bellows/core/stats.h"
#include "bellows/techniques/technique.h"

namespace bellows::train {

namespace {

using inspect::Limit;
using inspect::loading_phase;
using inspect::optimizer_phase;

double seconds_of(const RecipeProfile& profile, Limit limit) {
  return profile.step.seconds_by_limit()[static_cast<size_t>(limit)];
}

double time_factor(const char* technique) {
  return technique_table().at(technique).expected.time_factor;
}

/// The time of a step if `workers` threads load its data. Threads that compute share the cores with the step.
double overlapped_seconds(const RecipeProfile& profile, double loading, double workers) {
  const double rest = profile.step.step_s - loading;
  return std::max(rest + loading * profile.loader.cpu_share / workers, loading / workers);
}

/// A recipe setting for the change that the loader's report recommends; empty if there is none.
std::vector<std::string> loader_settings(const RecipeProfile& profile, data::Remedy remedy) {
  const Recipe& recipe = profile.recipe;
  if (remedy == data::Remedy::more_threads && recipe.num_workers >= 0) return {"num_workers=-1"};
  if (remedy == data::Remedy::bigger_prefetch)
    return {c10::str("prefetch=", std::min<int64_t>(4 * std::max<int64_t>(recipe.prefetch, 1), 1024))};
  if (remedy != data::Remedy::cache_decoded) return {};
  const double bytes = profile.loader.picture_bytes * static_cast<double>(profile.loader.source_samples);
  return {c10::str("image_cache_mb=", static_cast<int64_t>(std::ceil(1.1 * bytes / (1 << 20))))};
}

std::optional<Finding> slow_loader(const RecipeProfile& profile) {
  const double loading = profile.step.phase_seconds(loading_phase);
  if (loading < 0.1 * profile.step.step_s) return std::nullopt;
  const std::string waits = c10::str("A step waits ", format_seconds(loading), " for data, ",
                                     percent_of(loading, profile.step.step_s), " of its time.");
  if (profile.recipe.num_workers == 0) {
    const double workers = static_cast<double>(std::max<int64_t>(profile.machine.usable_threads(), 2));
    return Finding{.text = waits + " Batches are loaded between steps. Worker threads can load them during steps.",
                   .settings = {"num_workers=-1", c10::str("prefetch=", std::max<int64_t>(profile.recipe.prefetch, 4))},
                   .gain = profile.step.step_s / overlapped_seconds(profile, loading, workers)};
  }
  const data::Advice advice = profile.loader.advice();
  if (advice.remedy == data::Remedy::none) return std::nullopt;
  return Finding{.text = waits + " " + advice.sentence,
                 .settings = loader_settings(profile, advice.remedy),
                 .gain = advice.gain > 1 ? std::min(advice.gain, gain_without(profile, loading)) : 0};
}

std::optional<Finding> small_batch(const RecipeProfile& profile) {
  const double host = seconds_of(profile, Limit::host), step = profile.step.step_s;
  // Compiled code and replicas in threads are not observed, so their time looks like host overhead.
  const bool observed = profile.recipe.compile == "none" && profile.recipe.data_parallel != "dp";
  if (host < 0.3 * step || !observed) return std::nullopt;
  constexpr int64_t factor = 4;
  const double longer = host + static_cast<double>(factor) * (step - host);
  return Finding{.text = c10::str("Calls of operators and code between them take ", percent_of(host, step),
                                  " of the step, mostly independently of the batch of ", profile.recipe.batch_size,
                                  profile.recipe.batch_size == 1 ? " sample." : " samples.",
                                  " Larger batches divide this time among more samples. Tune the learning rate again."),
                 .settings = {c10::str("batch_size=", factor * profile.recipe.batch_size)},
                 .gain = static_cast<double>(factor) * step / longer};
}

std::optional<Finding> contiguous_convolutions(const RecipeProfile& profile) {
  const inspect::ConvolutionUse& use = profile.step.convolutions;
  if (profile.recipe.channels_last || use.contiguous_seconds < 0.1 * profile.step.step_s) return std::nullopt;
  return Finding{
      .text = c10::str(std::lround(use.contiguous_calls), " convolutions per step read contiguous images and take ",
                       format_seconds(use.contiguous_seconds), ", ",
                       percent_of(use.contiguous_seconds, profile.step.step_s),
                       " of the step. In channels-last, their kernels reorder nothing."),
      .settings = {"channels_last=true"},
      .gain = gain_without(profile, (1 - time_factor("channels_last")) * use.contiguous_seconds)};
}

std::optional<Finding> unfused_optimizer(const RecipeProfile& profile) {
  const double seconds = profile.step.phase_seconds(optimizer_phase);
  double calls = 0;
  for (const inspect::ProfiledOp& op : profile.step.ops) calls += op.phase == optimizer_phase ? op.calls : 0;
  const bool unfused = profile.recipe.optimizer_impl == "loop" || profile.recipe.optimizer_impl == "foreach";
  if (!unfused || seconds < 0.05 * profile.step.step_s) return std::nullopt;
  return Finding{.text = c10::str("The optimizer calls ", std::lround(calls), " operators for ", profile.parameters,
                                  " parameters and takes ", format_seconds(seconds), ", ",
                                  percent_of(seconds, profile.step.step_s),
                                  " of the step. A fused update reads and writes each number once."),
                 .settings = {"optimizer_impl=fused"},
                 .gain = gain_without(profile, 0.5 * seconds)};
}

std::optional<Finding> needless_recomputation(const RecipeProfile& profile) {
  const inspect::Recomputation& again = profile.step.recomputation;
  if (profile.recipe.recompute == "none" || again.calls == 0 || !profile.step.memory) return std::nullopt;
  const double peak = static_cast<double>(profile.step.memory->peak().bytes);
  const double more = again.bytes, free = static_cast<double>(profile.machine.memory_available_bytes);
  if (more > 0.5 * free) return std::nullopt;
  return Finding{.text = c10::str("Backward repeats ", std::lround(again.calls), " operators in ",
                                  format_seconds(again.seconds), ", ", percent_of(again.seconds, profile.step.step_s),
                                  " of the step. Without recomputation, the peak of ", format_bytes(peak),
                                  " grows by at most ", format_bytes(more), ", and ", format_bytes(free), " are free."),
                 .settings = {"recompute=none"},
                 .gain = gain_without(profile, again.seconds)};
}

std::optional<Finding> fp32_matmuls(const RecipeProfile& profile) {
  const inspect::MachinePeaks& peaks = profile.step.peaks;
  double seconds = 0;
  for (const inspect::ProfiledOp& op : profile.step.ops)
    seconds += op.dtype == c10::ScalarType::Float && op.limit(peaks) == Limit::compute ? op.seconds : 0;
  seconds = std::min(seconds, profile.step.step_s);
  if (profile.recipe.precision != "fp32" || peaks.bf16_flops < 1.5 * peaks.fp32_flops ||
      seconds < 0.2 * profile.step.step_s)
    return std::nullopt;
  // Casts take a part of what faster matmuls save.
  const double saved = std::min(seconds * (1 - peaks.fp32_flops / peaks.bf16_flops),
                                (1 - time_factor("bf16_autocast")) * profile.step.step_s);
  return Finding{
      .text = c10::str("Matmuls and convolutions in fp32 take ", format_seconds(seconds), ", ",
                       percent_of(seconds, profile.step.step_s), " of the step. In bf16, this machine computes ",
                       percent_of(peaks.bf16_flops, peaks.fp32_flops), " of the operations per second."),
      .settings = {"precision=bf16"},
      .gain = gain_without(profile, saved)};
}

std::optional<Finding> swapping(const RecipeProfile& profile) {
  // The loader reads mapped files, whose first reads are page faults, too.
  const double batches = std::max<double>(1, static_cast<double>(profile.loader.batches));
  const double of_loader = static_cast<double>(profile.loader.major_faults) / batches *
                           static_cast<double>(profile.recipe.gradient_accumulation_steps);
  const double faults = profile.step.major_faults - of_loader;
  if (faults < 1 || profile.recipe.batch_size < 2) return std::nullopt;
  return Finding{
      .text = c10::str("A step reads ", std::lround(faults),
                       " pages of memory from a disk. The process needs more memory than the machine has. Smaller "
                       "batches with gradient accumulation need less."),
      .settings = {c10::str("batch_size=", std::max<int64_t>(profile.recipe.batch_size / 2, 1)),
                   c10::str("gradient_accumulation_steps=", 2 * profile.recipe.gradient_accumulation_steps)}};
}

std::optional<Finding> page_faults(const RecipeProfile& profile) {
  constexpr double fault_s = 0.25e-6;
  const double seconds = fault_s * profile.step.minor_faults;
  if (profile.recipe.allocator_reuse || seconds < 0.02 * profile.step.step_s) return std::nullopt;
  return Finding{.text = c10::str("Each step gets ", std::lround(profile.step.minor_faults),
                                  " pages of memory from the system and returns them, which takes about ",
                                  format_seconds(seconds), "."),
                 .settings = {"allocator_reuse=true"},
                 .gain = gain_without(profile, seconds)};
}

}  // namespace

std::vector<FindingRule> speed_rules() {
  return {
      {"slow_loader", "The step waits for data", slow_loader},
      {"small_batch", "The batch is too small", small_batch},
      {"contiguous_convolutions", "Convolutions read contiguous images", contiguous_convolutions},
      {"unfused_optimizer", "The optimizer is not fused", unfused_optimizer},
      {"needless_recomputation", "Recomputation is not needed", needless_recomputation},
      {"fp32_matmuls", "bf16 would be faster", fp32_matmuls},
      {"swapping", "The process swaps", swapping},
      {"page_faults", "Memory returns to the system in each step", page_faults},
  };
}

}  // namespace bellows::train
