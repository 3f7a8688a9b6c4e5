#include <gtest/gtest.h>
#include <torch/torch.h>

#include "bellows/amp/autocast.h"
#include "tests/amp/golden.h"

namespace bellows::amp {

namespace {

namespace F = torch::nn::functional;

/// The same operators as in tools/goldens/amp.py, on the same inputs.
struct Operators {
  using Cast = std::function<at::Tensor(const at::Tensor&)>;
  using Operator = std::function<at::Tensor(const Cast&)>;

  at::Tensor X = golden::values("x", {4, 4}), Y = golden::values("y", {4, 4}), V = golden::values("v", {4}),
             B3 = golden::values("b3", {2, 4, 4}), image = golden::values("image", {1, 4, 8, 8}),
             kernel = golden::values("kernel", {4, 4, 3, 3}), labels = torch::arange(4);

  std::map<std::string, Operator> all() const {
    auto result = products();
    result.merge(functions());
    result.merge(reductions());
    result.merge(losses());
    result.merge(others());
    return result;
  }

  std::map<std::string, Operator> products() const {
    return {
        {"mm", [&](const Cast&) { return X.mm(Y); }},
        {"mm of low", [&](const Cast& c) { return c(X).mm(c(Y)); }},
        {"mm of low and fp32", [&](const Cast& c) { return c(X).mm(Y); }},
        {"matmul", [&](const Cast&) { return torch::matmul(B3, Y); }},
        {"addmm", [&](const Cast&) { return torch::addmm(V, X, Y); }},
        {"addmv", [&](const Cast&) { return torch::addmv(V, X, V); }},
        {"mv", [&](const Cast&) { return X.mv(V); }},
        {"bmm", [&](const Cast&) { return torch::bmm(B3, B3); }},
        {"baddbmm", [&](const Cast&) { return torch::baddbmm(B3, B3, B3); }},
        {"einsum",
         [&](const Cast&) {
           return torch::einsum("ij,jk->ik", {X, Y});
         }},
        {"linear", [&](const Cast&) { return F::linear(X, Y, V); }},
        {"conv1d",
         [&](const Cast&) {
           return torch::conv1d(torch::ones({1, 4, 8}), torch::ones({4, 4, 3}));
         }},
        {"conv2d", [&](const Cast&) { return torch::conv2d(image, kernel); }},
        {"conv_transpose2d", [&](const Cast&) { return torch::conv_transpose2d(image, kernel); }},
        {"scaled_dot_product_attention", [&](const Cast&) { return torch::scaled_dot_product_attention(B3, B3, B3); }},
        {"prelu", [&](const Cast&) { return torch::prelu(X, V); }},
        {"bilinear",
         [&](const Cast&) {
           return torch::bilinear(X, Y, torch::ones({3, 4, 4}));
         }},
        {"fp64 mm", [&](const Cast&) { return X.to(at::kDouble).mm(Y.to(at::kDouble)); }}};
  }

  std::map<std::string, Operator> functions() const {
    return {{"exp", [&](const Cast& c) { return c(X).exp(); }},
            {"log", [&](const Cast& c) { return c(X).abs().log(); }},
            {"pow", [&](const Cast& c) { return c(X).abs().pow(1.5); }},
            {"rsqrt", [&](const Cast& c) { return c(X).abs().rsqrt(); }},
            {"reciprocal", [&](const Cast& c) { return c(X).reciprocal(); }},
            {"softplus", [&](const Cast& c) { return F::softplus(c(X)); }},
            {"div", [&](const Cast& c) { return c(X) / c(Y); }},
            {"relu", [&](const Cast& c) { return c(X).relu(); }},
            {"gelu", [&](const Cast& c) { return torch::gelu(c(X)); }},
            {"sigmoid", [&](const Cast& c) { return c(X).sigmoid(); }},
            {"tanh", [&](const Cast& c) { return c(X).tanh(); }}};
  }

  std::map<std::string, Operator> reductions() const {
    return {{"sum", [&](const Cast& c) { return c(X).sum(); }},
            {"mean", [&](const Cast& c) { return c(X).mean(); }},
            {"prod", [&](const Cast& c) { return c(X).prod(); }},
            {"cumsum", [&](const Cast& c) { return c(X).cumsum(0); }},
            {"norm", [&](const Cast& c) { return c(X).norm(); }},
            {"vector_norm", [&](const Cast& c) { return torch::linalg_vector_norm(c(X)); }},
            {"softmax", [&](const Cast& c) { return c(X).softmax(1); }},
            {"log_softmax", [&](const Cast& c) { return c(X).log_softmax(1); }},
            {"logsumexp", [&](const Cast& c) { return c(X).logsumexp(1); }},
            {"layer_norm", [&](const Cast& c) { return torch::layer_norm(c(X), {4}); }},
            {"group_norm", [&](const Cast& c) { return torch::group_norm(c(image), 2); }},
            {"batch_norm",
             [&](const Cast& c) { return torch::batch_norm(c(image), V, V, {}, {}, true, 0.1, 1e-5, false); }}};
  }

  std::map<std::string, Operator> losses() const {
    return {{"mse_loss", [&](const Cast& c) { return torch::mse_loss(c(X), c(Y)); }},
            {"l1_loss", [&](const Cast& c) { return torch::l1_loss(c(X), c(Y)); }},
            {"smooth_l1_loss", [&](const Cast& c) { return torch::smooth_l1_loss(c(X), c(Y)); }},
            {"huber_loss", [&](const Cast& c) { return torch::huber_loss(c(X), c(Y)); }},
            {"kl_div", [&](const Cast& c) { return torch::kl_div(c(X), c(Y.abs())); }},
            {"cross_entropy", [&](const Cast& c) { return torch::cross_entropy_loss(c(X), labels); }},
            {"nll_loss", [&](const Cast& c) { return torch::nll_loss(c(X), labels); }},
            {"binary_cross_entropy_with_logits",
             [&](const Cast& c) { return torch::binary_cross_entropy_with_logits(c(X), c(Y.abs())); }},
            {"cosine_similarity", [&](const Cast& c) { return torch::cosine_similarity(c(X), c(Y)); }},
            {"cdist", [&](const Cast& c) { return torch::cdist(c(X), c(Y)); }}};
  }

  std::map<std::string, Operator> others() const {
    return {{"avg_pool2d", [&](const Cast& c) { return torch::avg_pool2d(c(image), 2); }},
            {"max_pool2d", [&](const Cast& c) { return torch::max_pool2d(c(image), 2); }},
            {"upsample_nearest2d",
             [&](const Cast& c) {
               return F::interpolate(
                   c(image), F::InterpolateFuncOptions().scale_factor(std::vector<double>{2, 2}).mode(torch::kNearest));
             }},
            {"cat",
             [&](const Cast& c) {
               return torch::cat({c(X), Y});
             }},
            {"stack",
             [&](const Cast& c) {
               return torch::stack({c(X), Y});
             }},
            {"add of low and fp32", [&](const Cast& c) { return c(X) + Y; }},
            {"addcmul", [&](const Cast& c) { return torch::addcmul(c(X), c(Y), Y); }},
            {"atan2", [&](const Cast& c) { return torch::atan2(c(X), Y); }},
            {"embedding", [&](const Cast&) { return torch::embedding(X, labels); }}};
  }
};

std::string name_of(at::ScalarType dtype) {
  static const std::map<at::ScalarType, std::string> names = {
      {at::kFloat, "fp32"}, {at::kBFloat16, "bf16"}, {at::kHalf, "fp16"}, {at::kDouble, "fp64"}};
  return names.at(dtype);
}

}  // namespace

TEST(AutocastOperators, OutputDtypesArePythons) {
  const auto expected = golden::read("autocast.json")["dtypes"];
  const Operators inputs;
  const auto operators = inputs.all();
  ASSERT_EQ(operators.size(), expected.size());
  ASSERT_GE(operators.size(), 30u);
  for (const auto& [name, call] : operators) {
    for (const at::ScalarType low : {at::kBFloat16, at::kHalf}) {
      const AutocastGuard guard(at::kCPU, low);
      const at::Tensor output = call([low](const at::Tensor& t) { return t.to(low); });
      EXPECT_EQ(name_of(output.scalar_type()), expected.at(name).at(name_of(low)).get<std::string>()) << name;
    }
  }
}

}  // namespace bellows::amp
