#include "bellows/parallel/hooks/hooks.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <limits>

#include "tests/parallel/hook_support.h"
#include "tests/support/errors.h"

namespace bellows::parallel::testing {
namespace {

using ::testing::HasSubstr;

constexpr double infinity = std::numeric_limits<double>::infinity(),
                 not_a_number = std::numeric_limits<double>::quiet_NaN();

}  // namespace

TEST(GradientHooks, HaveNames) {
  for (const auto& [name, make] : all_hooks()) EXPECT_EQ(make()->describe(), name);
}

TEST(GradientHooks, GiveEveryRankTheSameBitsNearTheMean) {
  // Of the largest gradient, 1.5. PowerSGD and top-k are lossy by design: see the tests of feedback.
  const std::map<std::string, double> tolerance = {{"all-reduce", 1e-6},
                                                   {"bf16", 2e-2},
                                                   {"fp16", 2e-3},
                                                   {"int8", 1.5 / 127},
                                                   {"int8 with error feedback", 1.5 / 127}};
  for (const int ranks : {2, 3}) {
    run_ranks(ranks, [&](const comm::Group& group) {
      const Gradients gradients(odd_shapes, at::kFloat);
      for (const auto& [name, make] : all_hooks()) {
        const auto bound = tolerance.find(name);
        const double error = largest(means_of(*make(), gradients, group, 0, 1)[0] - exact(gradients, 0, group.size()));
        EXPECT_LE(error, bound == tolerance.end() ? 3 : bound->second) << name;
      }
    });
  }
}

TEST(GradientHooks, DoNothingInAGroupOfOne) {
  run_ranks(1, [](const comm::Group& group) {
    for (const auto& [name, make] : all_hooks()) {
      const GradientBucket bucket = Gradients(odd_shapes).bucket(0, 0);
      const at::Tensor before = bucket.flat.clone();
      const at::Tensor mean = make()->mean(bucket, group);
      EXPECT_TRUE(mean.is_same(bucket.flat)) << name;
      EXPECT_TRUE(mean.equal(before)) << name;
    }
  });
}

TEST(GradientHooks, TakeEmptyBucketsAndSixteenBits) {
  run_ranks(2, [](const comm::Group& group) {
    for (const auto& [name, make] : all_hooks()) {
      EXPECT_EQ(make()->mean(Gradients(Shapes{{0, 3}}).bucket(0, group.rank()), group).numel(), 0) << name;
      for (const at::ScalarType type : {at::kHalf, at::kBFloat16}) {
        const at::Tensor mean = means_of(*make(), Gradients(odd_shapes, type), group, 0, 2)[1];
        EXPECT_EQ(mean.scalar_type(), type) << name;
        EXPECT_TRUE(at::isfinite(mean).all().item<bool>()) << name;
      }
    }
  });
}

TEST(GradientHooks, LeaveNonFiniteGradientsVisibleAndForgetThem) {
  run_ranks(2, [](const comm::Group& group) {
    const Gradients gradients(odd_shapes, at::kFloat);
    for (const auto& [name, make] : all_hooks()) {
      const at::Tensor expected = means_of(*make(), gradients, group, 0, 2)[1];
      for (const double bad : {infinity, -infinity, not_a_number}) {
        const auto hook = make();
        means_of(*hook, gradients, group, 0, 1);
        const GradientBucket overflown = gradients.bucket(7, group.rank());
        if (group.rank() == 1) overflown.flat[5] = bad;
        EXPECT_FALSE(at::isfinite(hook->mean(overflown, group)).all().item<bool>()) << name << " " << group.rank();
        const at::Tensor mean = means_of(*hook, gradients, group, 1, 2)[0];
        // As if that step had not been; PowerSGD begins with another projection.
        if (name.starts_with("PowerSGD")) {
          EXPECT_LE(largest(mean - expected), 3) << name;
        } else {
          EXPECT_TRUE(mean.equal(expected)) << name;
        }
      }
    }
  });
}

TEST(GradientHooks, SendAsManyBytesAsTheySay) {
  constexpr int64_t numbers = 120 * 100;
  const std::map<std::string, double> expected = {// in units of the fp32 all-reduce, at 4 ranks
                                                  {"all-reduce", 1},
                                                  {"bf16", 0.5},
                                                  {"fp16", 0.5},
                                                  {"int8", (1 + 1.0 / 64) / 4 * 12288 / numbers},
                                                  {"int8 with error feedback", (1 + 1.0 / 64) / 4 * 12288 / numbers},
                                                  {"PowerSGD, rank 1", 220.0 / numbers},
                                                  {"PowerSGD, rank 3", 660.0 / numbers},
                                                  {"top-k, 5 %", 3 * 8 * 0.05 / (2 * 3.0 / 4 * 4)},
                                                  {"top-k, 5 % with error feedback", 3 * 8 * 0.05 / (2 * 3.0 / 4 * 4)}};
  run_ranks(4, [&](const comm::Group& group) {
    for (const auto& [name, make] : all_hooks()) {
      auto before = comm::traffic(group);
      make()->mean(Gradients({{120, 100}}, at::kFloat).bucket(0, group.rank()), group);
      auto after = comm::traffic(group);
      const auto bytes = [&](const std::string& call) {
        return static_cast<double>(after[call].bytes - before[call].bytes);
      };
      const double sent = 2 * 0.75 * bytes("all_reduce") + 3 * bytes("all_gather") + 0.75 * bytes("all_to_all");
      EXPECT_NEAR(sent / (2 * 0.75 * 4 * numbers), expected.at(name), 1e-9) << name;
    }
  });
}

TEST(GradientHooks, Fp16HoldsMeansWhoseSumsOverflow) {
  run_ranks(3, [](const comm::Group& group) {
    GradientBucket bucket = Gradients({{5}}, at::kFloat).bucket(0, 0);
    bucket.flat.fill_(60000);
    EXPECT_NEAR(fp16_hook()->mean(bucket, group).min().item<double>(), 60000, 40);
  });
}

TEST(GradientHooks, Int8RoundsByTheLargestOfItsBlock) {
  for (const int ranks : {2, 4}) {
    run_ranks(ranks, [](const comm::Group& group) {
      for (const int64_t numel : {1, 255, 256, 257, 1000}) {
        const Gradients gradients({{numel}}, at::kFloat);
        const at::Tensor size = at::exp(at::arange(numel, at::kDouble) / 50);  // blocks differ by their scale
        const GradientBucket bucket = gradients.bucket(0, group.rank());
        bucket.flat.mul_(size);
        const at::Tensor mean = int8_hook()->mean(bucket, group);
        const at::Tensor error = (mean - exact(gradients, 0, group.size()) * size).abs();
        for (int64_t begin = 0; begin < numel; begin += 256) {
          const int64_t end = std::min(begin + 256, numel);
          const double bound = 1.5 * size[end - 1].item<double>() / 127;
          EXPECT_LE(error.slice(0, begin, end).max().item<double>(), bound) << numel << " " << begin;
        }
      }
    });
  }
}

TEST(GradientHooks, PowerSgdRecoversFromAStepWithoutGradients) {
  run_ranks(2, [](const comm::Group& group) {
    for (const int64_t rank : {1, 2, 3}) {
      const Gradients gradients({{40, 30}}, at::kFloat);
      const auto hook =
          power_sgd_hook({.rank = rank, .start_step = 0, .min_compression_rate = 1, .error_feedback = false});
      const at::Tensor product =
          Gradients::formula(1, {40, rank}, 0, 0).mm(Gradients::formula(2, {rank, 30}, 0, 0)).to(at::kFloat);
      const auto low_rank = [&](double scale) {
        GradientBucket bucket = gradients.bucket(0, 0);
        bucket.gradients[0].copy_(product * scale);
        return bucket;
      };
      for (const double scale : {1.0, 0.0, 2.0}) {
        const at::Tensor expected = low_rank(scale).flat;
        EXPECT_TRUE(at::allclose(hook->mean(low_rank(scale), group), expected, 1e-3, 1e-4)) << rank << " " << scale;
      }
    }
  });
}

TEST(GradientHooks, PowerSgdTakesGradientsOfAnyMemoryOrder) {
  run_ranks(2, [](const comm::Group& group) {
    for (const bool batched : {false, true}) {
      const Gradients gradients({{8, 6, 3, 3}, {8, 6, 3, 3}}, at::kFloat);
      const PowerSgdOptions options = {.start_step = 0, .batch_same_shapes = batched};
      const GradientBucket rows = gradients.bucket(0, group.rank());
      GradientBucket last = gradients.bucket(0, group.rank());
      for (size_t i = 0; i < 2; ++i) {
        const int64_t begin = static_cast<int64_t>(i) * 432;
        last.gradients[i] = last.flat.as_strided({8, 6, 3, 3}, {54, 1, 18, 6}, begin);
        last.gradients[i].copy_(rows.gradients[i]);
      }
      power_sgd_hook(options)->mean(rows, group);
      power_sgd_hook(options)->mean(last, group);
      for (size_t i = 0; i < 2; ++i) EXPECT_TRUE(at::allclose(rows.gradients[i], last.gradients[i], 1e-5, 1e-6)) << i;
    }
  });
}

TEST(GradientHooks, RefuseOptionsAndStatesThatDoNotFit) {
  EXPECT_THAT(message_of([] { top_k_hook({.ratio = 0}); }), HasSubstr("a ratio above 0 and up to 1, got 0"));
  EXPECT_THAT(message_of([] { top_k_hook({.ratio = 1.5}); }), HasSubstr("got 1.5"));
  EXPECT_THAT(message_of([] { power_sgd_hook({.rank = 0}); }), HasSubstr("a rank of at least 1"));
  EXPECT_THAT(message_of([] { power_sgd_hook({.start_step = -1}); }), HasSubstr("start_step"));
  EXPECT_THAT(message_of([] { power_sgd_hook({.min_compression_rate = 0}); }), HasSubstr("min_compression_rate"));
  EXPECT_THAT(message_of([] { power_sgd_hook({.epsilon = -1}); }), HasSubstr("epsilon"));

  const auto restore = [](const std::shared_ptr<GradientHook>& hook, const NamedTensors& state) {
    return message_of([&] { hook->restore(state); });
  };
  const NamedTensors error = {{"error.0", at::zeros({4})}};
  EXPECT_THAT(restore(bf16_hook(), error), HasSubstr("bf16: expected no state, got error.0"));
  EXPECT_THAT(restore(int8_hook({.error_feedback = false}), error), HasSubstr("int8: got \"error.0\""));
  EXPECT_THAT(restore(top_k_hook(), {{"projection.0", at::zeros({4})}}), HasSubstr("got \"projection.0\""));
  EXPECT_THAT(restore(top_k_hook(), {{"error.0", at::zeros({4}, at::kLong)}}), HasSubstr("floating-point numbers"));
  EXPECT_THAT(restore(power_sgd_hook(), {{"step", at::zeros({4})}}), HasSubstr("expected \"step\" to be a number"));
  EXPECT_THAT(restore(power_sgd_hook({.warm_start = false}), {{"projection.0", at::zeros({4})}}),
              HasSubstr("got \"projection.0\""));
  run_ranks(2, [&](const comm::Group& group) {
    const auto hook = top_k_hook();
    hook->restore(error);
    EXPECT_THAT(message_of([&] { hook->mean(Gradients(Shapes{{5}}).bucket(0, group.rank()), group); }),
                HasSubstr("expected \"error.0\" to have 5 elements, but the restored state has 4"));
  });
}

}  // namespace bellows::parallel::testing
