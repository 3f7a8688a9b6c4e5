#include <c10/util/StringUtil.h>

#include <algorithm>
#include <set>
#include <utility>

#include "bellows/advice/rules.h"
#include "bellows/core/stats.h"

namespace bellows::train {

namespace {

/// Whether the rank has the longest own time in most of the steps. A rank that is slow by chance is no straggler.
bool often_slowest(const RanksProfile& profile, size_t slowest) {
  const std::vector<inspect::TimedStep>& steps = profile.ranks[slowest].steps;
  const auto own = [](const inspect::TimedStep& step) { return step.seconds - step.wait_s(); };
  size_t count = 0;
  for (size_t i = 0; i < steps.size(); ++i)
    count += std::ranges::all_of(profile.ranks, [&](const auto& rank) { return own(rank.steps[i]) <= own(steps[i]); });
  return 4 * count >= 3 * steps.size();
}

/// The phase in which the rank is slower than the other ranks by most, and by how much.
std::pair<std::string, double> slow_phase(const RanksProfile& profile, size_t slowest) {
  std::pair<std::string, double> most;
  for (const inspect::StepPhase& phase : profile.ranks[slowest].phases) {
    std::vector<double> others;
    others.reserve(profile.ranks.size());
    for (size_t rank = 0; rank < profile.ranks.size(); ++rank) {
      if (rank != slowest) others.push_back(profile.ranks[rank].own_s(phase.name));
    }
    const double more = profile.ranks[slowest].own_s(phase.name) - median(others);
    if (more > most.second) most = {phase.name, more};
  }
  return most;
}

std::optional<Finding> straggler(const RecipeProfile& profile) {
  if (!profile.ranks) return std::nullopt;
  const RanksProfile& all = *profile.ranks;
  const size_t slowest = all.slowest();
  const RankProfile& rank = all.ranks[slowest];
  const double lost = all.lost_s(), step = profile.step.step_s;
  if (lost < 0.1 * step || !often_slowest(all, slowest)) return std::nullopt;
  const auto [phase, more] = slow_phase(all, slowest);
  const bool loads = phase == inspect::loading_phase;
  std::vector<std::string> settings;
  double least = 0;  // time of a step with the settings
  if (loads && profile.recipe.num_workers == 0) {
    settings = {"num_workers=-1", "prefetch=4"};
    const auto workers = static_cast<double>(std::max<int64_t>(profile.machine.usable_threads(), 2));
    least = rank.own_s(inspect::loading_phase) / workers;
  }
  return Finding{
      .text = c10::str("Rank ", slowest, " on host ", rank.host, " needs ", format_seconds(rank.own_s()),
                       " per step without waiting, and the other ranks need ", format_seconds(all.others_own_s()),
                       ". They wait for it, which loses ", percent_of(lost, step), " of the step. Its phase ",
                       phase.empty() ? "(other)" : phase, " is longer by ", format_seconds(more), ". ",
                       loads ? "Compare the disk, the data and num_workers of this rank with those of the other ranks."
                             : "Compare the processor, the number of threads and other programs on this host with "
                               "those of the other ranks."),
      .settings = std::move(settings),
      .gain = gain_without(profile, std::min(lost, step - least))};
}

/// Settings with which ranks exchange less, and the share of the communication that they save per sample.
std::pair<std::vector<std::string>, double> less_communication(const Recipe& recipe, bool network) {
  const bool shards_gradients = recipe.data_parallel == "zero2" || recipe.data_parallel == "zero3";
  const int64_t batches = recipe.gradient_accumulation_steps;
  if (shards_gradients && batches > 1 && recipe.sync_each_batch)
    return {{"sync_each_batch=false"}, 1 - 1 / static_cast<double>(batches)};
  if (recipe.data_parallel == "zero3" && recipe.reshard_after_forward) return {{"reshard_after_forward=false"}, 1. / 3};
  if (network && !shards_gradients && recipe.gradient_compression == "none")
    return {{"gradient_compression=bf16"}, 0.5};
  std::vector<std::string> settings = {c10::str("gradient_accumulation_steps=", 2 * batches)};
  if (shards_gradients) settings.emplace_back("sync_each_batch=false");
  return {std::move(settings), 0.5};
}

std::optional<Finding> exposed_communication(const RecipeProfile& profile) {
  if (!profile.ranks) return std::nullopt;
  const RanksProfile& all = *profile.ranks;
  const double exposed = all.exposed_s(), step = profile.step.step_s;
  if (exposed < 0.1 * step || all.exchanges.empty()) return std::nullopt;
  double bytes = 0;
  for (const RankExchange& exchange : all.exchanges) bytes += exchange.bytes;
  std::set<std::string> hosts;
  for (const RankProfile& rank : all.ranks) hosts.insert(rank.host);
  auto [settings, saved] = less_communication(profile.recipe, hosts.size() > 1);
  const RankExchange& largest = all.exchanges.front();
  // A bucket is exchanged when it is complete. If one bucket has all gradients, nothing overlaps with backward.
  const auto bucket_bytes = static_cast<double>(profile.recipe.bucket_mb << 20);
  const int64_t quarter_mb = static_cast<int64_t>(bytes / 4) >> 20;
  if (bytes < 2 * bucket_bytes && quarter_mb >= 1) settings.push_back(c10::str("bucket_mb=", quarter_mb));
  return Finding{.text = c10::str("All ranks wait ", format_seconds(exposed), " per step at the same time, ",
                                  percent_of(exposed, step),
                                  " of the step, because communication does not overlap with backward. "
                                  "Each rank exchanges ",
                                  format_bytes(bytes), " per step. Most of it is ", largest.name, " with ",
                                  format_bytes(largest.bytes_per_second()), "/s."),
                 .settings = std::move(settings),
                 .gain = gain_without(profile, saved * exposed)};
}

}  // namespace

std::vector<FindingRule> rank_rules() {
  return {{"straggler", "One rank is slow", straggler},
          {"exposed_communication", "Communication is not hidden", exposed_communication}};
}

}  // namespace bellows::train
