// Does `bellows profile` find the bottleneck of twelve prepared jobs, and does its advice deliver the promised gain?
#include <algorithm>
#include <filesystem>
#include <memory>

#include "bellows/advice/findings.h"
#include "bellows/train/step/train_loop.h"
#include "bench/profile/cases.h"
#include "bench/profile/slow_rank.h"

namespace bellows::bench {

namespace {

using train::Finding;
using train::Recipe;
using train::TrainLoop;

/// The least part of the promised gain that a change must deliver.
constexpr double least_delivery = 0.5;

Plan plan_of(const Options& options) {
  return {.window_s = options.quick ? 0.15 : 0.6,
          .windows = options.quick ? 5 : 11,
          .warmup = 1,
          .budget_s = options.quick ? 10.0 : 60.0};  // without bf16 units, the change for fp32 is far slower
}

std::string names_of(const std::vector<Finding>& findings) {
  std::string names;
  for (const Finding& finding : findings) names += (names.empty() ? "" : ", ") + finding.name;
  return names.empty() ? "none" : names;
}

std::string settings_text(const std::vector<std::string>& settings) {
  std::string text;
  for (const std::string& setting : settings) text += (text.empty() ? "" : " ") + setting;
  return text;
}

/// A row whose figures are speedups: the measured one and the promised one.
/// Params: finding – null if the profile did not report it
///         named – whether the profile is right
Row speedup_row(const std::string& name, const Finding* finding, const RatioInterval& measured, bool named) {
  const double promised = finding ? finding->gain : 0;
  Row row{.work = name,
          .metric = "speedup per sample",
          .unit = "x",
          .ours = measured.ratio,
          .equal = named && (promised <= 1 || measured.ratio - 1 >= least_delivery * (promised - 1)),
          .interval = measured};
  if (promised > 1) row.peers = {{"promised", promised}};
  return row;
}

/// Runs steps until they have trained `samples` samples per unit.
Contestant training_side(std::string name, const std::shared_ptr<TrainLoop>& loop, int64_t samples) {
  return {std::move(name), [loop, samples](int64_t units) {
            return seconds_of([&] {
              for (const int64_t end = loop->sample_count() + units * samples; loop->sample_count() < end;)
                loop->run_steps(1);
            });
          }};
}

RatioInterval measured_speedup(train::Job changed, train::Job slow, const Plan& plan) {
  const auto samples = [](const Recipe& recipe) { return recipe.batch_size * recipe.gradient_accumulation_steps; };
  const int64_t unit = std::max(samples(changed.recipe), samples(slow.recipe));
  const auto with = std::make_shared<TrainLoop>(std::move(changed)),
             without = std::make_shared<TrainLoop>(std::move(slow));
  const Comparison all = compare({training_side("changed", with, unit), training_side("slow", without, unit)}, plan);
  return all.speedup_over(all.sides.back());
}

/// The change of a case: other code, or the settings of the finding.
train::Job changed_job(const ProfileCase& one, const Finding* finding) {
  if (one.changed) return one.changed(one.recipe);
  Recipe recipe = one.recipe;
  if (finding) {
    for (const std::string& setting : finding->settings) recipe.set(setting);
  } else if (!one.setting.empty()) {
    recipe.set(one.setting);
  }
  return one.slow(recipe);
}

Row measure(const ProfileCase& one, const Plan& plan) {
  const train::RecipeProfile profile = train::profile_job(one.slow(one.recipe));
  const std::vector<Finding> findings = train::findings_of(profile);
  const auto found = std::ranges::find(findings, one.finding, &Finding::name);
  const Finding* const finding = found == findings.end() ? nullptr : &*found;
  const RatioInterval measured = measured_speedup(changed_job(one, finding), one.slow(one.recipe), plan);
  // Without a finding, the profile is right if the setting does not help.
  const bool optional = !one.setting.empty();
  Row row = speedup_row(one.name, finding, measured, finding || (optional && measured.ratio < 1.1));
  row.note = "findings: " + names_of(findings) + ". ";
  if (!finding) {
    row.note += "Measured with " + (optional ? one.setting : std::string("no change")) + ".";
  } else {
    row.note += finding->text + (one.changed ? " Measured with other code." : " " + settings_text(finding->settings));
  }
  return row;
}

Row slow_rank_row(const Plan& plan) {
  const SlowRank slow = measure_slow_rank(plan);
  const bool named = !slow.finding.name.empty();
  Row row = speedup_row("one slow rank of two", named ? &slow.finding : nullptr,
                        named ? slow.comparison.speedup_over(slow.comparison.sides.back()) : RatioInterval{}, named);
  row.note = named ? slow.finding.text + " " + settings_text(slow.finding.settings) : "findings: none";
  return row;
}

int run(const Options& options) {
  Report report("profile", options);
  const Plan plan = plan_of(options);
  const std::string& chosen = options.extra.at("case");
  const auto is_chosen = [&](const std::string& name) { return name.find(chosen) != std::string::npos; };
  for (const ProfileCase& one : profile_cases(options, options.extra.at("folder"))) {
    if (is_chosen(one.name) && report.has_time_for(one.name)) report.add(measure(one, plan));
  }
  if (is_chosen("one slow rank of two") && report.has_time_for("one slow rank of two")) report.add(slow_rank_row(plan));
  return report.finish();
}

}  // namespace

}  // namespace bellows::bench

int main(int argc, char** argv) {
  using namespace bellows::bench;
  if (argc == 2 && std::string_view(argv[1]) == "--serve") return serve_slow_rank();
  return bench_main(argc, argv,
                    "Profiles twelve jobs, each with one known bottleneck, and checks that `bellows profile` names it. "
                    "Then trains with the\nsuggested change and without it, in turns, and compares the speedup with "
                    "the promised one. --case: part of the names of\nthe cases to run. --folder: a folder on a disk, "
                    "from which the case swapping reads.",
                    run, {{"case", ""}, {"folder", "/var/tmp"}});
}
