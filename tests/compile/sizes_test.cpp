// Programs for several sizes share their generated functions.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <torch/torch.h>

#include <algorithm>
#include <map>

#include "bellows/compile.h"
#include "bellows/compile/codegen/function_family.h"
#include "bellows/compile/codegen/marked_text.h"
#include "tests/support/slow_tests.h"

namespace bellows::compile_detail::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(MarkedText, SeparatesNumbersFromText) {
  const MarkedText text = MarkedText::of("for (; v < " + marked_size(37) + "; v += " + marked_size(1) + ") x *= " +
                                         marked_constant("(0x1.8p+1f)", c10::kFloat) + " + " + marked_size(-4) + ";");
  EXPECT_THAT(text.sizes, ElementsAre(37, -4));
  EXPECT_THAT(text.constants, ElementsAre("(0x1.8p+1f)"));
  EXPECT_EQ(text.code(), "for (; v < 37; v += 1) x *= (0x1.8p+1f) + -4;");
  EXPECT_EQ(text.code({true, false}, {true}),
            "const i64 d0 = sizes[0];\nconst float k0 = (float)constants[0];\nfor (; v < d0; v += 1) x *= k0 + -4;");
  const MarkedText sum = MarkedText::of("reduction(+:q)" + marked_size(5));
  EXPECT_EQ(sum.code(), "i64 d0 = 5;\n__asm__(\"\" : \"+r\"(d0));\nreduction(+:q)d0") << "hidden from the compiler";
}

KernelCode::Function function_with(const std::string& text) {
  KernelCode::Function function;
  function.marked = MarkedText::of(text);
  function.read_numbers({}, {});
  return function;
}

TEST(FunctionFamily, MakesFunctionsGeneralOnce) {
  const auto program = [](int64_t length, int64_t rows) {
    KernelCode code;
    code.functions.push_back(function_with("a[" + marked_size(768) + " * " + marked_size(length) + "];"));
    code.functions.push_back(function_with("b[" + marked_size(rows) + "];"));
    code.functions.push_back(function_with("c[i];"));
    return code;
  };
  FunctionFamily family;
  KernelCode first = program(10, 4), again = program(10, 4), second = program(20, 4), third = program(30, 7);
  EXPECT_THAT(family.adapt({&first}), IsEmpty());
  EXPECT_THAT(first.functions[0].text, HasSubstr("a[768 * 10];"));
  EXPECT_THAT(family.adapt({&again}), IsEmpty());
  EXPECT_EQ(again.functions[0].symbol, first.functions[0].symbol);

  const std::vector<KernelCode::Function> further = family.adapt({&second});
  EXPECT_THAT(second.functions[0].text, HasSubstr("a[d0 * d1];"));
  EXPECT_THAT(second.functions[0].sizes, ElementsAre(768, 20));
  EXPECT_EQ(second.functions[1].symbol, first.functions[1].symbol) << "literals are faster";
  ASSERT_EQ(further.size(), 1u) << "the general version of the second function; the third has no numbers";
  EXPECT_THAT(further[0].text, HasSubstr("b[d0];"));

  EXPECT_THAT(family.adapt({&third}), IsEmpty());
  EXPECT_EQ(third.functions[0].symbol, second.functions[0].symbol);
  EXPECT_EQ(third.functions[1].symbol, further[0].symbol);
  EXPECT_THAT(third.functions[1].sizes, ElementsAre(7));
  EXPECT_EQ(third.functions[2].symbol, first.functions[2].symbol);
}

/// A network that computes a loss from tokens, for any number of rows and any length.
struct TokenNetwork : torch::nn::Module {
  virtual at::Tensor loss(const at::Tensor& ids, const at::Tensor& labels) = 0;
};

at::Tensor loss_per_row(const at::Tensor& logits, const at::Tensor& labels) {
  return torch::nn::functional::cross_entropy(logits, labels.select(1, 0).remainder(5));
}
at::Tensor loss_per_token(const at::Tensor& logits, const at::Tensor& labels) {
  return torch::nn::functional::cross_entropy(logits.flatten(0, 1), labels.flatten());
}

/// A text classifier: embedding, attention with explicit softmax, norms, GELU, pooling over the length.
struct Classifier : TokenNetwork {
  static constexpr int64_t width = 32, heads = 4;
  torch::nn::Embedding table{nullptr};
  torch::nn::Linear qkv{nullptr}, out{nullptr}, up{nullptr}, down{nullptr}, head{nullptr};
  torch::nn::LayerNorm norm1{nullptr}, norm2{nullptr};

  Classifier() {
    table = register_module("table", torch::nn::Embedding(100, width));
    qkv = register_module("qkv", torch::nn::Linear(width, 3 * width));
    out = register_module("out", torch::nn::Linear(width, width));
    up = register_module("up", torch::nn::Linear(width, 4 * width));
    down = register_module("down", torch::nn::Linear(4 * width, width));
    head = register_module("head", torch::nn::Linear(width, 5));
    norm1 = register_module("norm1", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})));
    norm2 = register_module("norm2", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})));
  }
  at::Tensor encode(const at::Tensor& ids, const at::Tensor& mask) {
    at::Tensor x = table(ids);
    const auto parts = qkv(norm1(x)).view({ids.size(0), ids.size(1), 3, heads, width / heads}).permute({2, 0, 3, 1, 4});
    at::Tensor scores = parts[0].matmul(parts[1].transpose(-1, -2)) * 0.35;
    if (mask.defined()) scores = scores.masked_fill(mask, -1e9);
    const at::Tensor mixed = scores.softmax(-1).matmul(parts[2]).transpose(1, 2).reshape(x.sizes());
    x = x + out(mixed);
    return x + down(torch::gelu(up(norm2(x))));
  }
  at::Tensor loss(const at::Tensor& ids, const at::Tensor& labels) override {
    return loss_per_row(head(encode(ids, {}).mean(1)), labels);
  }
};

/// The same with a causal mask, a mask for padding, and a loss per token.
struct MaskedClassifier : Classifier {
  at::Tensor loss(const at::Tensor& ids, const at::Tensor& labels) override {
    const int64_t rows = ids.size(0), length = ids.size(1);
    const at::Tensor causal = at::ones({length, length}, at::kBool).triu(1);
    const at::Tensor padding = ids.eq(0).view({rows, 1, 1, length});
    return loss_per_token(head(encode(ids, causal.logical_or(padding))), labels.remainder(5));
  }
};

struct LstmLanguageModel : TokenNetwork {
  torch::nn::Embedding table{nullptr};
  torch::nn::LSTM lstm{nullptr};
  torch::nn::LayerNorm norm{nullptr};
  torch::nn::Linear head{nullptr};

  LstmLanguageModel() {
    table = register_module("table", torch::nn::Embedding(100, 24));
    lstm = register_module("lstm", torch::nn::LSTM(torch::nn::LSTMOptions(24, 40).batch_first(true)));
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({40})));
    head = register_module("head", torch::nn::Linear(40, 100));
  }
  at::Tensor loss(const at::Tensor& ids, const at::Tensor& labels) override {
    return loss_per_token(head(torch::gelu(norm(std::get<0>(lstm(table(ids)))))), labels);
  }
};

/// Convolutions over time with batch norm, and two kinds of pooling.
struct Convolutions : TokenNetwork {
  torch::nn::Embedding table{nullptr};
  torch::nn::Conv1d first{nullptr}, second{nullptr};
  torch::nn::BatchNorm1d norm1{nullptr}, norm2{nullptr};
  torch::nn::Linear head{nullptr};

  Convolutions() {
    table = register_module("table", torch::nn::Embedding(100, 24));
    first = register_module("first", torch::nn::Conv1d(torch::nn::Conv1dOptions(24, 32, 3).padding(1)));
    second = register_module("second", torch::nn::Conv1d(torch::nn::Conv1dOptions(32, 32, 5).padding(4).dilation(2)));
    norm1 = register_module("norm1", torch::nn::BatchNorm1d(32));
    norm2 = register_module("norm2", torch::nn::BatchNorm1d(32));
    head = register_module("head", torch::nn::Linear(32, 5));
  }
  at::Tensor loss(const at::Tensor& ids, const at::Tensor& labels) override {
    at::Tensor x = torch::relu(norm1(first(table(ids).transpose(1, 2))));
    x = x + torch::relu(norm2(second(x)));
    return loss_per_row(head(std::get<0>(x.max(2)) + x.mean(2)), labels);
  }
};

struct TokenBatch {
  at::Tensor ids, labels;
};

TokenBatch batch_of(int64_t rows, int64_t length) {
  return {at::randint(100, {rows, length}, at::kLong), at::randint(100, {rows, length}, at::kLong)};
}

struct TrainingRun {
  std::vector<double> losses;
  std::vector<at::Tensor> weights;
  std::string explanation;
};

/// Trains on these batches.
template <class Model>
TrainingRun train(const std::vector<TokenBatch>& batches, bool compiles) {
  torch::manual_seed(3);
  Model model;
  torch::optim::AdamW optimizer(model.parameters(), torch::optim::AdamWOptions(1e-3));
  const auto body = [&](const at::Tensor& ids, const at::Tensor& labels) {
    optimizer.zero_grad();
    const at::Tensor loss = model.loss(ids, labels);
    loss.backward();
    optimizer.step();
    return loss;
  };
  const auto step = compile(body, {.always = true, .max_recordings = 512});
  TrainingRun run;
  for (const TokenBatch& batch : batches)
    run.losses.push_back(
        (compiles ? step(batch.ids, batch.labels) : body(batch.ids, batch.labels)).template item<double>());
  run.weights = model.parameters();
  run.explanation = step.explain().to_text();
  return run;
}

std::vector<int64_t> numbers_in(const std::string& text, const std::string& after) {
  std::vector<int64_t> numbers;
  for (size_t at = text.find(after) + after.size(); at < text.size() && text[at] != '\n'; ++at) {
    if (std::isdigit(static_cast<unsigned char>(text[at])) == 0) continue;
    size_t length = 0;
    numbers.push_back(std::stoll(text.substr(at), &length));
    at += length;
  }
  return numbers;
}

/// Params: batches – at least 10, all with different sizes
template <class Model>
void expect_three_compilations(const std::vector<TokenBatch>& batches) {
  const TrainingRun plain = train<Model>(batches, false), compiled = train<Model>(batches, true);
  // The tolerance of docs/compile.md is for 100 steps: later, small differences grow in any training.
  constexpr size_t most_steps = 100;
  for (size_t i = 0; i < std::min(batches.size(), most_steps); ++i)
    EXPECT_NEAR(compiled.losses[i], plain.losses[i], 2e-3) << i;
  const auto counts = numbers_in(compiled.explanation, "programs: ");
  ASSERT_GE(counts.size(), 2u) << compiled.explanation;
  EXPECT_GE(counts[0], static_cast<int64_t>(batches.size()));
  // The first step, which creates the optimizer's state, the first size, and all sizes.
  EXPECT_LE(counts[1], 3) << compiled.explanation;
  EXPECT_THAT(compiled.explanation, HasSubstr(" instead of "));
}

int count_of_batches(int usual) {
  return slow_tests() ? 200 : usual;
}

/// Lengths from 10 to 209. They include all factors of the network's width, for which loops could be merged.
std::vector<TokenBatch> batches_of_different_lengths(int count) {
  torch::manual_seed(5);
  std::vector<TokenBatch> batches;
  batches.reserve(count);
  for (int i = 0; i < count; ++i) batches.push_back(batch_of(4, 10 + (i * 67) % 200));
  return batches;
}

/// The last batch of each epoch is smaller.
std::vector<TokenBatch> batches_of_epochs(int count) {
  torch::manual_seed(5);
  std::vector<TokenBatch> batches;
  batches.reserve(count);
  for (int i = 0; i < count; ++i) batches.push_back(batch_of(i % 8 == 7 ? 3 + i / 8 % 7 : 16, 10 + (i * 67) % 200));
  return batches;
}

std::vector<TokenBatch> batches_of_different_rows(int count) {
  torch::manual_seed(5);
  std::vector<TokenBatch> batches;
  batches.reserve(count);
  for (int i = 0; i < count; ++i) batches.push_back(batch_of(4 + (i * 37 + 14) % 200, 25));
  return batches;
}

TEST(Sizes, ThreeOfManyLengthsNeedTheCompiler) {
  expect_three_compilations<Classifier>(batches_of_different_lengths(count_of_batches(40)));
}

TEST(Sizes, ThreeOfManyMaskedBatchesNeedTheCompiler) {
  expect_three_compilations<MaskedClassifier>(batches_of_different_lengths(count_of_batches(24)));
  expect_three_compilations<MaskedClassifier>(batches_of_epochs(count_of_batches(24)));
}

TEST(Sizes, ThreeOfManyLstmBatchesNeedTheCompiler) {
  expect_three_compilations<LstmLanguageModel>(batches_of_epochs(count_of_batches(16)));
}

TEST(Sizes, ThreeOfManyConvolutionBatchesNeedTheCompiler) {
  expect_three_compilations<Convolutions>(batches_of_epochs(count_of_batches(24)));
}

TEST(Sizes, ThreeOfManyNumbersOfRowsNeedTheCompiler) {
  expect_three_compilations<Classifier>(batches_of_different_rows(count_of_batches(24)));
}

/// Functions for one size and for all sizes compute the same bits, so the order of lengths does not matter.
TEST(Sizes, BitsDoNotDependOnEarlierSizes) {
  torch::manual_seed(6);
  Classifier model;
  const auto losses = [&](const std::vector<TokenBatch>& batches) {
    const auto forward = compile(
        [&](const at::Tensor& ids, const at::Tensor& labels) {
          model.zero_grad();
          const at::Tensor loss = model.loss(ids, labels);
          loss.backward();
          return loss;
        },
        {.always = true});
    std::map<int64_t, std::vector<at::Tensor>> results;
    for (const TokenBatch& batch : batches) {
      std::vector<at::Tensor>& made = results[batch.ids.size(1) * 1000 + batch.ids.size(0)];
      made = {forward(batch.ids, batch.labels).detach().clone()};
      for (const at::Tensor& weight : model.parameters()) made.push_back(weight.grad().clone());
    }
    return results;
  };
  std::vector<TokenBatch> batches;
  for (const auto& [rows, length] : std::vector<std::pair<int64_t, int64_t>>{
           {4, 12}, {4, 37}, {4, 64}, {4, 1}, {7, 37}, {1, 20}, {4, 129}, {3, 2}, {16, 300}})
    batches.push_back(batch_of(rows, length));
  auto forwards = losses(batches);
  std::reverse(batches.begin(), batches.end());
  auto backwards = losses(batches);
  for (const auto& [size, made] : forwards) {
    for (size_t i = 0; i < made.size(); ++i)
      EXPECT_TRUE(at::equal(made[i], backwards.at(size)[i])) << size << ", " << i;
  }
}

}  // namespace
}  // namespace bellows::compile_detail::testing
