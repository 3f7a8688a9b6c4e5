#pragma once

#include <ATen/ATen.h>
#include <c10/util/accumulate.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "bellows/checkpoint/sharded.h"
#include "tests/checkpoint/support.h"
#include "tests/parallel/ranks.h"

namespace bellows::checkpoint {

using parallel::testing::run_ranks;

/// Without generators, which the ranks' threads would share.
inline at::Tensor noise(const std::vector<int64_t>& sizes) {
  return at::arange(c10::multiply_integers(sizes), at::kDouble)
      .mul(12.9898)
      .sin_()
      .mul_(437)
      .view(sizes)
      .to(at::kFloat);
}

/// Something of everything: types, strides, an empty tensor, a scalar, large ones that are cut.
inline NamedTensors sample_wholes() {
  return {{"conv.weight", noise({4, 3, 5, 6}).contiguous(at::MemoryFormat::ChannelsLast)},
          {"fc.weight", noise({300, 401})},
          {"emb.weight", noise({10, 7}).to(at::kBFloat16)},
          {"fc.m", noise({97, 103}).to(at::kDouble)},
          {"col", noise({6, 11}).to(at::kLong)},
          {"count", at::scalar_tensor(42, at::kLong)},
          {"nothing", at::empty({0, 3})},
          {"flags", noise({5}) > 0},
          {"transposed", noise({200, 150}).t()},
          {"half", noise({3, 2, 5}).to(at::kHalf)}};
}

enum class Kind { whole, run, rows, columns };
constexpr int kinds = 4;

/// What a rank holds: a run of elements, a box of rows, a box of columns, or all.
inline comm::ShardSpec spec_of(const at::Tensor& whole, Kind kind, int rank, int ranks) {
  const auto part = [&](int64_t size, int who) { return size * who / ranks; };
  const std::vector<int64_t> sizes = whole.sizes().vec();
  const int64_t numel = whole.numel();
  comm::ShardSpec spec = comm::ShardSpec::whole(sizes);
  if (kind == Kind::run) {
    spec = comm::ShardSpec::run(sizes, part(numel, rank), part(numel, rank + 1) - part(numel, rank));
  } else if (kind != Kind::whole && whole.dim() > 0) {
    const size_t dim = kind == Kind::columns && whole.dim() > 1 ? 1 : 0;
    spec.offset[dim] = part(sizes[dim], rank);
    spec.length[dim] = part(sizes[dim], rank + 1) - spec.offset[dim];
  }
  return spec;
}

inline at::Tensor local_of(const at::Tensor& whole, const comm::ShardSpec& spec) {
  if (spec.offset.size() != static_cast<size_t>(whole.dim()))
    return whole.contiguous().view({-1}).narrow(0, spec.offset[0], spec.length[0]).clone();
  at::Tensor local = whole;
  for (int64_t dim = 0; dim < whole.dim(); ++dim)
    local = local.narrow(dim, spec.offset[static_cast<size_t>(dim)], spec.length[static_cast<size_t>(dim)]);
  return local.clone();
}

/// Tensor number i is held as kind (i + shift).
inline Parts sample_parts(const NamedTensors& wholes, int shift, int rank, int ranks) {
  Parts parts;
  for (size_t i = 0; i < wholes.size(); ++i) {
    const comm::ShardSpec spec =
        spec_of(wholes[i].second, static_cast<Kind>((static_cast<int>(i) + shift) % kinds), rank, ranks);
    parts.push_back({wholes[i].first, local_of(wholes[i].second, spec), spec});
  }
  return parts;
}

inline ShardedState sample_sharded(int shift, int rank, int ranks) {
  const NamedTensors wholes = sample_wholes();
  return {.model = sample_parts(wholes, shift, rank, ranks),
          .optimizer = sample_parts(wholes, shift + 1, rank, ranks),
          .extra = sample_parts({{"ema", wholes[1].second + 1}}, shift, rank, ranks),
          .rng = {{"cpu", at::full({16}, rank, at::kByte)}},
          .step = 1200,
          .epoch = 3,
          .batch = 17,
          .consumed = 4711,
          .recipe = "lr: 0.1  # über alles\n",
          .environment = R"({"threads": 2})"};
}

/// The same parts with other numbers in them, and nothing else.
inline ShardedState emptied(ShardedState state) {
  for (Parts* parts : {&state.model, &state.optimizer, &state.extra}) {
    for (Part& part : *parts) part.local = at::zeros_like(part.local);
  }
  return {.model = state.model, .optimizer = state.optimizer, .extra = state.extra};
}

inline void expect_equal(const Parts& a, const Parts& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].name, b[i].name);
    EXPECT_EQ(a[i].local.strides(), b[i].local.strides()) << a[i].name;
    EXPECT_TRUE(at::equal(a[i].local, b[i].local)) << a[i].name;
  }
}

inline void expect_equal(const ShardedState& a, const ShardedState& b) {
  expect_equal(a.model, b.model);
  expect_equal(a.optimizer, b.optimizer);
  expect_equal(a.extra, b.extra);
  EXPECT_EQ(a.step, b.step);
  EXPECT_EQ(a.epoch, b.epoch);
  EXPECT_EQ(a.batch, b.batch);
  EXPECT_EQ(a.consumed, b.consumed);
  EXPECT_EQ(a.recipe, b.recipe);
  EXPECT_EQ(a.environment, b.environment);
}

/// What every rank says of each of the actions, which fail on all of them, one after the other; a failure where one does
/// not, or ranks differ.
using RankAction = std::function<void(const comm::Group&)>;
inline std::vector<std::string> errors_of_ranks(int ranks, const std::vector<RankAction>& actions) {
  std::vector<std::vector<std::string>> said(static_cast<size_t>(ranks));
  run_ranks(ranks, [&](const comm::Group& group) {
    for (const RankAction& action : actions)
      said[static_cast<size_t>(group.rank())].push_back(error_of([&] { action(group); }));
  });
  for (const auto& one : said) EXPECT_EQ(one, said[0]) << "the ranks do not say the same";
  for (const std::string& message : said[0]) EXPECT_NE(message, "");
  return said[0];
}

inline std::string error_of_ranks(int ranks, const RankAction& action) {
  return errors_of_ranks(ranks, {action})[0];
}

inline std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace bellows::checkpoint
