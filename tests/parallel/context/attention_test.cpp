#include <gmock/gmock.h>

#include <cmath>
#include <limits>
#include <map>

#include "bellows/parallel/context/context_exchange.h"
#include "bellows/tap/allocator.h"
#include "tests/parallel/context/context_support.h"

// Attention over a divided sequence, compared with one process.
namespace bellows::parallel::testing::context {
namespace {

enum class Mask { none, keys, added, own_keys };

struct Case {
  ContextMethod method = ContextMethod::ring;
  bool causal = false, zigzag = true;
  Mask mask = Mask::none;
  double dropout = 0;
  int64_t key_heads = 12, keys = 24, value_width = 4;
  std::optional<double> scale = {};
  at::ScalarType dtype = at::kDouble;
  double tolerance = 1e-9;
};

constexpr int64_t samples = 3, head_count = 12, token_count = 24, head_width = 4;

/// The tensors of the complete sequence. They have the values of `dtype`.
struct Sequence {
  explicit Sequence(const Case& one)
      : query(drawn({samples, head_count, token_count, head_width}, 1).to(one.dtype).to(at::kDouble)),
        key(drawn({samples, one.key_heads, one.keys, head_width}, 2).to(one.dtype).to(at::kDouble)),
        value(drawn({samples, one.key_heads, one.keys, one.value_width}, 3).to(one.dtype).to(at::kDouble)),
        weight(drawn({samples, head_count, token_count, one.value_width}, 4).to(one.dtype).to(at::kDouble)) {
    if (one.mask == Mask::none) return;
    mask = at::ones({samples, 1, 1, one.keys}, at::kBool);
    mask[0].slice(2, one.keys - 7).fill_(false);
    mask[1].slice(2, 0, 5).fill_(false);  // with a causal mask, the first queries see no key
    mask[2].fill_(false);
    if (one.mask == Mask::added) {
      const double hidden = -std::numeric_limits<double>::infinity();
      mask = drawn({samples, head_count, 1, one.keys}, 5).masked_fill(mask.logical_not(), hidden);
    }
  }
  at::Tensor query, key, value, weight, mask;
};

/// Attention of one process, in fp64.
at::Tensor expected_attention(const Sequence& all, const Case& one) {
  const double hidden = -std::numeric_limits<double>::infinity();
  const int64_t times = head_count / one.key_heads;
  const double scale = one.scale.value_or(1 / std::sqrt(static_cast<double>(head_width)));
  at::Tensor scores = at::matmul(all.query * scale, all.key.repeat_interleave(times, 1).transpose(-2, -1));
  if (all.mask.defined())
    scores = one.mask == Mask::added ? scores + all.mask : scores.masked_fill(all.mask.logical_not(), hidden);
  if (one.causal)
    scores = scores.masked_fill(at::ones({token_count, one.keys}, at::kBool).tril().logical_not(), hidden);
  at::manual_seed(mask_seed);
  const at::Tensor weights = at::dropout(at::_safe_softmax(scores, -1), one.dropout, one.dropout > 0);
  return at::matmul(weights, all.value.repeat_interleave(times, 1));
}

ContextAttentionOptions options_of(const Case& one, const Sequence& all, const comm::Group& group) {
  const SequenceLayout layout{.ranks = group.size(), .zigzag = one.zigzag};
  at::Tensor mask = all.mask;
  if (one.mask == Mask::own_keys) mask = part_of_rank(mask, 3, group.rank(), layout);
  if (one.mask == Mask::added) mask = mask.to(one.dtype);
  return {.mask = mask,
          .dropout = one.dropout,
          .causal = one.causal,
          .scale = one.scale,
          .grouped = one.key_heads != head_count,
          .method = one.method,
          .zigzag = one.zigzag,
          .generator = at::detail::createCPUGenerator(mask_seed)};
}

void expect_near(const at::Tensor& got, const at::Tensor& expected, double tolerance, const char* what) {
  ASSERT_EQ(got.sizes(), expected.sizes()) << what;
  const double largest = std::max(1.0, expected.abs().max().item<double>());
  EXPECT_LE((got.to(at::kDouble) - expected).abs().max().item<double>(), tolerance * largest) << what;
}

/// Compares the output and all gradients.
void expect_like_one_process(const Case& one, int ranks) {
  SCOPED_TRACE(c10::str("method ", static_cast<int>(one.method), ", causal ", one.causal, ", zigzag ", one.zigzag,
                        ", mask ", static_cast<int>(one.mask), ", dropout ", one.dropout, ", ", one.dtype, ", ranks ",
                        ranks));
  Sequence all(one);
  for (at::Tensor* x : {&all.query, &all.key, &all.value}) x->requires_grad_();
  const at::Tensor expected = expected_attention(all, one);
  expected.backward(all.weight);
  run_ranks(ranks, [&](const comm::Group& group) {
    const SequenceLayout layout{.ranks = group.size(), .zigzag = one.zigzag};
    const auto own = [&](const at::Tensor& x) { return part_of_rank(x.detach(), 2, group.rank(), layout); };
    const auto input = [&](const at::Tensor& x) { return own(x).to(one.dtype).clone().requires_grad_(); };
    const at::Tensor query = input(all.query), key = input(all.key), value = input(all.value);
    const at::Tensor y = context_attention(query, key, value, group, options_of(one, all, group));
    EXPECT_EQ(y.scalar_type(), one.dtype);
    y.backward(own(all.weight).to(one.dtype));
    expect_near(y, own(expected), one.tolerance, "output");
    expect_near(query.grad(), own(all.query.grad()), one.tolerance, "gradient of the query");
    expect_near(key.grad(), own(all.key.grad()), one.tolerance, "gradient of the key");
    expect_near(value.grad(), own(all.value.grad()), one.tolerance, "gradient of the value");
  });
}

class ContextAttention : public ::testing::TestWithParam<ContextMethod> {};
INSTANTIATE_TEST_SUITE_P(Methods, ContextAttention,
                         ::testing::Values(ContextMethod::ring, ContextMethod::all_to_all, ContextMethod::gather));

TEST_P(ContextAttention, EqualsOneProcess) {
  for (const int ranks : {1, 2, 3, 4}) {
    for (const bool causal : {false, true})
      for (const bool zigzag : {false, true})
        expect_like_one_process({.method = GetParam(), .causal = causal, .zigzag = zigzag}, ranks);
  }
}

TEST_P(ContextAttention, MasksOfKeys) {
  for (const Mask mask : {Mask::keys, Mask::added, Mask::own_keys}) {
    for (const bool causal : {false, true})
      expect_like_one_process({.method = GetParam(), .causal = causal, .mask = mask}, 2);
    expect_like_one_process({.method = GetParam(), .zigzag = false, .mask = mask}, 4);
  }
}

TEST_P(ContextAttention, DrawsTheDropoutMaskOfOneProcess) {
  for (const int ranks : {1, 2, 3}) {
    expect_like_one_process({.method = GetParam(), .dropout = 0.3}, ranks);
    expect_like_one_process({.method = GetParam(), .causal = true, .mask = Mask::keys, .dropout = 0.3}, ranks);
  }
  expect_like_one_process({.method = GetParam(), .dropout = 1}, 2);
}

TEST_P(ContextAttention, CrossAttentionSharedHeadsAndWideValues) {
  expect_like_one_process({.method = GetParam(), .mask = Mask::keys, .keys = 12}, 2);
  expect_like_one_process({.method = GetParam(), .causal = true, .key_heads = 4, .scale = 0.7}, 2);
  expect_like_one_process({.method = GetParam(), .dropout = 0.2, .key_heads = 4}, 2);
  expect_like_one_process({.method = GetParam(), .causal = true, .value_width = 6}, 3);
}

TEST_P(ContextAttention, InLowerPrecision) {
  for (const bool causal : {false, true}) {
    const Mask mask = causal ? Mask::none : Mask::keys;
    expect_like_one_process(
        {.method = GetParam(), .causal = causal, .mask = mask, .dtype = at::kFloat, .tolerance = 1e-5}, 4);
    expect_like_one_process(
        {.method = GetParam(), .causal = causal, .mask = mask, .dtype = at::kBFloat16, .tolerance = 3e-2}, 2);
  }
}

TEST(ContextAttentionReference, IsThatOfLibtorch) {
  const Case one{.causal = true};
  const Sequence all(one);
  expect_near(at::scaled_dot_product_attention(all.query, all.key, all.value, {}, 0, true),
              expected_attention(all, one), 1e-12, "output");
}

TEST(SequenceLayout, DividesAndRestores) {
  const at::Tensor x = at::arange(24).view({2, 12});
  EXPECT_TRUE(token_positions(12, 1, {.ranks = 3}).equal(at::tensor({2, 3, 8, 9})));
  EXPECT_TRUE(token_positions(12, 1, {.ranks = 3, .zigzag = false}).equal(at::tensor({4, 5, 6, 7})));
  for (const bool zigzag : {false, true}) {
    for (const int ranks : {1, 2, 3}) {
      const SequenceLayout layout{.ranks = ranks, .zigzag = zigzag};
      std::vector<at::Tensor> parts;
      for (int rank = 0; rank < ranks; ++rank) parts.push_back(part_of_rank(x, 1, rank, layout));
      EXPECT_TRUE(in_token_order(at::cat(parts, 1), 1, layout).equal(x));
    }
  }
}

TEST(SequenceLayout, BlocksCoverTheVisibleKeysOnce) {
  for (const bool zigzag : {false, true}) {
    const SequenceLayout layout{.ranks = 4, .zigzag = zigzag};
    at::Tensor counts = at::zeros({16, 16}, at::kLong);
    std::vector<int64_t> work(4);
    for (int query_rank = 0; query_rank < 4; ++query_rank) {
      for (int key_rank = 0; key_rank < 4; ++key_rank) {
        const auto block = visible_block(layout, query_rank, key_rank, true, 4, 4);
        if (!block) continue;
        at::Tensor seen = at::ones({block->queries, block->keys}, at::kLong);
        if (block->causal) seen = seen.tril();
        const at::Tensor rows = token_positions(16, query_rank, layout).narrow(0, block->query_begin, block->queries);
        const at::Tensor columns = token_positions(16, key_rank, layout).narrow(0, 0, block->keys);
        counts.index_put_({rows.unsqueeze(1), columns.unsqueeze(0)}, seen, /*accumulate=*/true);
        work[static_cast<size_t>(query_rank)] += seen.sum().item<int64_t>();
      }
    }
    EXPECT_TRUE(counts.equal(at::ones({16, 16}, at::kLong).tril())) << "zigzag " << zigzag;
    if (zigzag) {
      EXPECT_THAT(work, ::testing::Each(work[0]));
    }
  }
}

TEST(ContextExchange, GatherHasTheGradientOfTheSumOfLosses) {
  const at::Tensor whole = drawn({2, 12}, 1), weights = drawn({3, 2, 12}, 2);
  run_ranks(3, [&](const comm::Group& group) {
    const ContextParallel context(group);
    EXPECT_EQ(context.describe(), "3 ranks, ring, zig-zag");
    const at::Tensor own = context.slice(whole, 1).requires_grad_();
    const at::Tensor all = context.gather(own, -1);
    EXPECT_TRUE(all.equal(whole));
    (all * weights[group.rank()]).sum().backward();
    EXPECT_TRUE(at::allclose(own.grad(), context.slice(weights.sum(0), 1), 1e-12, 1e-12));
  });
}

TEST(ContextCost, BytesFollowTheFormula) {
  constexpr int64_t element = 4, keys = 2 * 1 * 4 * 8 * 16 * element;  // key and value: [1, 4, 8, 16] in fp32
  for (const int ranks : {2, 4}) {
    run_ranks(ranks, [&](const comm::Group& group) {
      const auto bytes = [&](const char* name) { return comm::traffic(group)[name].bytes; };
      const auto part = [&](uint64_t seed) { return drawn({1, 4, 8, 16}, seed).to(at::kFloat).requires_grad_(); };
      at::Tensor y = context_attention(part(1), part(2), part(3), group, {.causal = true});
      EXPECT_EQ(bytes("send"), (ranks - 1) * keys);
      y.sum().backward();
      EXPECT_EQ(bytes("send"), 3 * (ranks - 1) * keys);
      EXPECT_EQ(bytes("receive"), bytes("send"));
      EXPECT_EQ(bytes("all_to_all"), 0);
      y = context_attention(part(1), part(2), part(3), group, {.method = ContextMethod::all_to_all});
      EXPECT_EQ(bytes("all_to_all"), 2 * keys);  // queries, keys, values and outputs
      y.sum().backward();
      EXPECT_EQ(bytes("all_to_all"), 4 * keys);
      EXPECT_EQ(bytes("all_gather"), 2 * 8);
    });
  }
}

/// Counts the memory that each thread has allocated.
class MemoryOfThreads final : public tap::AllocationListener {
 public:
  void on_allocation(const tap::AllocationEvent& event) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (event.bytes > 0) {
      owners_[event.address] = std::this_thread::get_id();
      Bytes& own = bytes_[std::this_thread::get_id()];
      own.peak = std::max(own.peak, own.current += event.bytes);
    } else if (const auto found = owners_.find(event.address); found != owners_.end()) {
      bytes_[found->second].current += event.bytes;
      owners_.erase(found);
    }
  }
  /// The peak of this thread since the last call.
  int64_t take_peak() {
    const std::lock_guard<std::mutex> lock(mutex_);
    Bytes& own = bytes_[std::this_thread::get_id()];
    return std::exchange(own.peak, own.current);
  }

 private:
  struct Bytes {
    int64_t current = 0, peak = 0;
  };
  std::mutex mutex_;
  std::map<const void*, std::thread::id> owners_;
  std::map<std::thread::id, Bytes> bytes_;
};

/// Peaks of forward and of backward in bytes, of the first rank, over the memory of its inputs.
std::pair<int64_t, int64_t> peaks_of_ring(int ranks) {
  const auto memory = std::make_shared<MemoryOfThreads>();
  std::pair<int64_t, int64_t> peaks;
  run_ranks(ranks, [&](const comm::Group& group) {
    const auto part = [&](uint64_t seed) {
      return at::randn({8, 4, 512, 64}, at::detail::createCPUGenerator(seed), at::kFloat);
    };
    const at::Tensor query = part(1).requires_grad_(), key = part(2).requires_grad_(), value = part(3).requires_grad_();
    // In the layout of the output. Libtorch's kernel copies other gradients.
    const at::Tensor gradient =
        at::randn({8, 512, 4, 64}, at::detail::createCPUGenerator(4), at::kFloat).transpose(1, 2);
    comm::barrier(group);
    const auto guard = group.rank() == 0 ? std::make_unique<tap::AllocationGuard>(memory) : nullptr;
    comm::barrier(group);
    const at::Tensor y = context_attention(query, key, value, group, {});
    const int64_t forward = memory->take_peak();
    y.backward(gradient);
    if (group.rank() == 0) peaks = {forward, memory->take_peak()};
    comm::barrier(group);
  });
  return peaks;
}

TEST(ContextMemory, OfTheRingDoesNotDependOnTheNumberOfRanks) {
  constexpr double tensor = 8 * 4 * 512 * 64 * 4, rows = tensor / 64;  // one number per query: `rows` bytes
  for (const int ranks : {2, 4}) {
    const auto [forward, backward] = peaks_of_ring(ranks);
    // Two blocks of keys and values, the output, and the output of a block.
    EXPECT_NEAR(static_cast<double>(forward), 6 * tensor + 4 * rows, 0.05 * 6 * tensor) << ranks;
    // The output; two blocks; gradients of the query, of this rank's keys, and of two blocks; those of a block.
    EXPECT_NEAR(static_cast<double>(backward), 15 * tensor + rows, 0.05 * 15 * tensor) << ranks;
  }
}

TEST(ContextAttentionLong, SixteenThousandTokens) {
  constexpr int64_t length = 16384, step = 509;
  const auto numbers = [](uint64_t seed) { return drawn({1, 1, length, 8}, seed).to(at::kFloat); };
  const at::Tensor query = numbers(1), key = numbers(2), value = numbers(3);
  for (const bool causal : {false, true}) {
    run_ranks(2, [&](const comm::Group& group) {
      const SequenceLayout layout{.ranks = 2};
      const auto own = [&](const at::Tensor& x) { return part_of_rank(x, 2, group.rank(), layout); };
      const at::Tensor y = context_attention(own(query), own(key), own(value), group, {.causal = causal});
      const at::Tensor rows = at::arange(0, length / 2, step);
      const at::Tensor positions = token_positions(length, group.rank(), layout).index({rows});
      at::Tensor scores =
          at::matmul(query.to(at::kDouble).index_select(2, positions), key.to(at::kDouble).transpose(-2, -1)) /
          std::sqrt(8.0);
      if (causal)
        scores =
            scores.masked_fill(positions.unsqueeze(1).lt(at::arange(length)), -std::numeric_limits<double>::infinity());
      const at::Tensor expected = at::matmul(scores.softmax(-1), value.to(at::kDouble));
      expect_near(y.index_select(2, rows), expected, 1e-5, "sampled rows");
    });
  }
}

}  // namespace
}  // namespace bellows::parallel::testing::context
