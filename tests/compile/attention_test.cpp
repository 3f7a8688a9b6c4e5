// Attention in training, fused into kernels.
#include "bellows/compile/attention.h"

#include <gtest/gtest.h>

#include <torch/torch.h>

#include "bellows/compile/compile.h"
#include "tests/compile/distance.h"

namespace bellows::compile_detail::testing {
namespace {

namespace nn = torch::nn;
using at::Tensor;

struct Counted {
  Tensors tensors;
  int forward = 0, backward = 0;  ///< kernels in the program
  std::string text;
};

/// Returns how many kernels of this name the last program has.
int kernels_named(const std::string& text, const std::string& kernel) {
  const size_t at = text.rfind(" × " + kernel + "\n");
  if (at == std::string::npos) return 0;
  const size_t start = text.rfind('\n', at) + 1;
  return std::stoi(text.substr(start, at - start));
}

/// Calls a compiled function until it is followed; returns what the last call left.
Counted run_compiled(const std::function<Tensors()>& function, const BackendOptions& options = {}) {
  const auto backend = std::make_shared<CpuBackend>(options);
  graph::Region region({.record_deferred = true, .backend = backend});
  Counted made;
  for (int call = 0; call < 4; ++call) {
    torch::manual_seed(call);
    region.run([&] { made.tensors = function(); });
  }
  made.text = backend->to_text();
  for (const char* masks : {"", " masked"}) {
    for (const char* dropout : {"", " dropout"}) {
      made.forward += kernels_named(made.text, c10::str("attention", masks, dropout));
      made.backward += kernels_named(made.text, c10::str("attention backward", masks, dropout));
    }
  }
  return made;
}

Tensors run_plain(const std::function<Tensors()>& function) {
  Tensors made;
  for (int call = 0; call < 4; ++call) {
    torch::manual_seed(call);
    made = function();
  }
  return made;
}

void expect_equal(const std::function<Tensors()>& function, int forward, int backward, const std::string& what) {
  const Counted ours = run_compiled(function);
  EXPECT_EQ(ours.forward, forward) << what << ours.text;
  EXPECT_EQ(ours.backward, backward) << what << ours.text;
  EXPECT_LE(furthest(run_plain(function), ours.tensors), 10) << what;
}

/// Attention as people write it, on a packed projection.
struct Handwritten {
  int64_t batch = 3, heads = 4, rows = 13, width = 8;
  double dropout = 0;
  std::function<Tensor(const Tensor&)> scale = [](const Tensor& logits) { return logits / std::sqrt(8.0); };
  std::function<Tensor(const Tensor&)> mask = [](const Tensor& logits) { return logits; };
  at::ScalarType type = at::kFloat;
  bool returns_weights = false;

  /// Returns a training step, which returns the result and all gradients.
  std::function<Tensors()> step() const {
    torch::manual_seed(7);
    const int64_t all = heads * width;
    const Tensor x = torch::randn({batch, rows, all}, type), w = torch::randn({3 * all, all}, type) / 5,
                 target = torch::randn({batch, rows, all}, type);
    return [=, *this] {
      const Tensor input = x.detach().requires_grad_(), weight = w.detach().requires_grad_();
      const Tensor parts = at::linear(input, weight).view({batch, rows, 3, heads, width}).permute({2, 0, 3, 1, 4});
      const Tensor logits = mask(scale(at::matmul(parts[0], parts[1].transpose(-2, -1))));
      Tensor weights = torch::softmax(logits, -1);
      if (dropout > 0) weights = torch::dropout(weights, dropout, true);
      const Tensor result = at::matmul(weights, parts[2]).transpose(1, 2).reshape({batch, rows, all});
      (result * target).sum().backward();
      Tensors made{result.detach(), input.grad(), weight.grad()};
      if (returns_weights) made.push_back(weights.detach());
      return made;
    };
  }
};

TEST(AttentionKernels, ReplaceOneOfEachSize) {
  expect_equal(Handwritten{}.step(), 1, 1, "plain");
  expect_equal(Handwritten{.dropout = 0.3}.step(), 1, 1, "dropout");
  expect_equal(Handwritten{.heads = 1}.step(), 1, 1, "one head");
  expect_equal(Handwritten{.batch = 1}.step(), 1, 1, "one batch");
  expect_equal(Handwritten{.batch = 1, .heads = 2, .rows = 131, .width = 33, .dropout = 0.1}.step(), 1, 1, "long");
  expect_equal(Handwritten{.rows = 64, .width = 64}.step(), 1, 1, "wide");
}

TEST(AttentionKernels, ScaleAsWritten) {
  for (const auto& scale : std::vector<std::function<Tensor(const Tensor&)>>{[](const Tensor& x) { return x; },
                                                                             [](const Tensor& x) { return x * 0.35; },
                                                                             [](const Tensor& x) { return x / 3; }})
    expect_equal(Handwritten{.scale = scale}.step(), 1, 1, "scale");
}

TEST(AttentionKernels, AddMasksOfEachShape) {
  for (const auto& sizes : std::vector<std::vector<int64_t>>{
           {13, 13}, {1, 13}, {3, 1, 1, 13}, {3, 1, 13, 13}, {1, 4, 13, 13}, {3, 4, 13, 13}, {13, 1}}) {
    const Tensor mask = torch::randn(sizes);
    for (const double dropout : {0.0, 0.2}) {
      const Handwritten one{.dropout = dropout, .mask = [&](const Tensor& x) { return x + mask; }};
      expect_equal(one.step(), 1, 1, c10::str(at::IntArrayRef(sizes)));
    }
  }
  const Tensor causal = torch::full({13, 13}, -HUGE_VAL).triu(1);
  expect_equal(Handwritten{.mask = [&](const Tensor& x) { return causal + x; }}.step(), 1, 1, "causal");
}

TEST(AttentionKernels, ReplaceLogits) {
  const Tensor causal = torch::ones({13, 13}, at::kBool).triu(1);
  Tensor padding = torch::zeros({3, 1, 1, 13}, at::kBool);
  padding.slice(3, 9).select(0, 1).fill_(true);
  for (const Tensor& mask : {causal, padding}) {
    expect_equal(Handwritten{.mask = [&](const Tensor& x) { return x.masked_fill(mask, -HUGE_VAL); }}.step(), 1, 1,
                 "inf");
    expect_equal(Handwritten{.dropout = 0.1, .mask = [&](const Tensor& x) { return x.masked_fill(mask, -1e9); }}.step(),
                 1, 1, "number");
    expect_equal(Handwritten{.mask = [&](const Tensor& x) { return x.masked_fill(mask == 0, 0.5); }}.step(), 1, 1,
                 "0.5");
    const Tensor low = torch::scalar_tensor(-1e9);
    expect_equal(Handwritten{.mask = [&](const Tensor& x) { return at::where(mask, low, x); }}.step(), 1, 1, "where");
    expect_equal(Handwritten{.mask = [&](const Tensor& x) { return at::where(mask == 0, x, low); }}.step(), 1, 1,
                 "inverted where");
  }
  expect_equal(
      Handwritten{.mask = [&](const Tensor& x) { return x.masked_fill(causal, -1e9).masked_fill(padding, -2e9); }}
          .step(),
      1, 1, "two");
}

TEST(AttentionKernels, KeepNanOfRowsWithoutLogits) {
  Tensor rows = torch::zeros({13, 13}, at::kBool);
  rows[4].fill_(true);
  const Tensor added = torch::zeros({13, 13}).masked_fill(rows, -HUGE_VAL);
  expect_equal(Handwritten{.mask = [&](const Tensor& x) { return x.masked_fill(rows, -HUGE_VAL); }}.step(), 1, 1,
               "fill");
  expect_equal(Handwritten{.mask = [&](const Tensor& x) { return x + added; }}.step(), 1, 1, "add");
}

TEST(AttentionKernels, StoreWeightsThatAreReturned) {
  expect_equal(Handwritten{.returns_weights = true}.step(), 1, 1, "weights before dropout");
  expect_equal(Handwritten{.dropout = 0.2, .returns_weights = true}.step(), 1, 1, "weights after dropout");
}

/// Returns a training step that calls `attention` with queries, keys and values [2, 3, 13, 8].
std::function<Tensors()> step_of(const std::function<Tensor(const Tensor&, const Tensor&, const Tensor&)>& attention) {
  torch::manual_seed(7);
  const Tensor x = torch::randn({3, 2, 3, 13, 8});
  return [=]() -> Tensors {
    const Tensor all = x.detach().requires_grad_();
    const Tensor result = attention(all[0], all[1], all[2]);
    result.pow(2).sum().backward();
    return {result.detach(), all.grad()};
  };
}

TEST(AttentionKernels, ReplaceBaddbmm) {
  const Tensor mask = torch::randn({13, 13}), unused = torch::full({1}, NAN);
  struct Call {
    Tensor added;
    double beta, alpha;
    int forward;
  };
  for (const Call& call : {Call{mask, 1, 0.3, 1}, Call{unused, 0, 0.3, 1}, Call{mask, 1, 1, 1}, Call{mask, 2, 1, 0}}) {
    const auto attention = [&](const Tensor& q, const Tensor& k, const Tensor& v) {
      const auto heads = [](const Tensor& all) { return all.flatten(0, 1); };
      const Tensor logits = at::baddbmm(call.added, heads(q), heads(k).transpose(1, 2), call.beta, call.alpha);
      return at::bmm(at::dropout(at::softmax(logits, -1), 0.2, true), heads(v));
    };
    expect_equal(step_of(attention), call.forward, 1, c10::str("beta ", call.beta, ", alpha ", call.alpha));
  }
}

TEST(AttentionKernels, ReplaceLibtorchsAttentionWithDropout) {
  Tensor mask = torch::randn({13, 13});
  mask[3].fill_(-HUGE_VAL);  // weights of 0
  for (const auto& with : {std::optional<Tensor>(), std::optional<Tensor>(mask)}) {
    const auto attention = [&](const Tensor& q, const Tensor& k, const Tensor& v) {
      return at::scaled_dot_product_attention(q, k, v, with, 0.2);
    };
    expect_equal(step_of(attention), 1, 1, with ? "mask" : "no mask");
  }
  const auto causal = [&](const Tensor& q, const Tensor& k, const Tensor& v) {
    return at::scaled_dot_product_attention(q, k, v, {}, 0.2, true);
  };
  expect_equal(step_of(causal), 1, 1, "causal");
}

TEST(AttentionKernels, ReplaceFlashAttentionInInference) {
  const torch::NoGradGuard no_gradients;
  torch::manual_seed(8);
  for (const auto& [rows, keys, width] :
       std::vector<std::array<int64_t, 3>>{{14, 14, 64}, {128, 128, 64}, {1, 33, 8}, {5, 512, 40}}) {
    const Tensor q = torch::randn({2, rows, 3 * width}), k = torch::randn({2, keys, 3 * width}),
                 v = torch::randn({2, keys, 3 * width});
    for (const auto scale : {std::optional<double>(), std::optional<double>(0.3)}) {
      const auto function = [&] {
        const auto heads = [&](const Tensor& x) { return x.view({2, -1, 3, width}).transpose(1, 2); };
        const Tensor made = at::scaled_dot_product_attention(heads(q * 2), heads(k), heads(v), {}, 0, false, scale);
        return Tensors{made.transpose(1, 2).reshape({2, -1, 3 * width}) + 1};
      };
      expect_equal(function, 1, 0, c10::str(rows, " x ", keys, " x ", width));
    }
  }
  const Tensor x = torch::randn({2, 3, 600, 8}), mask = torch::randn({600, 600});
  const auto with = [&](int64_t keys, const std::optional<Tensor>& added, bool causal) {
    return [=] {
      const Tensor some = x.slice(2, 0, keys);
      return Tensors{at::scaled_dot_product_attention(some * 2, some, some, added, 0, causal) + 1};
    };
  };
  expect_equal(with(600, {}, false), 0, 0, "too many keys");
  expect_equal(with(20, mask.slice(0, 0, 20).slice(1, 0, 20), false), 0, 0, "mask");
  expect_equal(with(20, {}, true), 0, 0, "causal");
}

TEST(AttentionKernels, LeaveOthersToLibtorch) {
  Handwritten doubles{.type = at::kDouble};
  expect_equal(doubles.step(), 0, 0, "double");
  Tensor kept;
  const Handwritten read{.mask = [&](const Tensor& x) { return kept = x; }};
  const auto step = read.step();
  expect_equal(
      [&] {
        Tensors made = step();
        made.push_back(kept.detach());
        return made;
      },
      0, 1, "logits are read");
  expect_equal(Handwritten{.mask = [](const Tensor& x) { return x.tanh(); }}.step(), 0, 0, "another operator");
}

TEST(AttentionKernels, OfLibtorchsLayers) {
  torch::manual_seed(5);
  const Tensor x = torch::randn({9, 3, 32}), target = torch::randn({9, 3, 32});
  const Tensor mask = torch::full({9, 9}, -HUGE_VAL).triu(1);
  Tensor padding = torch::zeros({3, 9}, at::kBool);
  padding[1][8] = true;
  for (const double dropout : {0.0, 0.1}) {
    nn::TransformerEncoderLayer layer(nn::TransformerEncoderLayerOptions(32, 4).dropout(dropout).dim_feedforward(48));
    for (const Tensor& with : {Tensor(), mask}) {
      for (const Tensor& pad : {Tensor(), padding}) {
        const auto step = [&]() -> Tensors {
          layer->zero_grad();
          const Tensor result = layer->forward(x, with, pad);
          (result * target).sum().backward();
          Tensors made{result.detach()};
          for (const Tensor& each : layer->parameters()) made.push_back(each.grad().clone());
          return made;
        };
        expect_equal(step, 1, 1, c10::str(dropout, with.defined(), pad.defined()));
      }
    }
  }
}

// The layers compare their inputs, which separates them into several programs. The weights after dropout are then
// results of a program.
TEST(AttentionKernels, OfSeveralLayers) {
  torch::manual_seed(5);
  const Tensor x = torch::randn({9, 3, 32}), target = torch::randn({9, 3, 32});
  const Tensor mask = torch::full({9, 9}, -HUGE_VAL).triu(1);
  const auto options = nn::TransformerEncoderLayerOptions(32, 4).dropout(0.1).dim_feedforward(48);
  nn::TransformerEncoder encoder(nn::TransformerEncoderOptions(options, 2));
  const auto step = [&]() -> Tensors {
    encoder->zero_grad();
    const Tensor result = encoder->forward(x, mask);
    (result * target).sum().backward();
    Tensors made{result.detach()};
    for (const Tensor& each : encoder->parameters()) made.push_back(each.grad().clone());
    return made;
  };
  expect_equal(step, 1, 2, "last program");
  const std::string text = run_compiled(step).text, kernel = "1 × attention masked dropout\n";
  const size_t first = text.find(kernel);
  EXPECT_NE(first, text.rfind(kernel)) << "in both programs" << text;
}

TEST(AttentionKernels, HaveTheSameBitsForEachNumberOfThreads) {
  const Handwritten one{.rows = 37, .dropout = 0.1};
  const int threads = at::get_num_threads();
  const Counted many = run_compiled(one.step());
  at::set_num_threads(1);
  const Counted single = run_compiled(one.step());
  at::set_num_threads(threads);
  EXPECT_TRUE(at::equal(many.tensors[0], single.tensors[0]));
}

TEST(AttentionKernels, AreNotUsedIfResultsMustBeExact) {
  const Counted ours = run_compiled(Handwritten{.dropout = 0.1}.step(), {.exact = true});
  EXPECT_EQ(ours.forward + ours.backward, 0) << ours.text;
  const Tensors expected = run_plain(Handwritten{.dropout = 0.1}.step());
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(at::equal(ours.tensors[i], expected[i])) << i;
}

}  // namespace
}  // namespace bellows::compile_detail::testing
