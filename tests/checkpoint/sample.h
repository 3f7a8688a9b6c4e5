#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "bellows/checkpoint/checkpoint.h"
#include "bellows/checkpoint/rng.h"

namespace bellows::checkpoint {

/// Something of everything: strides, types, an empty tensor, a scalar.
inline State sample_state() {
  at::manual_seed(5);
  const at::Tensor image = at::randn({4, 3, 5, 6});
  return {.model = {{"conv.weight", image.contiguous(at::MemoryFormat::ChannelsLast).requires_grad_(true)},
                    {"fc.weight", at::randn({7, 3}).t()},
                    {"half", at::randn({9}).to(at::kBFloat16)},
                    {"count", at::scalar_tensor(42, at::kLong)},
                    {"nothing", at::empty({0, 3})}},
          .optimizer = {{"state.0.momentum_buffer", at::randn({4, 3, 5, 6}).contiguous(at::MemoryFormat::ChannelsLast)},
                        {"param_groups.0.lr", at::scalar_tensor(0.1, at::kDouble)}},
          .rng = rng_state(),
          .extra = {{"history", at::arange(6, at::kDouble).view({2, 3})}},
          .step = 123456789012,
          .epoch = 3,
          .batch = 17,
          .recipe = "lr: 0.1  # über alles\n",
          .environment = R"({"threads": 2})"};
}

inline void expect_equal(const NamedTensors& a, const NamedTensors& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].first, b[i].first);
    EXPECT_EQ(a[i].second.scalar_type(), b[i].second.scalar_type()) << a[i].first;
    EXPECT_EQ(a[i].second.strides(), b[i].second.strides()) << a[i].first;
    EXPECT_TRUE(at::equal(a[i].second, b[i].second)) << a[i].first;
  }
}

inline void expect_equal(const State& a, const State& b) {
  expect_equal(a.model, b.model);
  expect_equal(a.optimizer, b.optimizer);
  expect_equal(a.rng, b.rng);
  expect_equal(a.extra, b.extra);
  EXPECT_EQ(a.step, b.step);
  EXPECT_EQ(a.epoch, b.epoch);
  EXPECT_EQ(a.batch, b.batch);
  EXPECT_EQ(a.recipe, b.recipe);
  EXPECT_EQ(a.environment, b.environment);
}

}  // namespace bellows::checkpoint
