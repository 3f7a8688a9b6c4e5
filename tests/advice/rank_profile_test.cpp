// The profile of a job on several ranks. The tests with processes run themselves.
#include "bellows/advice/rank_profile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <thread>

#include "bellows/advice/findings.h"
#include "bellows/core/seed.h"
#include "tests/parallel/own_processes.h"
#include "tests/train/support.h"

namespace bellows::train {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

/// Two steps of a rank: loading, forward and backward, and the time outside.
/// Params: load, backward – own seconds; wait – further seconds of backward
RankProfile rank_with(double load, double backward, double wait) {
  const std::vector<inspect::StepPhase> phases = {
      {"load", load}, {"forward", 0.02}, {"backward", backward + wait, wait}, {"", 0.001}};
  const double seconds = load + 0.02 + backward + wait + 0.001;
  return {.host = "node-a", .steps = {{0, seconds, phases}, {1e6 * seconds, seconds, phases}}, .phases = phases};
}

comm::RecordedCall call(double start_s, double seconds, int64_t bytes) {
  return {"all_reduce", "world/gradients", bytes, 1e6 * start_s, 1e6 * (start_s + seconds)};
}

RecipeProfile profile_with(RanksProfile ranks) {
  RecipeProfile profile;
  profile.step.step_s = ranks.ranks.front().step_s();
  profile.step.phases = ranks.ranks.front().phases;
  profile.recipe.batch_size = 32;
  profile.ranks = std::move(ranks);
  return profile;
}

const Finding* find(const std::vector<Finding>& findings, const std::string& name) {
  const auto found = std::ranges::find(findings, name, &Finding::name);
  return found == findings.end() ? nullptr : &*found;
}

TEST(RankFindings, NameTheSlowRankAndItsPhase) {
  const RanksProfile ranks{.ranks = {rank_with(0, 0.03, 0.05), rank_with(0, 0.08, 0), rank_with(0, 0.03, 0.05)}};
  EXPECT_EQ(ranks.slowest(), 1u);
  EXPECT_NEAR(ranks.lost_s(), 0.05, 1e-9);
  EXPECT_NEAR(ranks.exposed_s(), 0, 1e-9);
  const std::vector<Finding> findings = findings_of(profile_with(ranks));
  const Finding* finding = find(findings, "straggler");
  ASSERT_TRUE(finding);
  EXPECT_THAT(finding->text, AllOf(HasSubstr("Rank 1 on host node-a needs 101 ms per step without waiting"),
                                   HasSubstr("the other ranks need 51 ms"), HasSubstr("loses 50 % of the step"),
                                   HasSubstr("Its phase backward is longer by 50 ms")));
  EXPECT_THAT(finding->settings, IsEmpty());
  EXPECT_NEAR(finding->gain, 0.101 / 0.051, 1e-9);
  EXPECT_FALSE(find(findings, "exposed_communication"));
}

TEST(RankFindings, ASlowLoaderOfOneRankGetsWorkers) {
  RecipeProfile profile = profile_with({.ranks = {rank_with(0.001, 0.03, 0.06), rank_with(0.061, 0.03, 0)}});
  profile.recipe.num_workers = 0;
  const std::vector<Finding> findings = findings_of(profile);
  const Finding* finding = find(findings, "straggler");
  ASSERT_TRUE(finding);
  EXPECT_THAT(finding->settings, ElementsAre("num_workers=-1", "prefetch=4"));
}

// With two threads, loading that takes 301 ms still takes 150.5 ms.
TEST(RankFindings, WorkersDoNotPromiseMoreThanTheyCanLoad) {
  RecipeProfile profile = profile_with({.ranks = {rank_with(0.001, 0.03, 0.3), rank_with(0.301, 0.03, 0)}});
  profile.recipe.num_workers = 0;
  const std::vector<Finding> findings = findings_of(profile);
  const Finding* finding = find(findings, "straggler");
  ASSERT_TRUE(finding);
  EXPECT_NEAR(finding->gain, 0.352 / 0.1505, 1e-9);
}

TEST(RankFindings, ARankThatIsSlowByChanceIsNoStraggler) {
  RanksProfile ranks{.ranks = {rank_with(0, 0.03, 0.05), rank_with(0, 0.08, 0)}};
  std::swap(ranks.ranks[0].steps[1], ranks.ranks[1].steps[1]);
  ranks.ranks[1].steps[0].seconds += 0.04;  // the slowest rank on average, but not in the second step
  EXPECT_FALSE(find(findings_of(profile_with(ranks)), "straggler"));
}

TEST(RankFindings, CommunicationIsNotHiddenIfAllRanksWait) {
  RanksProfile ranks{.ranks = {rank_with(0, 0.03, 0.05), rank_with(0, 0.03, 0.05)}};
  ranks.exchanges = {{"all_reduce", 2, 40e6, 0.05}};
  RecipeProfile profile = profile_with(ranks);
  std::vector<Finding> findings = findings_of(profile);
  const Finding* finding = find(findings, "exposed_communication");
  ASSERT_TRUE(finding);
  EXPECT_THAT(finding->text, AllOf(HasSubstr("All ranks wait 50 ms per step at the same time, 50 % of the step"),
                                   HasSubstr("38.1 MiB per step"), HasSubstr("all_reduce with 762.9 MiB/s")));
  EXPECT_THAT(finding->settings, ElementsAre("gradient_accumulation_steps=2", "bucket_mb=9"));
  EXPECT_NEAR(finding->gain, 0.101 / 0.076, 1e-9);
  profile.ranks->ranks[1].host = "node-b";  // the network is slower than a conversion
  findings = findings_of(profile);
  EXPECT_THAT(find(findings, "exposed_communication")->settings,
              ElementsAre("gradient_compression=bf16", "bucket_mb=9"));
  profile.recipe.bucket_mb = 4;
  profile.recipe.data_parallel = "zero3";
  findings = findings_of(profile);
  EXPECT_THAT(find(findings, "exposed_communication")->settings, ElementsAre("reshard_after_forward=false"));
  profile.recipe.gradient_accumulation_steps = 4;
  findings = findings_of(profile);
  EXPECT_THAT(find(findings, "exposed_communication")->settings, ElementsAre("sync_each_batch=false"));
  EXPECT_NEAR(find(findings, "exposed_communication")->gain, 0.101 / (0.101 - 0.75 * 0.05), 1e-9);
}

TEST(RankTables, ShowEachRank) {
  RanksProfile ranks{.ranks = {rank_with(0, 0.03, 0.05), rank_with(0, 0.08, 0)}};
  ranks.exchanges = {{"all_reduce", 2, 40e6, 0.05}};
  const std::string text = ranks_text(ranks);
  EXPECT_THAT(text, HasSubstr("1      node-a                      101.000    101.000      0.000      0 %"));
  EXPECT_THAT(text, HasSubstr("all_reduce                            2.0     38.1 MiB    50.000       800.0"));
  for (size_t begin = 0; begin < text.size(); begin = text.find('\n', begin) + 1)
    EXPECT_LE(text.find('\n', begin) - begin, 80u);
  const auto json = nlohmann::json::parse(ranks_json(ranks));
  EXPECT_EQ(json["slowest_rank"], 1);
  EXPECT_NEAR(json["ranks"][0]["wait_s"].get<double>(), 0.05, 1e-9);
  EXPECT_EQ(json["ranks"][0]["steps"].size(), 2u);
  EXPECT_EQ(json["collectives"][0]["name"], "all_reduce");
  const std::string page = profile_page(profile_with(ranks), {});
  EXPECT_THAT(page,
              AllOf(HasSubstr("<h2>Ranks</h2>"), HasSubstr("<td>node-a</td>"), HasSubstr("<h2>Collectives</h2>")));
}

TEST(RankTraces, HaveARowOfCallsThatDoNotOverlap) {
  TraceWriter trace;
  add_calls(trace, {call(0.5, 1, 8), call(1, 1, 8), call(1.2, 1, 8)}, 0.9e6);
  const auto events = nlohmann::json::parse(trace.to_json())["traceEvents"];
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(events[0]["args"]["name"], "collectives");
  EXPECT_EQ(events[1]["name"], "all_reduce");
  EXPECT_NEAR(events[1]["ts"].get<double>() + events[1]["dur"].get<double>(), events[2]["ts"].get<double>(), 1e-6);
  EXPECT_EQ(events[2]["args"]["bytes"], 8);
}

// ---- real ranks

/// Each read takes some time.
class SlowRankSource final : public data::Source {
 public:
  SlowRankSource(data::SourcePtr source, int milliseconds) : source_(std::move(source)), milliseconds_(milliseconds) {}
  int64_t size() const override { return source_->size(); }
  void read(int64_t index, data::Sample& sample) const override {
    std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds_));
    source_->read(index, sample);
  }
  std::string describe() const override { return "samples of a slow rank"; }

 private:
  data::SourcePtr source_;
  int milliseconds_;
};

RecipeProfile profile_on(const comm::Group& ranks, const std::string& strategy, int milliseconds, TraceWriter* trace) {
  Recipe recipe = digits_recipe();
  recipe.data_parallel = strategy;
  recipe.batch_size = 16;
  seed_everything(3);
  const Model model =
      Model::of(torch::nn::Sequential(torch::nn::Linear(8, 256), torch::nn::ReLU(), torch::nn::Linear(256, 3)), "net");
  data::Dataset data = blobs(320).threads(0);
  data = data.with_source(std::make_shared<SlowRankSource>(data.source(), milliseconds));
  Job job{recipe, model, {make_optimizer(recipe, model)}, cross_entropy_loss(model), data};
  job.ranks = ranks;
  constexpr inspect::MachinePeaks peaks{.fp32_flops = 1e11, .bytes_per_second = 1e10, .call_s = 1e-6};
  return profile_job(std::move(job), {.warm_up_steps = 1, .steps = 4, .peaks = peaks, .trace = trace});
}

TEST(RanksProfile, NamesTheSlowRankOfADdpJobAndCountsTheBytesOfZero3) {
  parallel::testing::run_processes(2, [](const comm::World& world, const std::string&) {
    TraceWriter trace;
    const RecipeProfile slow = profile_on(world, "ddp", world.rank() == 1 ? 5 : 0, &trace);
    const std::vector<Finding> findings = findings_of(slow);
    ASSERT_FALSE(findings.empty());
    const Finding* straggler = find(findings, "straggler");
    ASSERT_TRUE(straggler) << ranks_text(*slow.ranks);
    EXPECT_THAT(straggler->text, AllOf(HasSubstr("Rank 1 on host "), HasSubstr("Its phase load is longer by ")));
    EXPECT_THAT(straggler->settings, ElementsAre("num_workers=-1", "prefetch=4"));
    EXPECT_GT(straggler->gain, 2) << "eight samples take 40 ms";
    EXPECT_GT(slow.ranks->ranks[0].wait_s(), 0.02) << ranks_text(*slow.ranks);
    EXPECT_LT(slow.ranks->ranks[1].wait_s(), slow.ranks->ranks[0].wait_s() / 2);
    EXPECT_EQ(slow.batch_size, 16) << "of both ranks";
    EXPECT_EQ(slow.step.limit(), world.rank() == 0 ? inspect::Limit::communication : inspect::Limit::loading);
    const RankExchange& gradients = slow.ranks->exchanges.front();
    EXPECT_EQ(gradients.name, "all_reduce");
    EXPECT_GE(gradients.bytes, 4 * (8 * 256 + 256 + 256 * 3 + 3));
    EXPECT_GT(gradients.bytes_per_second(), 0);
    const std::vector<std::string> traces = gather_traces(trace, world);
    ASSERT_EQ(traces.size(), 2u);
    for (int rank = 0; rank < 2; ++rank)
      EXPECT_THAT(traces[static_cast<size_t>(rank)],
                  AllOf(HasSubstr(c10::str("\"rank ", rank, "\"")), HasSubstr("\"wait: gradients\""),
                        HasSubstr("\"communication\""), HasSubstr("aten::addmm")));

    const RecipeProfile sharded = profile_on(world, "zero3", 0, nullptr);
    std::vector<std::string> names;
    for (const RankExchange& exchange : sharded.ranks->exchanges) names.push_back(exchange.name);
    EXPECT_THAT(names, testing::IsSupersetOf({"all_gather", "reduce_scatter"}));
    EXPECT_GT(sharded.step.wait_s(), 0);
  });
}

}  // namespace
}  // namespace bellows::train
