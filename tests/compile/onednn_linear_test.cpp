// Linears whose weights keep their values, as oneDNN's primitives.
#include "tests/compile/onednn_support.h"

namespace bellows::compile_detail::testing {
namespace {

struct LinearCase {
  std::string name;
  std::vector<int64_t> rows;
  int64_t inner, columns;
  bool bias = true, inference = true;
};

const std::vector<LinearCase> linear_cases{
    {"one_row", {1}, 64, 10},
    {"odd", {7}, 13, 5},
    {"one_column", {9}, 17, 1},
    {"without_bias", {5}, 33, 31, false},
    {"of_three_dims", {2, 14}, 48, 96},
    {"as_addmm", {3, 5}, 24, 40, true, false},
    {"as_mm", {15}, 24, 17, false, false},
    {"large", {2, 40}, 520, 513},
    {"large_without_bias", {64}, 512, 512, false, false},
};

class OnednnLinear : public ::testing::TestWithParam<LinearCase> {};

TEST_P(OnednnLinear, IsAsExactAsLibtorch) {
  const LinearCase& one = GetParam();
  torch::manual_seed(3);
  std::vector<int64_t> sizes = one.rows;
  sizes.push_back(one.inner);
  const at::Tensor x = torch::randn(sizes), w = torch::randn({one.columns, one.inner}),
                   b = one.bias ? torch::randn({one.columns}) : at::Tensor();
  const auto run = [&](at::ScalarType type, const at::Tensor& weight) {
    return [=] {
      const c10::InferenceMode inference(one.inference);
      const at::NoGradGuard no_grad;
      const at::Tensor bias = b.defined() ? b.to(type) : b;
      return Tensors{at::linear(x.to(type) * 1, weight, bias) * 1};
    };
  };
  Tensors frozen{w};
  if (one.bias) frozen.push_back(b);
  const Outcome ours = with_onednn(run(at::kFloat, w), frozen), changing = with_onednn(run(at::kFloat, w));
  const Tensors plain = run(at::kFloat, w)(), exact = run(at::kDouble, w.to(at::kDouble))();
  EXPECT_EQ(ours.report.linears, 1) << ours.text;
  EXPECT_EQ(ours.report.reorders, 0) << "packed once: " << ours.text;
  EXPECT_EQ(changing.report.linears, 0) << "libtorch packs weights that change: " << changing.text;
  expect_as_exact(ours.tensors[0], plain[0], exact[0], "linear");
}

INSTANTIATE_TEST_SUITE_P(Shapes, OnednnLinear, ::testing::ValuesIn(linear_cases),
                         [](const auto& one) { return "_" + one.param.name; });

/// Inference on tensors of a type; the function is called with an input, a weight, a bias, and what is as large as the result.
using Layer = std::function<at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&)>;

void expect_fused(const std::string& name, int fused, const Layer& layer) {
  torch::manual_seed(3);
  const Tensors data{torch::randn({2, 9, 24}), torch::randn({40, 24}) / 5, torch::randn({40}),
                     torch::randn({2, 9, 40})};
  for (const at::ScalarType type : primitive_types()) {
    Tensors typed;
    for (const at::Tensor& tensor : data) typed.push_back(tensor.to(type));
    const auto run = [&](at::ScalarType as) {
      return [=] {
        const c10::InferenceMode inference;
        const auto in = [&](size_t i) { return as == type ? typed[i] : typed[i].to(as); };
        return Tensors{layer(in(0), in(1), in(2), in(3))};
      };
    };
    const Outcome ours = with_onednn(run(type), {typed[1], typed[2]});
    EXPECT_EQ(ours.report.linears, 1) << name << ours.text;
    EXPECT_EQ(ours.report.fused, fused) << name << ours.text;
    const at::Tensor exact = run(at::kDouble)()[0];
    const c10::InferenceMode inference;
    if (type == at::kFloat)
      expect_as_exact(ours.tensors[0], run(type)()[0], exact, name, 8);
    else  // one rounding to 8 bits in the end
      EXPECT_LE(largest(ours.tensors[0].to(at::kDouble) - exact), largest(exact) / 256) << name;
  }
}

TEST(OnednnLinearTest, TakesInWhatFollows) {
  using at::Tensor;
  expect_fused("relu", 1, [](const Tensor& x, const Tensor& w, const Tensor& b, const Tensor&) {
    return at::relu(at::linear(x, w, b));
  });
  expect_fused("gelu", 1, [](const Tensor& x, const Tensor& w, const Tensor& b, const Tensor&) {
    return at::gelu(at::linear(x, w, b));
  });
  expect_fused("gelu of tanh", 1, [](const Tensor& x, const Tensor& w, const Tensor& b, const Tensor&) {
    return at::gelu(at::linear(x, w, b), "tanh");
  });
  expect_fused("tanh", 1, [](const Tensor& x, const Tensor& w, const Tensor& b, const Tensor&) {
    return at::tanh(at::linear(x, w, b));
  });
  expect_fused("sigmoid", 1, [](const Tensor& x, const Tensor& w, const Tensor& b, const Tensor&) {
    return at::sigmoid(at::linear(x, w, b));
  });
  expect_fused("silu, sum", 2, [](const Tensor& x, const Tensor& w, const Tensor& b, const Tensor& y) {
    return at::silu(at::linear(x, w, b)) + y;
  });
  expect_fused("sum of a view, relu", 2, [](const Tensor& x, const Tensor& w, const Tensor& b, const Tensor& y) {
    return at::relu(y.view({18, 40}) + at::linear(x, w, b).view({18, 40}));
  });
  expect_fused("read twice", 0, [](const Tensor& x, const Tensor& w, const Tensor& b, const Tensor&) {
    const Tensor y = at::linear(x, w, b);
    return at::relu(y) - y;
  });
  expect_fused("a sum of itself", 0, [](const Tensor& x, const Tensor& w, const Tensor& b, const Tensor&) {
    const Tensor y = at::linear(x, w, b);
    return y + y;
  });
  expect_fused("a broadcast sum", 0, [](const Tensor& x, const Tensor& w, const Tensor& b, const Tensor& y) {
    return at::linear(x, w, b) + y.slice(1, 0, 1);
  });
}

TEST(OnednnLinearTest, LargeOnesAreProductsOfBlasOnceAWeight) {
  torch::manual_seed(3);
  const at::Tensor x = torch::randn({96, 512}), w = torch::randn({600, 512}), b = torch::randn({600}),
                   y = torch::randn({96, 600});
  const auto run = [&](int64_t rows, at::ScalarType type) {
    return [=] {
      const c10::InferenceMode inference;
      const auto in = [&](const at::Tensor& t) { return type == at::kFloat ? t : t.to(type); };
      return Tensors{at::linear(in(x.slice(0, 0, rows)), in(w), in(b)) + in(y.slice(0, 0, rows))};
    };
  };
  const auto check = [&](int64_t rows, bool blas) {
    const Outcome ours = with_onednn(run(rows, at::kFloat), {w, b});
    EXPECT_EQ(ours.report.linears, 1) << ours.text;
    EXPECT_EQ(ours.report.fused, 1) << ours.text;
    EXPECT_EQ(ours.text.find("blas") != std::string::npos, blas && __builtin_cpu_is("intel")) << ours.text;
    const Tensors plain = run(rows, at::kFloat)(), exact = run(rows, at::kDouble)();
    const c10::InferenceMode inference;
    expect_as_exact(ours.tensors[0], plain[0], exact[0], c10::str(rows, " rows"), 8);
  };
  check(96, true);
  check(70, true);  // what was packed for 96 rows is gone with its program
  check(32, false);
  const auto held = std::make_shared<OnednnBackend>(Tensors{w, b});
  graph::Region region({.backend = held});
  for (int call = 0; call < 4; ++call) region.run(run(96, at::kFloat));
  check(70, false);  // it is there packed for 96
}

TEST(OnednnLinearTest, ReadsPartsOfInputsAndWeights) {
  torch::manual_seed(3);
  const at::Tensor x = torch::randn({3, 7, 32}), w = torch::randn({3, 20, 32});
  const auto run = [&] {
    const c10::InferenceMode inference;
    return Tensors{at::linear(x.select(1, 2), w[1]), at::linear(x.slice(0, 1), w[2]), at::linear(x, w[0]),
                   at::linear(x.slice(2, 0, 8), w[1].slice(1, 3, 11))};
  };
  const Outcome ours = with_onednn(run, {w});
  EXPECT_EQ(ours.report.linears, 4) << ours.text;
  const Tensors plain = run();
  const c10::InferenceMode inference;
  for (size_t i = 0; i < plain.size(); ++i) EXPECT_TRUE(at::allclose(ours.tensors[i], plain[i], 1e-5, 1e-4)) << i;
}

TEST(OnednnLinearTest, OfNothingIsLeftToLibtorch) {
  const at::Tensor w = torch::randn({4, 6}), none = torch::randn({0, 6}), doubles = torch::randn({3, 6}, at::kDouble),
                   dw = w.to(at::kDouble), line = torch::randn({6});
  const auto run = [&] {
    const c10::InferenceMode inference;
    return Tensors{at::linear(none, w), at::linear(doubles, dw), at::linear(line, w)};
  };
  const Outcome ours = with_onednn(run, {w, dw});
  EXPECT_EQ(ours.report.linears, 0) << ours.text;
  const Tensors plain = run();
  const c10::InferenceMode inference;
  for (size_t i = 0; i < plain.size(); ++i) EXPECT_TRUE(at::equal(ours.tensors[i], plain[i])) << i;
}

}  // namespace
}  // namespace bellows::compile_detail::testing
