#include "bench/profile/slow_rank.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <iterator>
#include <memory>
#include <sstream>

#include "bellows/train/step/train_loop.h"
#include "bench/profile/cases.h"
#include "bench/support/peer_process.h"
#include "bench/support/ranks.h"

namespace bellows::bench {

namespace {

train::Job rank_job(const World& world, const std::vector<std::string>& settings) {
  train::Recipe recipe;
  recipe.batch_size = 32;
  recipe.num_workers = 0;
  for (const std::string& setting : settings) recipe.set(setting);
  train::Job job = feature_job(recipe, 64, 64, 2);
  job.train = job.train.with_source(slow_source(job.train.source(), world.rank() == 1 ? 1 : 0));
  job.ranks = world.group();
  return job;
}

std::vector<std::string> words_of(std::istream& words) {
  return {std::istream_iterator<std::string>(words), std::istream_iterator<std::string>()};
}

/// Returns "GAIN SETTING…| TEXT"; empty if there is no such finding.
std::string profile_ranks(const World& world) {
  const std::vector<train::Finding> findings = train::findings_of(train::profile_job(rank_job(world, {})));
  const auto found = std::ranges::find(findings, "straggler", &train::Finding::name);
  if (found == findings.end()) return "none";
  std::string text = std::to_string(found->gain);
  for (const std::string& setting : found->settings) text += " " + setting;
  return text + "|" + found->text;
}

}  // namespace

int serve_slow_rank() {
  start_other_ranks("bench_profile");
  at::set_num_threads(1);
  const World world = init();
  std::unique_ptr<train::TrainLoop> slow, changed, *used = &slow;
  RankCommands commands;
  commands["profile"] = [&](std::istream&) { return profile_ranks(world); };
  commands["make"] = [&](std::istream& words) {
    slow = std::make_unique<train::TrainLoop>(rank_job(world, {}));
    changed = std::make_unique<train::TrainLoop>(rank_job(world, words_of(words)));
    return std::string("made");
  };
  commands["use"] = [&](std::istream& words) {
    used = words_of(words).front() == "slow" ? &slow : &changed;
    return std::string("used");
  };
  return serve_commands(
      world, [&] { (*used)->run_steps(1); }, commands);
}

SlowRank measure_slow_rank(const Plan& plan) {
  PeerProcess ranks(with_world(our_command(), 2));
  SlowRank result;
  const std::string answer = ranks.ask("profile");
  if (answer == "none") return result;
  std::istringstream words(answer.substr(0, answer.find('|')));
  words >> result.finding.gain;
  result.finding.settings = words_of(words);
  result.finding.text = answer.substr(answer.find('|') + 1);
  result.finding.name = "straggler";
  std::string make = "make";
  for (const std::string& setting : result.finding.settings) make += " " + setting;
  ranks.ask(make);
  const auto side = [&ranks](const std::string& name) {
    return Contestant{name, [&ranks, name](int64_t steps) {
                        ranks.ask("use " + name);
                        return ranks.run(steps);
                      }};
  };
  result.comparison = compare({side("changed"), side("slow")}, plan);
  return result;
}

}  // namespace bellows::bench
