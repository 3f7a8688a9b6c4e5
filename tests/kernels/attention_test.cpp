#include "bellows/kernels/attention.h"

#include <gtest/gtest.h>

#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <thread>

#include "bellows/kernels/scratch.h"
#include "tests/nn/targets.h"

namespace bellows::kernels::testing {
namespace {

using at::Tensor;

template <class T>
Matrices<const T> matrices(const Tensor& t) {
  return {t.const_data_ptr<T>(), t.stride(0), t.stride(1), t.size(1), t.stride(2), t.stride(3)};
}

struct Sizes {
  int64_t batch, heads, rows, columns, width, value_width;
};

/// The operands of attention in tensors [batch, heads, …]; queries, keys and values are parts of packed projections.
struct Case {
  explicit Case(const Sizes& s) : sizes(s) {
    const auto heads = [&](int64_t length, int64_t width) {
      return torch::randn({s.batch, length, 3, s.heads, width}).select(2, 1).transpose(1, 2);
    };
    query = heads(s.rows, s.width);
    key = heads(s.columns, s.width).transpose(2, 3);
    value = heads(s.columns, s.value_width);
    gradient = heads(s.rows, s.value_width);
    dropout = torch::bernoulli(torch::full({s.batch, s.heads, s.rows, s.columns}, 0.8)) / 0.8;
    added = torch::randn({s.rows, s.columns});
    replaced = torch::rand({s.batch, 1, 1, s.columns}) < 0.3;
    replaced.select(3, 0).fill_(false);
    const std::vector<int64_t> all{s.batch, s.heads, s.rows, s.columns};
    added = added.expand(all);
    replaced = replaced.expand(all);
  }

  Attention attention(bool with_dropout) const {
    Attention of{.batch = sizes.batch * sizes.heads,
                 .rows = sizes.rows,
                 .columns = sizes.columns,
                 .width = sizes.width,
                 .value_width = sizes.value_width,
                 .query = matrices<float>(query),
                 .key = matrices<float>(key),
                 .value = matrices<float>(value),
                 .scale = 0.35F};
    if (with_dropout) of.dropout = matrices<float>(dropout);
    return of;
  }

  Sizes sizes;
  Tensor query, key, value, gradient, dropout, added, replaced;
};

using Results = std::vector<Tensor>;

/// Fills this thread's buffer.
void fill_scratch(float with) {
  constexpr size_t count = 1 << 20;
  std::fill_n(thread_scratch(count), count, with);
}

/// Returns: weights, result, gradients of query, key and value
/// Params: scratch – content of this thread's buffer before each call
Results run(const Case& one, bool dropout, const std::vector<AttentionMask>& masks, bool reference,
            std::optional<float> scratch = {}) {
  const Sizes& s = one.sizes;
  const auto made = [&](int64_t rows, int64_t columns) { return torch::full({s.batch, s.heads, rows, columns}, NAN); };
  Results all{made(s.rows, s.columns), made(s.rows, s.value_width), made(s.rows, s.width), made(s.width, s.columns),
              made(s.columns, s.value_width)};
  const AttentionForward forward{.of = one.attention(dropout),
                                 .masks = masks,
                                 .weights = all[0].data_ptr<float>(),
                                 .result = all[1].data_ptr<float>()};
  if (scratch) fill_scratch(*scratch);
  (reference ? ref::attention_forward : attention_forward)(forward);
  AttentionBackward backward{.of = one.attention(dropout),
                             .weights = all[0].const_data_ptr<float>(),
                             .gradient = matrices<float>(one.gradient),
                             .query_gradient = all[2].data_ptr<float>(),
                             .key_gradient = all[3].data_ptr<float>(),
                             .value_gradient = all[4].data_ptr<float>()};
  for (const AttentionMask& mask : masks) {
    if (!mask.added.data) backward.masks.push_back({.replaced = mask.replaced, .inverted = mask.inverted});
  }
  if (scratch) fill_scratch(*scratch);
  (reference ? ref::attention_backward : attention_backward)(backward);
  return all;
}

class AttentionKernel : public ::testing::TestWithParam<Sizes> {};

TEST_P(AttentionKernel, EqualsTheReference) {
  torch::manual_seed(3);
  const Case one(GetParam());
  const AttentionMask added{.added = matrices<float>(one.added)},
      replaced{.replaced = matrices<bool>(one.replaced), .value = -INFINITY};
  for (const bool dropout : {false, true}) {
    for (const auto& masks : {std::vector<AttentionMask>{}, {added}, {replaced}, {added, replaced}}) {
      const Results ours = run(one, dropout, masks, false), exact = run(one, dropout, masks, true);
      for (size_t i = 0; i < ours.size(); ++i)
        EXPECT_TRUE(at::allclose(ours[i], exact[i], 1e-5, 1e-5)) << i << ": " << (ours[i] - exact[i]).abs().max();
    }
  }
}

TEST_P(AttentionKernel, PlacesTheResult) {
  torch::manual_seed(4);
  const Case one(GetParam());
  const Sizes& s = one.sizes;
  for (const bool reference : {false, true}) {
    const Tensor all = torch::full({s.batch, s.rows, s.heads, s.value_width + 3}, NAN);
    const AttentionForward forward{.of = one.attention(false),
                                   .placed = {.data = all.data_ptr<float>(),
                                              .outer = all.stride(0),
                                              .inner = all.stride(2),
                                              .inner_size = s.heads,
                                              .row = all.stride(1)}};
    (reference ? ref::attention_forward : attention_forward)(forward);
    EXPECT_TRUE(all.narrow(3, 0, s.value_width).transpose(1, 2).equal(run(one, false, {}, reference)[1]));
    EXPECT_TRUE(all.narrow(3, s.value_width, 3).isnan().all().item<bool>());
  }
}

TEST_P(AttentionKernel, HasTheSameBitsForEachNumberOfThreads) {
  torch::manual_seed(3);
  const Case one(GetParam());
  const int threads = at::get_num_threads();
  const Results many = run(one, true, {}, false);
  at::set_num_threads(1);
  const Results single = run(one, true, {}, false);
  at::set_num_threads(threads);
  for (size_t i = 0; i < many.size(); ++i) EXPECT_TRUE(at::equal(many[i], single[i])) << i;
}

TEST_P(AttentionKernel, DoesNotReadOldContentOfScratch) {
  torch::manual_seed(3);
  const Case one(GetParam());
  const AttentionMask added{.added = matrices<float>(one.added)},
      replaced{.replaced = matrices<bool>(one.replaced), .value = -INFINITY};
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  for (const bool dropout : {false, true}) {
    for (const auto& masks : {std::vector<AttentionMask>{}, {added, replaced}}) {
      const Results zeros = run(one, dropout, masks, false, 0.0F), nan = run(one, dropout, masks, false, NAN);
      for (size_t i = 0; i < zeros.size(); ++i) EXPECT_TRUE(at::equal(zeros[i], nan[i])) << i << " dropout " << dropout;
    }
  }
  at::set_num_threads(threads);
}

// Each instruction set has vectors of another size. A new thread has a buffer of exactly the size that the kernels
// request, so that the address sanitizer finds accesses behind it.
TEST_P(AttentionKernel, EqualsTheReferenceOnEachInstructionSet) {
  torch::manual_seed(3);
  const Case one(GetParam());
  const AttentionMask added{.added = matrices<float>(one.added)};
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  const Results exact = run(one, true, {added}, true);
  nn::for_each_target([&] {
    hwy::GetChosenTarget().DeInit();
    Results ours;
    std::thread([&] { ours = run(one, true, {added}, false); }).join();
    for (size_t i = 0; i < ours.size(); ++i)
      EXPECT_TRUE(at::allclose(ours[i], exact[i], 1e-5, 1e-5)) << i << ": " << (ours[i] - exact[i]).abs().max();
  });
  hwy::GetChosenTarget().DeInit();
  at::set_num_threads(threads);
}

INSTANTIATE_TEST_SUITE_P(Shapes, AttentionKernel,
                         ::testing::Values(Sizes{1, 1, 1, 1, 1, 1}, Sizes{2, 3, 5, 7, 8, 8}, Sizes{1, 2, 65, 65, 8, 8},
                                           Sizes{3, 1, 17, 33, 13, 20}, Sizes{1, 2, 130, 50, 64, 64},
                                           Sizes{1, 1, 70, 513, 32, 16}));

TEST(AttentionKernelTest, RowsWithoutLogitsAreNan) {
  torch::manual_seed(3);
  Case one({1, 1, 3, 5, 8, 8});
  one.added = torch::zeros({1, 1, 3, 5});
  one.added.select(2, 1).fill_(-INFINITY);
  const Results ours = run(one, false, {{.added = matrices<float>(one.added)}}, false);
  EXPECT_TRUE(ours[1].select(2, 1).isnan().all().item<bool>());
  EXPECT_FALSE(ours[1].select(2, 0).isnan().any().item<bool>());
  EXPECT_FALSE(ours[1].select(2, 2).isnan().any().item<bool>());
}

TEST(AttentionKernelTest, RowsWithoutLogitsAreZeroIfAskedFor) {
  torch::manual_seed(3);
  Case one({1, 1, 4, 5, 8, 8});
  one.added = torch::zeros({1, 1, 4, 5});
  one.added.select(2, 1).fill_(-INFINITY);
  one.added.select(2, 2).fill_(-INFINITY);
  one.added[0][0][2][4] = NAN;
  for (const auto& forward : {attention_forward, ref::attention_forward}) {
    const Tensor weights = torch::full({1, 1, 4, 5}, NAN), result = torch::full({1, 1, 4, 8}, NAN);
    forward({.of = one.attention(false),
             .masks = {{.added = matrices<float>(one.added)}},
             .empty_rows_are_zero = true,
             .weights = weights.data_ptr<float>(),
             .result = result.data_ptr<float>()});
    EXPECT_TRUE(result.select(2, 1).eq(0).all().item<bool>());
    EXPECT_TRUE(weights.select(2, 1).eq(0).all().item<bool>());
    EXPECT_TRUE(result.select(2, 2).isnan().all().item<bool>()) << "NaN is not hidden";
    EXPECT_TRUE(at::allclose(weights.select(2, 3).sum(), torch::ones({})));
  }
}

TEST(AttentionKernelTest, ReplacesWhereAnInvertedMaskIsFalse) {
  torch::manual_seed(3);
  Case one({2, 2, 9, 21, 8, 8});
  const AttentionMask plain{.replaced = matrices<bool>(one.replaced), .value = -1};
  const Tensor opposite = one.replaced.contiguous().logical_not();
  const AttentionMask inverted{.replaced = matrices<bool>(opposite), .inverted = true, .value = -1};
  for (const bool reference : {false, true}) {
    const Results expected = run(one, true, {plain}, reference), ours = run(one, true, {inverted}, reference);
    for (size_t i = 0; i < ours.size(); ++i) EXPECT_TRUE(at::equal(ours[i], expected[i])) << i;
  }
}

TEST(AttentionKernelTest, StoresWeightsAfterDropout) {
  torch::manual_seed(3);
  const Case one({2, 2, 9, 21, 8, 8});
  for (const auto& forward : {attention_forward, ref::attention_forward}) {
    const Tensor weights = torch::full({2, 2, 9, 21}, NAN), dropped = weights.clone(),
                 result = torch::empty({2, 2, 9, 8});
    forward({.of = one.attention(true),
             .weights = weights.data_ptr<float>(),
             .dropped = dropped.data_ptr<float>(),
             .result = result.data_ptr<float>()});
    EXPECT_TRUE(at::allclose(dropped, weights * one.dropout));
  }
}

TEST(AttentionKernelTest, NanOfOneLogitReachesItsRowOnly) {
  torch::manual_seed(3);
  Case one({1, 1, 3, 21, 8, 8});
  one.added = torch::zeros({1, 1, 3, 21});
  one.added[0][0][2][20] = NAN;
  const Results ours = run(one, false, {{.added = matrices<float>(one.added)}}, false);
  EXPECT_TRUE(ours[1].select(2, 2).isnan().all().item<bool>());
  EXPECT_FALSE(ours[1].slice(2, 0, 2).isnan().any().item<bool>());
}

TEST(AttentionKernelTest, OnlyComputesWhatIsAskedFor) {
  torch::manual_seed(3);
  const Case one({1, 2, 9, 9, 8, 8});
  const Results all = run(one, true, {}, false);
  const Tensor result = torch::empty_like(all[1]), value = torch::empty_like(all[4]);
  attention_forward({.of = one.attention(true), .result = result.data_ptr<float>()});
  attention_backward({.of = one.attention(true),
                      .weights = all[0].const_data_ptr<float>(),
                      .gradient = matrices<float>(one.gradient),
                      .value_gradient = value.data_ptr<float>()});
  EXPECT_TRUE(at::equal(result, all[1]));
  EXPECT_TRUE(at::equal(value, all[4]));
}

}  // namespace
}  // namespace bellows::kernels::testing
