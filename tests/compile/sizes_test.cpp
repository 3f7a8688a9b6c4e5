// Programs for several sizes share their generated functions.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <torch/torch.h>

#include <map>

#include "bellows/compile.h"
#include "bellows/compile/codegen/function_family.h"
#include "bellows/compile/codegen/marked_text.h"

namespace bellows::compile_detail::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

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

TEST(FunctionFamily, TurnsOnlyNumbersThatVaryIntoArguments) {
  const auto program = [](int64_t length) {
    KernelCode code;
    code.functions.push_back(function_with("a[" + marked_size(768) + " * " + marked_size(length) + "];"));
    code.functions.push_back(function_with("a[" + marked_size(64) + " * " + marked_size(length) + "];"));
    code.functions.push_back(function_with("b[" + marked_size(768) + "];"));
    return code;
  };
  FunctionFamily family;
  KernelCode first = program(10), second = program(20), third = program(30);
  family.adapt({&first});
  EXPECT_THAT(first.functions[0].text, HasSubstr("a[768 * 10];"));
  family.adapt({&second});
  EXPECT_THAT(second.functions[0].text, HasSubstr("a[768 * d1];"));
  EXPECT_THAT(second.functions[1].text, HasSubstr("a[64 * d1];")) << "the second function with this skeleton";
  EXPECT_THAT(second.functions[2].text, HasSubstr("b[768];"));
  EXPECT_THAT(second.functions[0].sizes, ElementsAre(20));
  family.adapt({&third});
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(third.functions[i].symbol, second.functions[i].symbol);
  EXPECT_THAT(third.functions[0].sizes, ElementsAre(30));
}

/// A text classifier: embedding, attention with explicit softmax, norms, GELU, pooling over the length.
struct Classifier : torch::nn::Module {
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
  at::Tensor forward(const at::Tensor& ids) {
    at::Tensor x = table(ids);
    const auto parts = qkv(norm1(x)).view({ids.size(0), ids.size(1), 3, heads, width / heads}).permute({2, 0, 3, 1, 4});
    const at::Tensor scores = parts[0].matmul(parts[1].transpose(-1, -2)) * 0.35;
    const at::Tensor mixed = scores.softmax(-1).matmul(parts[2]).transpose(1, 2).reshape(x.sizes());
    x = x + out(mixed);
    x = x + down(torch::gelu(up(norm2(x))));
    return head(x.mean(1));
  }
};

struct Batch {
  at::Tensor ids, labels;
};

Batch batch_of(int64_t rows, int64_t length) {
  return {at::randint(100, {rows, length}, at::kLong), at::randint(5, {rows}, at::kLong)};
}

struct Training {
  std::vector<double> losses;
  std::vector<at::Tensor> weights;
  std::string explanation;
};

/// Trains on batches with these lengths.
Training train(const std::vector<Batch>& batches, bool compiles) {
  torch::manual_seed(3);
  Classifier model;
  torch::optim::AdamW optimizer(model.parameters(), torch::optim::AdamWOptions(1e-3));
  const auto body = [&](const at::Tensor& ids, const at::Tensor& labels) {
    optimizer.zero_grad();
    const at::Tensor loss = torch::nn::functional::cross_entropy(model.forward(ids), labels);
    loss.backward();
    optimizer.step();
    return loss;
  };
  const auto step = compile(body, {.always = true, .max_recordings = 512});
  Training run;
  for (const Batch& batch : batches)
    run.losses.push_back((compiles ? step(batch.ids, batch.labels) : body(batch.ids, batch.labels)).item<double>());
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

TEST(Sizes, FewOfManyLengthsNeedTheCompiler) {
  torch::manual_seed(5);
  std::vector<Batch> batches;
  const int lengths = std::getenv("BELLOWS_SLOW") ? 200 : 40;
  for (int i = 0; i < lengths; ++i) batches.push_back(batch_of(4, 10 + (i * 67) % 200));
  const Training plain = train(batches, false), compiled = train(batches, true);
  for (size_t i = 0; i < batches.size(); ++i) EXPECT_NEAR(compiled.losses[i], plain.losses[i], 2e-3) << i;
  const auto counts = numbers_in(compiled.explanation, "programs: ");
  ASSERT_GE(counts.size(), 2u) << compiled.explanation;
  EXPECT_GE(counts[0], lengths);
  // The first step, which creates the optimizer's state, the first size, all sizes, and sizes with common factors.
  EXPECT_LE(counts[1], 5) << compiled.explanation;
  EXPECT_THAT(compiled.explanation, HasSubstr(" instead of "));
}

/// Functions for one size and for all sizes compute the same bits, so the order of lengths does not matter.
TEST(Sizes, BitsDoNotDependOnEarlierSizes) {
  torch::manual_seed(6);
  Classifier model;
  const auto losses = [&](const std::vector<Batch>& batches) {
    const auto forward = compile(
        [&](const at::Tensor& ids, const at::Tensor& labels) {
          model.zero_grad();
          const at::Tensor loss = torch::nn::functional::cross_entropy(model.forward(ids), labels);
          loss.backward();
          return loss;
        },
        {.always = true});
    std::map<int64_t, std::vector<at::Tensor>> results;
    for (const Batch& batch : batches) {
      std::vector<at::Tensor>& made = results[batch.ids.size(1) * 1000 + batch.ids.size(0)];
      made = {forward(batch.ids, batch.labels).detach().clone()};
      for (const at::Tensor& weight : model.parameters()) made.push_back(weight.grad().clone());
    }
    return results;
  };
  std::vector<Batch> batches;
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
