#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "bellows/advice/rules.h"
#include "bellows/core/stats.h"

namespace bellows::train {

namespace {

constexpr size_t most_places = 5;
/// Statistics of fewer samples are so noisy that accuracy suffers (arXiv:1803.08494, figure 1).
constexpr int64_t least_norm_batch = 8;

void add_place(std::vector<std::string>& places, std::string place) {
  const bool known = std::ranges::find(places, place) != places.end();
  if (!place.empty() && !known && places.size() < most_places) places.push_back(std::move(place));
}

std::optional<Finding> synchronizations(const RecipeProfile& profile) {
  const bool metrics = profile.recipe.train_metrics == "sync";
  int64_t calls = 0;
  std::vector<std::string> places;
  for (const inspect::SyncEvent& event : profile.step.syncs) {
    if (event.site.empty() && !metrics) continue;  // the training loop reads losses only on a CPU, where nothing waits
    calls += event.count;
    add_place(places, c10::str(event.op, " ", event.reason, event.site.empty() ? "" : " at ", event.site));
  }
  if (calls == 0) return std::nullopt;
  std::vector<std::string> settings;
  if (metrics) settings = {"train_metrics=device"};
  return Finding{
      .text = c10::str("The host reads results of the device ", calls, calls == 1 ? " time" : " times",
                       " per step. On an accelerator, each time waits for all operators before it. Read values "
                       "after several steps, or keep them on the device."),
      .places = std::move(places),
      .settings = std::move(settings)};
}

std::optional<Finding> copies(const RecipeProfile& profile, bool images, double least_share,
                              const std::string& advice) {
  double seconds = 0, bytes = 0, calls = 0;
  std::vector<std::string> places;
  for (const inspect::ReorderingCopy& copy : profile.step.copies) {
    if (copy.images != images) continue;
    seconds += copy.seconds, bytes += copy.bytes, calls += copy.calls;
    add_place(places,
              copy.op + " of " + copy.sizes + (copy.site.empty() ? ", module " + copy.module : " at " + copy.site));
  }
  if (calls == 0 || seconds < least_share * profile.step.step_s) return std::nullopt;
  return Finding{.text = c10::str(std::lround(calls), " copies per step move ", format_bytes(bytes), " in ",
                                  format_seconds(seconds), ", ", percent_of(seconds, profile.step.step_s),
                                  " of the step, only to change the order of elements. ", advice),
                 .places = std::move(places),
                 .gain = gain_without(profile, seconds)};
}

std::optional<Finding> copies_after_permute(const RecipeProfile& profile) {
  return copies(
      profile, false, 0.02,
      "Most operators read permuted tensors directly: remove contiguous(), or store the data in the other order.");
}

std::optional<Finding> layout_conversions(const RecipeProfile& profile) {
  return copies(profile, true, 0.02, "Use one layout for all images and filters.");
}

std::optional<Finding> odd_sizes(const RecipeProfile& profile) {
  double odd = 0, all = 0;
  std::vector<std::string> places;
  for (const inspect::OddSizes& sizes : profile.step.odd_sizes) {
    odd += sizes.flops;
    add_place(places, sizes.op + " of " + sizes.sizes + (sizes.module.empty() ? "" : ", module " + sizes.module));
  }
  for (const inspect::ProfiledOp& op : profile.step.ops) all += op.flops;
  if (odd < 0.1 * all || all == 0) return std::nullopt;
  std::vector<std::string> settings;
  const int64_t batch = profile.recipe.batch_size;
  const bool of_batch = std::ranges::any_of(  // those of convolutions are sizes of filters
      profile.step.odd_sizes, [](const auto& sizes) { return sizes.op.find("conv") == std::string::npos; });
  if (of_batch && batch % 8 != 0 && batch > 8) settings = {c10::str("batch_size=", (batch + 7) / 8 * 8)};
  return Finding{.text = c10::str("Operators with sizes that are not multiples of 8 compute ", percent_of(odd, all),
                                  " of the FLOPs. Kernels for matrix units, such as bf16 kernels, are slower "
                                  "with such sizes."),
                 .places = std::move(places),
                 .settings = std::move(settings)};
}

std::optional<Finding> small_norm_batch(const RecipeProfile& profile) {
  int64_t samples = least_norm_batch;
  std::vector<std::string> places;
  for (const inspect::BatchNormUse& norm : profile.step.batch_norms) {
    samples = std::min(samples, norm.samples);
    if (norm.samples < least_norm_batch) add_place(places, norm.module);
  }
  if (samples >= least_norm_batch) return std::nullopt;
  std::vector<std::string> settings;
  if (profile.recipe.batch_size < 16) settings = {"batch_size=16"};
  return Finding{
      .text = c10::str("Batch norms compute their statistics from ", samples, samples == 1 ? " sample" : " samples",
                       ". Below ", least_norm_batch,
                       " samples, accuracy suffers. Gradient accumulation does not help, because each batch is "
                       "normalized alone. Use larger batches, sync_batch_norm on several ranks, or group norm."),
      .places = std::move(places),
      .settings = std::move(settings)};
}

}  // namespace

std::vector<FindingRule> code_rules() {
  return {
      {"synchronizations", "The host waits for the device", synchronizations},
      {"copies_after_permute", "Permuted tensors are copied", copies_after_permute},
      {"layout_conversions", "Images change their layout", layout_conversions},
      {"odd_sizes", "Sizes are not multiples of 8", odd_sizes},
      {"small_norm_batch", "The batch is too small for batch norm", small_norm_batch},
  };
}

}  // namespace bellows::train
