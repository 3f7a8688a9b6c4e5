#include "bellows/inspect/profile/profile.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <numeric>
#include <thread>

#include "bellows/inspect/trace.h"
#include "bellows/models/mlp.h"

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

namespace a_users_profiled_step {

[[gnu::noinline]] double reads_the_loss(const at::Tensor& loss) {
  const double value = loss.item<double>();
  return value + 1;
}

[[gnu::noinline]] at::Tensor copies_after_permute(const at::Tensor& x) {
  at::Tensor copy = x.permute({1, 0}).contiguous();
  return copy;
}

}  // namespace a_users_profiled_step

namespace bellows::inspect {
namespace {

/// Round numbers, so that the roofline can be computed by hand: 100 GFLOP/s, 10 GB/s, 1 µs per call.
constexpr MachinePeaks round_peaks{.fp32_flops = 1e11, .bf16_flops = 4e11, .bytes_per_second = 1e10, .call_s = 1e-6};

StepProfile profile_of(const std::function<void()>& step) {
  return profile(step, {.warm_up_steps = 0, .steps = 2, .peaks = round_peaks});
}

const ProfiledOp& op_of(const StepProfile& profile, const std::string& name) {
  const auto found = std::ranges::find(profile.ops, name, &ProfiledOp::op);
  TORCH_CHECK(found != profile.ops.end(), "no ", name, " in\n", profile.to_text());
  return *found;
}

TEST(Roofline, TheLongestTimeIsTheLimit) {
  ProfiledOp op{.dtype = at::kFloat, .calls = 2, .flops = 1e9, .bytes = 1e7};
  EXPECT_DOUBLE_EQ(op.least_seconds(round_peaks), 0.01);
  EXPECT_EQ(op.limit(round_peaks), Limit::compute);
  op.dtype = at::kBFloat16;
  EXPECT_DOUBLE_EQ(op.least_seconds(round_peaks), 0.0025);
  op.bytes = 1e9;
  EXPECT_DOUBLE_EQ(op.least_seconds(round_peaks), 0.1);
  EXPECT_EQ(op.limit(round_peaks), Limit::memory);
  op.seconds = 2.5;  // 25 times the roofline
  EXPECT_EQ(op.limit(round_peaks), Limit::memory) << "a call of more than a second is not overhead";
  op.calls = 1e4;
  EXPECT_EQ(op.limit(round_peaks), Limit::host);
  op.calls = 1e6, op.seconds = 0;
  EXPECT_DOUBLE_EQ(op.least_seconds(round_peaks), 1);
  EXPECT_EQ(op.limit(round_peaks), Limit::host);
}

TEST(Roofline, Fp64HasHalfThePeakAndSlowBf16ThatOfFp32) {
  EXPECT_DOUBLE_EQ(round_peaks.flops(at::kDouble), 5e10);
  EXPECT_DOUBLE_EQ(MachinePeaks{.fp32_flops = 1e11}.flops(at::kBFloat16), 1e11);
}

/// A profile without measured times.
StepProfile made_profile() {
  StepProfile profile{.peaks = round_peaks, .steps = 1, .step_s = 0.1};
  profile.phases = {{"load", 0.02}, {"forward", 0.03}, {"optimizer", 0.01}, {"", 0.04}};
  profile.ops = {{.op = "aten::mm", .phase = "forward", .dtype = at::kFloat, .calls = 1, .flops = 1e9, .seconds = 0.06},
                 {.op = "aten::add", .phase = "", .dtype = at::kFloat, .calls = 1, .bytes = 1e8, .seconds = 0.01}};
  return profile;
}

TEST(Profile, DividesTheTimeByLimit) {
  const StepProfile profile = made_profile();
  // The matmul took longer under instruments than its phase without them: it counts for the time of the phase.
  EXPECT_THAT(profile.seconds_by_limit(), ElementsAre(testing::DoubleEq(0.02), testing::DoubleEq(0.03),
                                                      testing::DoubleEq(0.02), testing::DoubleEq(0.03), 0));
  StepProfile slow = profile;
  slow.step_s = 1.02, slow.phases[0].seconds = 0.94;
  EXPECT_EQ(slow.limit(), Limit::loading);
  EXPECT_EQ(slow.verdict(), "Data loading limits this step: 92.2 % of 1.02 s.");
}

TEST(Profile, WaitingForOtherRanksIsCommunication) {
  const auto wait = [] {
    const TraceScope scope(std::string(wait_scope_prefix) + "all_reduce");
    const TraceScope inner(std::string(wait_scope_prefix) + "gradients");
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  };
  const StepProfile profile = profile_of([&] {
    wait();
    const TraceScope scope("backward");
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    wait();
  });
  ASSERT_THAT(profile.phases, SizeIs(2)) << "waiting is no phase";
  for (const StepPhase& phase : profile.phases) {
    EXPECT_GE(phase.wait_s, 0.02) << phase.name;
    EXPECT_LE(phase.wait_s, phase.seconds) << phase.name;
  }
  ASSERT_THAT(profile.timed, SizeIs(2));
  EXPECT_NEAR((profile.timed[0].wait_s() + profile.timed[1].wait_s()) / 2, profile.wait_s(), 1e-9);
  const auto by_limit = profile.seconds_by_limit();
  EXPECT_DOUBLE_EQ(by_limit[static_cast<size_t>(Limit::communication)], profile.wait_s());
  EXPECT_NEAR(std::accumulate(by_limit.begin(), by_limit.end(), 0.0), profile.step_s, 1e-4);
  EXPECT_EQ(profile.limit(), Limit::communication);
  EXPECT_THAT(profile.to_text(), HasSubstr("communication   "));
  EXPECT_THAT(made_profile().to_text(), testing::Not(HasSubstr("communication"))) << "a single process";
}

TEST(Profile, CountsTheWorkOfOperatorsPerStep) {
  const at::Tensor a = at::ones({64, 128}), b = at::ones({128, 32});
  const StepProfile profile = profile_of([&] {
    const TraceScope scope("forward");
    at::mm(a, b);
  });
  const ProfiledOp& mm = op_of(profile, "aten::mm");
  EXPECT_EQ(mm.phase, "forward");
  EXPECT_EQ(mm.dtype, at::kFloat);
  EXPECT_DOUBLE_EQ(mm.calls, 1);
  EXPECT_DOUBLE_EQ(mm.flops, 2.0 * 64 * 128 * 32);
  EXPECT_DOUBLE_EQ(mm.bytes, 4.0 * (64 * 128 + 128 * 32 + 64 * 32));
  EXPECT_GT(mm.seconds, 0);
  ASSERT_THAT(profile.phases, SizeIs(2));
  EXPECT_EQ(profile.phases[0].name, "forward");
  const auto by_limit = profile.seconds_by_limit();
  EXPECT_NEAR(std::accumulate(by_limit.begin(), by_limit.end(), 0.0), profile.step_s, 1e-9);
  EXPECT_THAT(profile.syncs, IsEmpty());
  EXPECT_THAT(profile.copies, IsEmpty());
  EXPECT_THAT(profile.odd_sizes, IsEmpty());
}

TEST(Profile, ASlowLoaderLimitsTheStep) {
  const StepProfile profile = profile_of([] {
    {
      const TraceScope scope("load");
      std::this_thread::sleep_for(std::chrono::milliseconds(30));
    }
    at::ones({8}).add_(1);
  });
  EXPECT_EQ(profile.limit(), Limit::loading);
  EXPECT_GE(profile.phase_seconds("load"), 0.03);
}

TEST(Profile, FindsReadsOfValuesWithTheirCallSite) {
  const at::Tensor loss = at::ones({});
  const StepProfile profile = profile_of([&] {
    for (int i = 0; i < 3; ++i) a_users_profiled_step::reads_the_loss(loss);
  });
  ASSERT_THAT(profile.syncs, SizeIs(1));
  EXPECT_EQ(profile.syncs[0].count, 3);
  EXPECT_THAT(profile.syncs[0].site, HasSubstr("a_users_profiled_step::reads_the_loss"));
}

TEST(Profile, FindsCopiesThatChangeTheOrder) {
  const at::Tensor x = at::ones({16, 24});
  const StepProfile profile = profile_of([&] { a_users_profiled_step::copies_after_permute(x); });
  ASSERT_THAT(profile.copies, SizeIs(1)) << profile.to_text();
  const ReorderingCopy& copy = profile.copies[0];
  EXPECT_THAT(copy.site, HasSubstr("a_users_profiled_step::copies_after_permute"));
  EXPECT_EQ(copy.sizes, "24×16");
  EXPECT_FALSE(copy.images);
  EXPECT_DOUBLE_EQ(copy.calls, 1);
  EXPECT_DOUBLE_EQ(copy.bytes, 2.0 * 4 * 16 * 24);
}

TEST(Profile, TellsCopiesBetweenImageLayoutsFromOthers) {
  const at::Tensor images = at::ones({2, 8, 4, 4}), rows = at::ones({4, 8});
  const StepProfile profile = profile_of([&] {
    images.contiguous(at::MemoryFormat::ChannelsLast);
    rows.clone();                                                       // the same order
    rows.t().clone();                                                   // preserves strides
    rows.slice(1, 0, 4).contiguous();                                   // a part, not another order
    rows.to(at::kDouble);                                               // another dtype
    at::ones({4, 1, 4, 4}).contiguous(at::MemoryFormat::ChannelsLast);  // one channel: both layouts are the same
  });
  ASSERT_THAT(profile.copies, SizeIs(1)) << profile.to_text();
  EXPECT_TRUE(profile.copies[0].images);
  EXPECT_EQ(profile.copies[0].sizes, "2×8×4×4");
}

TEST(Profile, FindsSizesThatAreNotMultiplesOfEight) {
  const at::Tensor even = at::ones({16, 32}), odd = at::ones({32, 10});
  const at::Tensor image = at::ones({2, 3, 8, 8}), filters = at::ones({12, 3, 3, 3}), wide = at::ones({16, 3, 3, 3});
  const StepProfile profile = profile_of([&] {
    at::mm(even, even.t());
    at::mm(even, odd);
    at::conv2d(image, filters);
    at::conv2d(image, wide);  // images have 3 channels, which is no finding
  });
  std::vector<std::string> sizes;
  for (const OddSizes& found : profile.odd_sizes) sizes.push_back(found.sizes);
  EXPECT_THAT(sizes, testing::UnorderedElementsAre("16×32 · 32×10", "12×3×3×3"));
}

TEST(Profile, FindsBatchNormsThatTrainAndContiguousConvolutions) {
  const at::Tensor image = at::ones({2, 8, 8, 8}), filters = at::ones({8, 8, 3, 3});
  const at::Tensor last = image.contiguous(at::MemoryFormat::ChannelsLast);
  const StepProfile profile = profile_of([&] {
    const at::Tensor x = at::conv2d(image, filters);
    at::conv2d(last, filters);
    at::batch_norm(x, {}, {}, {}, {}, /*training=*/true, 0.1, 1e-5, false);
  });
  ASSERT_THAT(profile.batch_norms, SizeIs(1)) << profile.to_text();
  EXPECT_EQ(profile.batch_norms[0].samples, 2);
  EXPECT_DOUBLE_EQ(profile.convolutions.contiguous_calls, 1);
  EXPECT_DOUBLE_EQ(profile.convolutions.channels_last_calls, 1);
  const at::Tensor mean = at::zeros({8}), variance = at::ones({8});
  const StepProfile frozen =
      profile_of([&] { at::batch_norm(image, {}, {}, mean, variance, /*training=*/false, 0.1, 1e-5, false); });
  EXPECT_THAT(frozen.batch_norms, IsEmpty());
}

/// A step of an MLP of 16, 32 and 8 features.
struct ProfiledMlp {
  void step() const {
    for (at::Tensor& parameter : parameters) parameter.mutable_grad() = at::Tensor();
    const at::Tensor loss = model.forward(input).square().sum();
    const TraceScope scope("backward");
    loss.backward();
  }
  Model model = models::mlp({.in_features = 16, .hidden = {32}, .num_classes = 8});
  mutable std::vector<at::Tensor> parameters = model.parameters();
  at::Tensor input = at::ones({8, 16});
};

TEST(Profile, ShowsMemoryByKindAndWritesATrace) {
  const ProfiledMlp mlp;
  TraceWriter trace;
  const StepProfile result = profile(
      [&] { mlp.step(); }, {.warm_up_steps = 1, .steps = 1, .model = mlp.model, .peaks = round_peaks, .trace = &trace});
  ASSERT_TRUE(result.memory);
  EXPECT_GE(result.memory->peak().of(TensorKind::weight), 4 * (16 * 32 + 32 + 32 * 8 + 8));
  EXPECT_NE(std::ranges::find(result.memory->tensors, TensorKind::activation, &TensorLife::kind),
            result.memory->tensors.end());
  EXPECT_THAT(result.to_text(), HasSubstr("weights"));
  EXPECT_THAT(trace.to_json(), HasSubstr("aten::addmm"));
  EXPECT_DOUBLE_EQ(result.recomputation.calls, 0);
  const auto json = nlohmann::json::parse(result.to_json());
  EXPECT_EQ(json["steps"], 1);
  EXPECT_GT(json["memory"]["peak_bytes"], 0);
  EXPECT_EQ(json["memory"]["peak_by_kind"]["weights"], result.memory->peak().of(TensorKind::weight));
  EXPECT_THAT(result.to_html("A step <1>"), HasSubstr("<h1>A step &lt;1&gt;</h1>"));
}

TEST(Profile, CountsOperatorsThatBackwardRecords) {
  at::Tensor x = at::ones({8, 8}).requires_grad_();
  const StepProfile result = profile_of([&] {
    // Operators of a gradient with a graph are recorded in backward, like those that run again.
    x.square().sum().backward({}, /*keep_graph=*/true, /*create_graph=*/true);
    x.mutable_grad() = at::Tensor();
  });
  EXPECT_GT(result.recomputation.calls, 0);
  EXPECT_GT(result.recomputation.bytes, 0);
}

TEST(Profile, TextHasAtMostEightyColumns) {
  const std::string text = made_profile().to_text();
  EXPECT_THAT(text, HasSubstr("operator (b: backward)"));
  for (size_t begin = 0; begin < text.size(); begin = text.find('\n', begin) + 1)
    EXPECT_LE(text.find('\n', begin) - begin, 80u) << text.substr(begin, 100);
}

TEST(Profile, ExplainsWrongNumbersOfSteps) {
  const auto message = [](int64_t warm_up, int64_t steps) -> std::string {
    try {
      profile([] {}, {.warm_up_steps = warm_up, .steps = steps, .peaks = round_peaks});
    } catch (const c10::ValueError& error) {
      return error.what_without_backtrace();
    }
    return "";
  };
  EXPECT_THAT(message(1, 0),
              HasSubstr("expected `steps` of at least 1 and `warm_up_steps` of at least 0, got 0 and 1"));
  EXPECT_THAT(message(-1, 2), HasSubstr("got 2 and -1"));
}

}  // namespace
}  // namespace bellows::inspect
