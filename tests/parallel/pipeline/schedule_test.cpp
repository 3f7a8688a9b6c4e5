#include "bellows/parallel/pipeline/schedule.h"

#include <gmock/gmock.h>

#include <fstream>
#include <functional>
#include <iterator>

#include "bellows/parallel/pipeline/stage_exchange.h"
#include "bellows/parallel/pipeline/stages.h"
#include "bellows/parallel/pipeline/timeline.h"
#include "tests/support/errors.h"
#include "tests/support/temporary_folder.h"

// Properties of the tables, over many sizes.
namespace bellows::parallel {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int most_ranks = 8, most_micro_batches = 16;

void for_sizes(const std::function<void(int ranks, int micro_batches)>& action) {
  for (int ranks = 1; ranks <= most_ranks; ++ranks) {
    for (int micro_batches = 1; micro_batches <= most_micro_batches; ++micro_batches) {
      SCOPED_TRACE(std::to_string(ranks) + " ranks, " + std::to_string(micro_batches) + " micro-batches");
      action(ranks, micro_batches);
    }
  }
}

std::vector<PipelineSchedule> all_schedules(int ranks, int micro_batches) {
  std::vector<PipelineSchedule> all = {gpipe(ranks, micro_batches), one_forward_one_backward(ranks, micro_batches),
                                       zero_bubble_h1(ranks, micro_batches)};
  if (micro_batches % ranks == 0) {
    for (const int stages : {1, 2, 3}) all.push_back(interleaved(ranks, micro_batches, stages));
  }
  return all;
}

double share(double bubble, double work) {
  return bubble / (work + bubble);
}

TEST(PipelineSchedule, EveryTableIsCompleteAndRuns) {
  for_sizes([](int ranks, int micro_batches) {
    for (const PipelineSchedule& schedule : all_schedules(ranks, micro_batches)) {
      SCOPED_TRACE(schedule.name);
      EXPECT_NO_THROW(check_schedule(schedule));
    }
  });
}

TEST(PipelineSchedule, BubblesAreThoseOfThePapers) {
  for_sizes([](int ranks, int micro_batches) {
    const double bubble = ranks - 1;
    EXPECT_NEAR(plan_timeline(gpipe(ranks, micro_batches), {}).bubble_share(), share(bubble, micro_batches), 1e-12);
    EXPECT_NEAR(plan_timeline(one_forward_one_backward(ranks, micro_batches), {}).bubble_share(),
                share(bubble, micro_batches), 1e-12);
    if (micro_batches >= ranks) {
      EXPECT_NEAR(plan_timeline(zero_bubble_h1(ranks, micro_batches), {}).bubble_share(),
                  share(bubble, 3 * micro_batches), 1e-12);
    }
    if (micro_batches % ranks != 0) return;
    for (const int stages : {1, 2, 3}) {
      EXPECT_NEAR(plan_timeline(interleaved(ranks, micro_batches, stages), {}).bubble_share(),
                  share(bubble, stages * micro_batches), 1e-12);
    }
  });
}

TEST(PipelineSchedule, ActivationsInFlightAreThoseOfThePapers) {
  for_sizes([](int ranks, int micro_batches) {
    const auto of_gpipe = activations_in_flight(gpipe(ranks, micro_batches));
    const auto alternating = activations_in_flight(one_forward_one_backward(ranks, micro_batches));
    const auto zero_bubble = activations_in_flight(zero_bubble_h1(ranks, micro_batches));
    for (int rank = 0; rank < ranks; ++rank) {
      EXPECT_EQ(of_gpipe[rank], micro_batches);
      EXPECT_EQ(alternating[rank], std::min(ranks - rank, micro_batches));
      EXPECT_LE(zero_bubble[rank], ranks);
    }
    if (micro_batches % ranks != 0) return;
    const auto two_stages = activations_in_flight(interleaved(ranks, micro_batches, 2));
    for (int rank = 0; rank < ranks; ++rank)
      EXPECT_EQ(two_stages[rank], std::min(2 * micro_batches, (ranks - rank - 1) * 2 + ranks + 1));
  });
}

/// Both ranks derive the same list, and each message has one receiver that needs it.
TEST(PipelineSchedule, EveryResultIsSentOnce) {
  for_sizes([](int ranks, int micro_batches) {
    for (const PipelineSchedule& schedule : all_schedules(ranks, micro_batches)) {
      size_t messages = 0;
      for (int from = 0; from < ranks; ++from) {
        for (int to = 0; to < ranks; ++to) messages += messages_between(schedule, from, to).size();
      }
      EXPECT_EQ(messages, static_cast<size_t>(2 * (schedule.stages() - 1) * micro_batches)) << schedule.name;
    }
  });
}

TEST(PipelineSchedule, TextAndFilesKeepATable) {
  const PipelineSchedule schedule = zero_bubble_h1(3, 4);
  const TemporaryFolder folder;
  const std::string path = folder / "schedule.txt";
  write_schedule(schedule, path);
  const PipelineSchedule read = read_schedule(path);
  EXPECT_EQ(read.name, schedule.name);
  EXPECT_EQ(read.ranks, schedule.ranks);
  EXPECT_EQ(read.stage_ranks, schedule.stage_ranks);
  EXPECT_EQ(to_text(read), to_text(schedule));
  const PipelineSchedule own = schedule_from_text(
      "schedule mine  # a comment\n\nmicro_batches 1\nstage_ranks 0 1 0\nrank 0: F0.0 F2.0 B2.0 B0.0\nrank 1: F1.0 "
      "B1.0");
  EXPECT_THAT(own.stage_ranks, ElementsAre(0, 1, 0));
}

TEST(PipelineSchedule, ErrorsNameTheActionAndTheRule) {
  const auto error_of = [](const std::string& actions) {
    return message_of([&] { schedule_from_text("schedule s\nmicro_batches 1\nstage_ranks 0 1\n" + actions); });
  };
  EXPECT_THAT(error_of("rank 0: F0.0 B0.0\nrank 1: F1.0"), HasSubstr("stage 1 needs for micro-batch 0 one F"));
  EXPECT_THAT(error_of("rank 0: F0.0 B0.0 B0.0\nrank 1: F1.0 B1.0"), HasSubstr("rank 0 has the action B0.0 twice"));
  EXPECT_THAT(error_of("rank 0: B0.0 F0.0\nrank 1: F1.0 B1.0"), HasSubstr("rank 0 waits forever before B0.0"));
  EXPECT_THAT(error_of("rank 0: F0.0 B0.0 F1.0\nrank 1: B1.0"), HasSubstr("stage 1 belongs to rank 1"));
  EXPECT_THAT(error_of("rank 0: F0.1\nrank 1: F1.0"), HasSubstr("1 micro-batches, which are counted from 0"));
  EXPECT_THAT(error_of("rank 0: X0.0"), HasSubstr("got \"X0.0\" (line 4)"));
  EXPECT_THAT(error_of("rank 1: F0.0"), HasSubstr("expected the actions of rank 0, got those of rank 1 (line 4)"));
  EXPECT_THAT(error_of("ranks"), HasSubstr("got \"ranks\" (line 4)"));
  EXPECT_THAT(error_of("schedule \x1b[31mred"), HasSubstr("expected a name of printable characters"));
  EXPECT_THAT(message_of([] { interleaved(2, 3, 2); }), HasSubstr("must be a multiple of the number of ranks, 2"));
  EXPECT_THAT(message_of([] { gpipe(0, 3); }), HasSubstr("at least 1 rank"));
  EXPECT_THAT(message_of([] { read_schedule("/does/not/exist"); }), HasSubstr("cannot read /does/not/exist"));
  const TemporaryFolder folder;
  const std::string path = folder / "recipe.yaml";
  std::ofstream(path) << "model: gpt\n";
  EXPECT_THAT(message_of([&] { read_schedule(path); }),
              AllOf(HasSubstr("cannot read " + path), HasSubstr("got \"model:\" (line 1)")));
}

TEST(PipelineTimeline, TracesHaveARowPerRank) {
  const PipelineTimeline planned = plan_timeline(one_forward_one_backward(2, 2), {.transfer_s = 0.5});
  EXPECT_DOUBLE_EQ(planned.length_s(), 10);  // 9 without the time of two exchanges
  const std::string trace = chrome_trace(planned, "planned");
  EXPECT_THAT(trace, HasSubstr("planned rank 1"));
  EXPECT_THAT(trace, HasSubstr("\"B1.1\""));
  const TemporaryFolder folder;
  const std::string path = folder / "trace.json";
  write_pipeline_trace(planned, plan_timeline(gpipe(2, 2), {}), path);
  std::ifstream file(path);
  const std::string both{std::istreambuf_iterator<char>(file), {}};
  EXPECT_THAT(both, HasSubstr("planned rank 0"));
  EXPECT_THAT(both, HasSubstr("measured rank 1"));
  const PipelineTimes times = mean_times(planned, 2);
  EXPECT_DOUBLE_EQ(times.stages[1].forward_s, 1);
  EXPECT_DOUBLE_EQ(times.stages[1].backward_input_s, 1);
  EXPECT_THAT(message_of([] { plan_timeline(gpipe(2, 2), {.stages = {{}}}); }), HasSubstr("got times of 1 stages"));
}

TEST(PipelineStages, BalanceMinimizesTheSlowestStage) {
  const auto balance = [](const std::vector<double>& times, int stages, int64_t limit = 0) {
    std::vector<PartCost> costs;
    for (const double time : times) costs.push_back({.time_s = time, .parameter_bytes = 10});
    return balance_stages(costs, stages, limit);
  };
  EXPECT_THAT(balance({1, 1, 1, 1, 4}, 2), ElementsAre(0, 4));
  EXPECT_THAT(balance({3, 1, 1, 1, 1, 1, 1}, 3), ElementsAre(0, 1, 4));
  EXPECT_THAT(balance({1, 1, 1, 1, 4}, 2, 30), ElementsAre(0, 3));  // at most three parts fit
  EXPECT_THAT(message_of([&] { balance({1, 1}, 3); }), HasSubstr("cannot divide 2 parts into 3 stages"));
  EXPECT_THAT(message_of([&] { balance({1, 1, 1}, 2, 5); }), HasSubstr("The largest part, number 0, has 10 bytes"));
}

}  // namespace
}  // namespace bellows::parallel
