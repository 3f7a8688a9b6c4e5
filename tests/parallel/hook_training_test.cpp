#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <gtest/gtest.h>

#include "bellows/io/tensors/safetensors.h"
#include "tests/parallel/hook_support.h"

namespace bellows::parallel::testing {
namespace {

/// A bucket of the gradients that backward left in `parameters`.
GradientBucket bucket_of(const std::vector<at::Tensor>& parameters) {
  GradientBucket bucket{.last = true, .parameters = parameters};
  std::vector<at::Tensor> parts;
  parts.reserve(parameters.size());
  for (const at::Tensor& parameter : parameters) parts.push_back(parameter.grad().flatten());
  bucket.flat = at::cat(parts);
  int64_t begin = 0;
  for (const at::Tensor& parameter : parameters) {
    bucket.gradients.push_back(bucket.flat.narrow(0, begin, parameter.numel()).view(parameter.sizes()));
    begin += parameter.numel();
  }
  return bucket;
}

/// Of a small net after 150 steps on the ranks' data, and of all ranks' data.
double loss_after_training(GradientHook& hook, const comm::Group& group) {
  const auto data = [](int rank) { return Gradients::formula(rank, {64, 20}, 3, rank).to(at::kFloat); };
  const auto target = [](const at::Tensor& x) { return (x.slice(1, 0, 5).sum(1, true) * 0.7).sin(); };
  std::vector<at::Tensor> net;
  net.reserve(4);
  for (const std::vector<int64_t>& shape : Shapes{{20, 32}, {32}, {32, 1}, {1}})
    net.push_back((Gradients::formula(5, shape, 0, 0) * 0.3).to(at::kFloat).set_requires_grad(true));
  const auto loss = [&](const at::Tensor& x) {
    return at::mse_loss((x.mm(net[0]) + net[1]).tanh().mm(net[2]) + net[3], target(x));
  };
  for (int step = 0; step < 150; ++step) {
    loss(data(group.rank())).backward();
    const c10::NoGradGuard no_grad;
    const GradientBucket bucket = bucket_of(net);
    bucket.flat.copy_(hook.mean(bucket, group));
    for (size_t i = 0; i < net.size(); ++i) net[i].sub_(bucket.gradients[i], 0.2).mutable_grad().reset();
  }
  const c10::NoGradGuard no_grad;
  const at::Tensor last = (loss(data(0)) + loss(data(1))) / 2;
  expect_same_on_all_ranks(last, group, hook.describe());
  return last.item<double>();
}

/// The cases of tools/goldens/parallel.py.
std::map<std::string, MakeHook> golden_hooks() {
  return {
      {"fp16", [] { return fp16_hook(); }},
      {"bf16", [] { return bf16_hook(); }},
      {"rank1", [] { return power_sgd_hook({.rank = 1, .start_step = 2}); }},
      {"rank2_cold",
       [] { return power_sgd_hook({.rank = 2, .start_step = 2, .min_compression_rate = 1, .warm_start = false}); }},
      {"rank2_batched",
       [] {
         return power_sgd_hook({.rank = 2, .start_step = 2, .min_compression_rate = 1, .batch_same_shapes = true});
       }},
      {"rank3", [] { return power_sgd_hook({.rank = 3, .start_step = 2, .min_compression_rate = 1}); }},
      {"no_feedback",
       [] {
         return power_sgd_hook({.rank = 1, .start_step = 2, .error_feedback = false, .epsilon = 1e-3, .seed = 7});
       }},
  };
}

/// The numbers of its tensors are 10 · bucket + position.
Shapes golden_shapes() {
  Shapes shapes(13, {1});
  for (const size_t i : {0, 10, 12}) shapes[i] = {12, 10};
  shapes[1] = {17}, shapes[2] = {16, 3, 2, 2}, shapes[11] = {9, 15};
  return shapes;
}

}  // namespace

TEST(GradientHooks, EqualPythonsOverTwelveSteps) {
  const io::SafetensorsFile golden(BELLOWS_SOURCE_DIR "/tests/goldens/parallel/hooks.safetensors");
  run_ranks(2, [&](const comm::Group& group) {
    for (const auto& [name, make] : golden_hooks()) {
      for (const auto& [type_name, type] : {std::pair{"float64", at::kDouble}, std::pair{"float32", at::kFloat}}) {
        const bool cast = name == "fp16" || name == "bf16";
        const double tolerance = cast ? 0 : type == at::kDouble ? 1e-10 : 1e-4;
        const Gradients gradients(golden_shapes(), type);
        const auto hook = make();
        for (int step = 0; step < 12; ++step) {
          for (const int64_t index : {0, 1}) {
            const auto members = index == 0 ? std::vector<size_t>{0, 1, 2} : std::vector<size_t>{10, 11, 12};
            const at::Tensor mean = hook->mean(gradients.bucket(step, group.rank(), members, index, index == 1), group);
            if (step != 2 && step != 11) continue;
            const std::string entry = c10::str(name, ".", type_name, ".", step, ".", index);
            EXPECT_LE(largest(mean - golden.tensor(entry)), tolerance) << entry;
          }
        }
      }
    }
  });
}

TEST(GradientHooks, FeedBackWhatTheyLeftOut) {
  // All that was ever sent, and what is still owed, is all that there was: also when buckets are made anew.
  run_ranks(3, [](const comm::Group& group) {
    for (const auto& hook : {int8_hook(), top_k_hook({.ratio = 0.03}), power_sgd_hook({.start_step = 0})}) {
      const Gradients gradients({{12, 10}, {17}, {16, 3}}, at::kFloat);
      const auto none = [] { return std::vector<at::Tensor>{at::zeros({120}), at::zeros({17}), at::zeros({48})}; };
      const auto all = none(), sent = none();
      for (int step = 0; step < 8; ++step) {
        const std::vector<std::vector<size_t>> first = {{0, 1}, {2}}, later = {{2}, {1, 0}};
        for (const size_t index : {0, 1}) {
          const auto& members = (step == 0 ? first : later)[index];
          const GradientBucket bucket =
              gradients.bucket(step, group.rank(), members, static_cast<int64_t>(index), index == 1);
          for (size_t i = 0; i < members.size(); ++i) all[members[i]].add_(bucket.gradients[i].flatten());
          bucket.flat.copy_(hook->mean(bucket, group));
          for (size_t i = 0; i < members.size(); ++i) sent[members[i]].add_(bucket.gradients[i].flatten());
        }
      }
      const NamedTensors state = hook->state();
      EXPECT_EQ(state[0].first, "error.0");
      const at::Tensor owed =
          comm::all_reduce(at::cat({state[0].second, state[1].second, state[2].second}), group, comm::Reduce::mean);
      EXPECT_GT(largest(owed), 1e-3) << hook->describe();
      const at::Tensor there_was = comm::all_reduce(at::cat(all), group, comm::Reduce::mean);
      EXPECT_LE(largest(there_was - at::cat(sent) - owed), 1e-4) << hook->describe();
    }
  });
}

TEST(GradientHooks, GoOnFromTheirState) {
  run_ranks(2, [](const comm::Group& group) {
    for (const auto& [name, make] : all_hooks()) {
      const Gradients gradients(odd_shapes, at::kFloat), later(odd_shapes, at::kFloat);
      const auto expected = means_of(*make(), gradients, group, 0, 6);
      auto hook = make();
      means_of(*hook, gradients, group, 0, 3);
      const NamedTensors state = hook->state();
      means_of(*hook, gradients, group, 3, 4);  // what was saved does not change
      hook = make();
      hook->restore(state);
      const auto means = means_of(*hook, later, group, 3, 6);
      for (size_t i = 0; i < means.size(); ++i) EXPECT_TRUE(means[i].equal(expected[i + 3])) << name << " " << i;
    }
  });
}

TEST(GradientHooks, WithFeedbackTrainAsFarAsTheMean) {
  run_ranks(2, [](const comm::Group& group) {
    const double exact_loss = loss_after_training(*all_reduce_hook(), group);
    const std::vector<std::pair<double, std::shared_ptr<GradientHook>>> hooks = {
        {1.01, int8_hook()}, {1.2, top_k_hook({.ratio = 0.1})}, {1.2, power_sgd_hook({.start_step = 10})}};
    for (const auto& [times, hook] : hooks) {
      const double loss = loss_after_training(*hook, group);
      EXPECT_LE(loss, exact_loss * times) << hook->describe() << ": " << loss << " beside " << exact_loss;
    }
    EXPECT_LT(exact_loss, 0.05);
  });
}

}  // namespace bellows::parallel::testing
