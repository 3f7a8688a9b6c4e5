// oneDNN's primitives against ATen's operators, over shapes that are no multiples of anything.
#include "tests/compile/onednn_support.h"

namespace bellows::compile_detail::testing {
namespace {

namespace F = torch::nn::functional;

struct ConvolutionCase {
  std::string name;
  int64_t batch, in, height, width, out, kernel;
  int64_t stride = 1, padding = 0, dilation = 1, groups = 1;
  bool bias = true, transposed = false;
};

const std::vector<ConvolutionCase> convolution_cases{
    {"3x3", 2, 16, 9, 7, 32, 3, 1, 1},
    {"three_channels_7x7", 2, 3, 33, 31, 64, 7, 2, 3, 1, 1, false},
    {"1x1", 3, 17, 5, 6, 19, 1},
    {"1x1_stride_2", 2, 64, 8, 8, 128, 1, 2, 0, 1, 1, false},
    {"one_sample", 1, 8, 12, 12, 8, 3, 1, 1},
    {"odd", 1, 5, 11, 13, 7, 3, 2, 1},
    {"even_kernel", 2, 6, 10, 10, 10, 2, 2, 0},
    {"dilated", 2, 16, 15, 15, 16, 3, 1, 2, 2},
    {"groups", 2, 32, 9, 9, 64, 3, 1, 1, 1, 4},
    {"depthwise", 2, 32, 9, 10, 32, 3, 1, 1, 1, 32},
    {"one_channel", 4, 1, 14, 14, 6, 5, 1, 2},
    {"to_one_channel", 2, 16, 8, 8, 1, 3, 1, 1},
    {"large_padding", 1, 16, 4, 4, 16, 3, 1, 3},
    {"result_of_one_place", 2, 16, 3, 3, 32, 3},
    {"product", 1, 24, 3, 2, 64, 3, 1, 1},
    {"product_stride_dilation", 2, 7, 5, 7, 80, 3, 2, 1, 2},
    {"product_1x1", 2, 16, 2, 2, 64, 1, 1, 0, 1, 1, false},
    {"transposed", 2, 16, 5, 6, 24, 2, 2, 0, 1, 1, true, true},
    {"transposed_3x3", 2, 5, 7, 7, 9, 3, 2, 1, 1, 1, false, true},
    {"transposed_groups", 2, 16, 5, 5, 32, 3, 1, 1, 1, 2, true, true},
};

at::Tensor convolve(const ConvolutionCase& one, const at::Tensor& x, const at::Tensor& w, const at::Tensor& b) {
  return one.transposed ? at::conv_transpose2d(x, w, b, one.stride, one.padding, 0, one.groups, one.dilation)
                        : at::conv2d(x, w, b, one.stride, one.padding, one.dilation, one.groups);
}

/// Value and gradients. Copies: the tensors are those of the caller.
std::function<Tensors()> convolution_of(const ConvolutionCase& one, const Tensors& data) {
  return [=] {
    Tensors leaves;
    for (const at::Tensor& tensor : data)
      leaves.push_back(tensor.defined() ? tensor.detach().requires_grad_() : tensor);
    // A sum before and after: the convolution's input and result are the program's own.
    const at::Tensor y = convolve(one, leaves[0] * 1, leaves[1], leaves[2]) * 1;
    y.backward(data[3]);
    return Tensors{y.detach(), leaves[0].grad(), leaves[1].grad(), one.bias ? leaves[2].grad() : at::Tensor()};
  };
}

Tensors in_double(const Tensors& tensors) {
  Tensors made;
  for (const at::Tensor& tensor : tensors) made.push_back(tensor.defined() ? tensor.to(at::kDouble) : tensor);
  return made;
}

class OnednnConvolution : public ::testing::TestWithParam<ConvolutionCase> {};

TEST_P(OnednnConvolution, IsAsExactAsLibtorch) {
  const ConvolutionCase& one = GetParam();
  torch::manual_seed(3);
  const at::Tensor x = torch::randn({one.batch, one.in, one.height, one.width}),
                   w = torch::randn({one.transposed ? one.in : one.out,
                                     (one.transposed ? one.out : one.in) / one.groups, one.kernel, one.kernel}),
                   b = one.bias ? torch::randn({one.out}) : at::Tensor();
  const Tensors data{x, w, b, at::randn_like(convolve(one, x, w, b))};
  const Tensors plain = convolution_of(one, data)(), exact = convolution_of(one, in_double(data))();
  const Outcome ours = with_onednn(convolution_of(one, data));
  EXPECT_EQ(ours.report.convolutions, 3) << ours.text;
  const char* const names[] = {"result", "input's gradient", "weight's gradient", "bias' gradient"};
  for (size_t i = 0; i < 4; ++i) expect_as_exact(ours.tensors[i], plain[i], exact[i], names[i]);
}

INSTANTIATE_TEST_SUITE_P(Shapes, OnednnConvolution, ::testing::ValuesIn(convolution_cases),
                         [](const auto& one) { return "_" + one.param.name; });

/// As under autocast: the weight is fp32, cast, and so is its gradient. Result, gradients of input, weight and bias.
Tensors mixed_convolution(const Tensors& data, at::ScalarType type) {
  Tensors leaves;
  for (const at::Tensor& tensor : data) leaves.push_back(tensor.detach().requires_grad_());
  const at::Tensor y = at::conv2d(leaves[0].to(type) * 1, leaves[1].to(type), leaves[2].to(type), 1, 1) * 1;
  y.backward(data[3].to(type));
  return {y.detach().to(data[0].dtype()), leaves[0].grad(), leaves[1].grad(), leaves[2].grad()};
}

TEST(OnednnConvolutionTest, Bf16AgreesToItsLastPlaces) {
  torch::manual_seed(3);
  for (const int64_t size : {9, 2}) {  // direct, and as a product
    Tensors data{torch::randn({2, 16, size, size}), torch::randn({128, 16, 3, 3}) / 12, torch::randn({128}),
                 torch::randn({2, 128, size, size})};
    for (at::Tensor& tensor : data) tensor = tensor.to(at::kBFloat16).to(at::kFloat);
    const Outcome ours = with_onednn([&] { return mixed_convolution(data, at::kBFloat16); });
    if (!has_bf16_primitives()) {
      EXPECT_EQ(ours.report.convolutions, 0) << ours.text;
      const Tensors plain = mixed_convolution(data, at::kBFloat16);
      for (size_t i = 0; i < 4; ++i) EXPECT_TRUE(at::equal(ours.tensors[i], plain[i])) << size << " tensor " << i;
      continue;
    }
    EXPECT_EQ(ours.report.convolutions, 3) << ours.text;
    EXPECT_EQ(ours.text.find("as product") != std::string::npos, size == 2) << ours.text;
    const Tensors exact = mixed_convolution(in_double(data), at::kDouble);
    const double roundings[] = {1.0 / 256, 1.0 / 256, 1e-5, 1.0 / 256};  // the weight's gradient was never bf16
    for (size_t i = 0; i < 4; ++i) {
      EXPECT_LE(largest(ours.tensors[i].to(at::kDouble) - exact[i]), largest(exact[i]) * roundings[i])
          << size << " tensor " << i;
    }
  }
}

TEST(OnednnConvolutionTest, TakesChannelsLastAsItIs) {
  const at::Tensor x = torch::randn({2, 16, 9, 9}).contiguous(at::MemoryFormat::ChannelsLast),
                   w = torch::randn({32, 16, 3, 3}).contiguous(at::MemoryFormat::ChannelsLast);
  const auto run = [&] { return Tensors{at::conv2d(x, w, {}, 1, 1)}; };
  const Outcome ours = with_onednn(run);
  EXPECT_EQ(ours.report.convolutions, 1) << ours.text;
  EXPECT_EQ(ours.report.reorders, 1) << "the weight only: " << ours.text;
  EXPECT_TRUE(at::allclose(ours.tensors[0], run()[0], 1e-4, 1e-4));
  EXPECT_EQ(ours.tensors[0].strides(), run()[0].strides());
}

TEST(OnednnConvolutionTest, LeavesWhatItDoesNotKnow) {
  const at::Tensor x = torch::randn({2, 4, 6, 6}), w = torch::randn({4, 8, 3, 3}), line = torch::randn({2, 4, 9}),
                   filter = torch::randn({8, 4, 3});
  const auto run = [&] {
    return Tensors{at::conv1d(line, filter), at::conv2d(x.to(at::kDouble), w.transpose(0, 1).to(at::kDouble))};
  };
  const Outcome ours = with_onednn(run);
  EXPECT_EQ(ours.report.convolutions, 0) << ours.text;
  const Tensors plain = run();
  for (size_t i = 0; i < plain.size(); ++i) EXPECT_TRUE(at::equal(ours.tensors[i], plain[i])) << i;
}

TEST(OnednnConvolutionTest, IsLeftToLibtorchWhereUsersTurnOnednnOff) {
  at::globalContext().setUserEnabledMkldnn(false);
  const at::Tensor x = torch::randn({2, 4, 6, 6}), w = torch::randn({8, 4, 3, 3});
  const Outcome ours = with_onednn([&] { return Tensors{at::conv2d(x, w)}; });
  at::globalContext().setUserEnabledMkldnn(true);
  EXPECT_EQ(ours.report.convolutions, 0) << ours.text;
}

// As in an autoencoder with tied weights: as many channels in as out, so the packed weights differ in their contents alone.
TEST(OnednnConvolutionTest, AndATransposedOneShareAWeight) {
  torch::manual_seed(3);
  const Tensors data{torch::randn({2, 8, 6, 6}), torch::randn({8, 8, 3, 3})};
  const auto run = [](const Tensors& in) {
    return [=] {
      const at::Tensor x = in[0].detach().requires_grad_(), w = in[1].detach().requires_grad_();
      const at::Tensor y = at::conv_transpose2d(at::conv2d(x * 1, w, {}, 1, 1).tanh(), w, {}, 1, 1) * 1;
      y.backward(at::ones_like(y));
      return Tensors{y.detach(), x.grad(), w.grad()};
    };
  };
  const Outcome ours = with_onednn(run(data));
  EXPECT_EQ(ours.report.convolutions, 6) << ours.text;
  const Tensors plain = run(data)(), exact = run(in_double(data))();
  for (size_t i = 0; i < 3; ++i) expect_as_exact(ours.tensors[i], plain[i], exact[i], c10::str("tensor ", i));
}

class OnednnBatchNorm : public ::testing::TestWithParam<bool> {};

TEST_P(OnednnBatchNorm, IsAsExactAsLibtorch) {
  const bool relu = GetParam();
  const std::vector<std::vector<int64_t>> shapes{{4, 16, 9, 7}, {2, 5, 3, 3}, {1, 33, 8, 8}, {2, 64, 1, 2}};
  for (const auto& sizes : shapes) {
    for (const bool affine : {true, false}) {
      torch::manual_seed(3);
      const at::Tensor x = torch::randn(sizes) * 2 + 1, g = torch::randn(sizes), w = torch::rand({sizes[1]}) + 0.5,
                       b = torch::randn({sizes[1]});
      const auto run = [&](at::ScalarType type, Tensors& statistics) {
        return [=, &statistics] {
          const auto leaf = [&](const at::Tensor& t) { return t.to(type).detach().clone().requires_grad_(); };
          const at::Tensor lx = leaf(x), lw = affine ? leaf(w) : at::Tensor(), lb = affine ? leaf(b) : at::Tensor();
          const at::Tensor mean = at::zeros({x.size(1)}, type), var = at::ones({x.size(1)}, type);
          const at::Tensor normed = at::batch_norm(lx * 1, lw, lb, mean, var, true, 0.1, 1e-5, false);
          const at::Tensor y = (relu ? at::relu(normed) : normed) * 1;
          y.backward(g.to(type));
          statistics = {mean, var};
          return affine ? Tensors{y.detach(), lx.grad(), lw.grad(), lb.grad()} : Tensors{y.detach(), lx.grad()};
        };
      };
      Tensors ours_kept, plain_kept, exact_kept;
      const Outcome ours = with_onednn(run(at::kFloat, ours_kept));
      const Tensors plain = run(at::kFloat, plain_kept)(), exact = run(at::kDouble, exact_kept)();
      EXPECT_EQ(ours.report.norms, 2) << at::IntArrayRef(sizes) << ours.text;
      EXPECT_EQ(ours.report.fused, relu ? 2 : 0) << ours.text;
      for (size_t i = 0; i < plain.size(); ++i)
        expect_as_exact(ours.tensors[i], plain[i], exact[i], c10::str(at::IntArrayRef(sizes), " tensor ", i));
      for (size_t i = 0; i < 2; ++i)
        expect_as_exact(ours_kept[i], plain_kept[i], exact_kept[i],
                        c10::str(at::IntArrayRef(sizes), " statistics ", i));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Relu, OnednnBatchNorm, ::testing::Bool());

/// A norm that learns, and a ReLU whose result and gradient are read in other ways, too.
Tensors norm_and_relu(const at::Tensor& x, bool in_place, bool read_before) {
  const at::Tensor leaf = x.detach().clone().requires_grad_();
  at::Tensor y = at::batch_norm(leaf * 1, {}, {}, {}, {}, true, 0.1, 1e-5, false);
  const at::Tensor before = read_before ? y * 2 : y;
  y = in_place ? at::relu_(y) : at::relu(y);
  at::Tensor out = (read_before ? y + before : y) * y;  // its gradient comes from two places
  out.backward(at::ones_like(out));
  return {out.detach(), leaf.grad()};
}

TEST(OnednnBatchNormTest, OfLargeImagesIsExact) {
  torch::manual_seed(3);
  const at::Tensor x = torch::randn({1, 3, 1024, 1024}) + 3;
  const auto run = [&] { return Tensors{at::relu(at::batch_norm(x * 1, {}, {}, {}, {}, true, 0.1, 1e-5, false))}; };
  const Outcome ours = with_onednn(run);
  EXPECT_EQ(ours.report.norms, 1) << ours.text;
  const at::Tensor exact = at::relu(at::batch_norm(x.to(at::kDouble), {}, {}, {}, {}, true, 0.1, 1e-5, false));
  EXPECT_LT((ours.tensors[0] - exact).abs().max().item<double>(), 5e-6);
}

TEST(OnednnBatchNormTest, TakesReluAlongWhereNobodySeesInBetween) {
  torch::manual_seed(3);
  const at::Tensor x = torch::randn({2, 16, 5, 6});
  for (const bool in_place : {false, true}) {
    for (const bool read_before : {false, true}) {
      const auto run = [&] { return norm_and_relu(x, in_place, read_before); };
      const Outcome ours = with_onednn(run);
      EXPECT_EQ(ours.report.norms, 2) << ours.text;
      EXPECT_EQ(ours.report.fused, read_before ? 0 : 2) << in_place << read_before << ours.text;
      const Tensors plain = run();
      for (size_t i = 0; i < plain.size(); ++i)
        EXPECT_TRUE(at::allclose(ours.tensors[i], plain[i], 1e-4, 1e-4)) << i << in_place << read_before;
    }
  }
}

TEST(OnednnBatchNormTest, ReluBehindHidesNoNan) {
  torch::manual_seed(3);
  for (const at::ScalarType type : primitive_types()) {
    at::Tensor x = torch::randn({2, 16, 3, 3}).to(type);
    x.select(1, 5)[1][2][2] = std::numeric_limits<float>::quiet_NaN();
    x.select(1, 7)[0][0][1] = std::numeric_limits<float>::infinity();
    const at::Tensor w = torch::ones({16}), b = torch::zeros({16});
    w[2] = std::numeric_limits<float>::quiet_NaN();
    const auto run = [&] { return Tensors{at::relu(at::batch_norm(x * 1, w, b, {}, {}, true, 0.1, 1e-5, false)) * 1}; };
    const Outcome ours = with_onednn(run);
    EXPECT_EQ(ours.report.fused, 1) << ours.text;
    EXPECT_TRUE(at::equal(ours.tensors[0].isnan(), run()[0].isnan())) << type;
  }
}

/// Gradients that NaN has reached are as in plain code, too.
TEST(OnednnBatchNormTest, ReluBehindHidesNoNanOfGradients) {
  torch::manual_seed(3);
  at::Tensor x = torch::randn({2, 32, 3, 3}), g = torch::randn({2, 32, 3, 3});
  x.select(1, 5)[1][2][2] = std::numeric_limits<float>::quiet_NaN();
  const auto run = [&] {
    const at::Tensor w = torch::ones({32}).requires_grad_(), b = torch::zeros({32}).requires_grad_();
    const at::Tensor leaf = x.clone().requires_grad_();
    at::relu(at::batch_norm(leaf * 1, w, b, {}, {}, true, 0.1, 1e-5, false)).backward(g);
    return Tensors{w.grad() * 1, b.grad() * 1, leaf.grad() * 1};
  };
  const Outcome ours = with_onednn(run);
  EXPECT_EQ(ours.report.fused, 2) << ours.text;
  const Tensors plain = run();
  for (size_t i = 0; i < plain.size(); ++i)
    EXPECT_TRUE(at::allclose(ours.tensors[i], plain[i], 1e-4, 1e-4, /*equal_nan=*/true)) << i << ours.tensors[i];
}

/// ReLU within a convolution or linear, sums in front of it, and pooling behind.
TEST(OnednnTest, NanGoesThroughConvolutionsLinearsAndPooling) {
  torch::manual_seed(3);
  for (const at::ScalarType type : primitive_types()) {
    at::Tensor x = torch::randn({2, 16, 8, 8}).to(type), rows = torch::randn({64, 64}).to(type);
    x[1][3][2][2] = rows[5][3] = std::numeric_limits<float>::quiet_NaN();
    x[0][4][6][6] = rows[9][3] = std::numeric_limits<float>::infinity();
    const at::Tensor w = (torch::randn({16, 16, 3, 3}) / 8).to(type), v = (torch::randn({64, 64}) / 8).to(type);
    const auto run = [&] {
      const c10::InferenceMode inference;
      const at::Tensor y = at::conv2d(x, w, {}, 1, 1), z = at::linear(rows, v);
      return Tensors{at::relu(y) * 1,          at::relu(at::conv2d(x, w, {}, 1, 1) + x) * 1,
                     at::max_pool2d(y, 2) * 1, at::max_pool2d(x, 3, 2, 1, 1, true) * 1,
                     at::relu(z) * 1,          (at::relu(at::linear(rows, v)) + rows) * 1};
    };
    const Outcome ours = with_onednn(run, {w, v});
    const Tensors plain = run();
    EXPECT_GE(ours.report.fused, 2) << ours.text;
    for (size_t i = 0; i < plain.size(); ++i) {
      EXPECT_TRUE(at::equal(ours.tensors[i].isnan() | ours.tensors[i].isinf(), plain[i].isnan() | plain[i].isinf()) ||
                  i == 0 || i == 1 || i == 4 || i == 5)
          << i << type;
      EXPECT_TRUE(plain[i].isnan().logical_and(ours.tensors[i].isnan().logical_not()).sum().item<int64_t>() == 0)
          << i << type << ours.text;
    }
  }
}

TEST(OnednnBatchNormTest, OfRunningStatisticsIsAsExact) {
  torch::manual_seed(3);
  const at::Tensor x = torch::randn({2, 24, 5, 5}), w = torch::rand({24}), b = torch::randn({24}),
                   mean = torch::randn({24}), var = torch::rand({24}) + 0.5;
  const auto run = [&](at::ScalarType type) {
    return [=] {
      const at::NoGradGuard no_grad;
      const auto in = [&](const at::Tensor& t) { return t.to(type); };
      return Tensors{at::batch_norm(in(x)*1, in(w), in(b), in(mean), in(var), false, 0.1, 1e-5, false) * 1};
    };
  };
  const Outcome ours = with_onednn(run(at::kFloat));
  EXPECT_EQ(ours.report.norms, 1) << ours.text;
  expect_as_exact(ours.tensors[0], run(at::kFloat)()[0], run(at::kDouble)()[0], "inference");
}

TEST(OnednnPooling, MaximaAndTheirGradientsAreLibtorchs) {
  struct Case {
    std::vector<int64_t> sizes;
    int64_t kernel, stride, padding, dilation;
    bool ceil;
  };
  const std::vector<Case> cases{{{2, 16, 9, 7}, 3, 2, 1, 1, false},
                                {{1, 5, 8, 8}, 2, 2, 0, 1, false},
                                {{2, 7, 9, 9}, 2, 2, 0, 1, true},
                                {{2, 16, 12, 12}, 3, 1, 1, 1, false},
                                {{2, 8, 12, 12}, 3, 2, 2, 2, false}};
  for (const Case& one : cases) {
    torch::manual_seed(3);
    const at::Tensor x = torch::randn(one.sizes).relu();  // zeros: ties
    if (one.padding > one.kernel / 2) continue;
    const auto run = [&] {
      const at::Tensor leaf = x.detach().requires_grad_();
      const at::Tensor y = at::max_pool2d(leaf * 1, one.kernel, one.stride, one.padding, one.dilation, one.ceil) * 1;
      (y * y).sum().backward();
      return Tensors{y.detach(), leaf.grad()};
    };
    const Outcome ours = with_onednn(run);
    EXPECT_EQ(ours.report.pools, 2) << ours.text;
    const Tensors plain = run();
    EXPECT_TRUE(at::equal(ours.tensors[0], plain[0])) << at::IntArrayRef(one.sizes);
    EXPECT_TRUE(at::allclose(ours.tensors[1], plain[1], 1e-6, 1e-6)) << at::IntArrayRef(one.sizes);
  }
}

TEST(OnednnPooling, LeavesPlacesThatSomebodyWantsToSee) {
  const at::Tensor x = torch::randn({2, 8, 8, 8});
  const auto run = [&] {
    const auto [y, places] = at::max_pool2d_with_indices(x, 2);
    return Tensors{y, places};
  };
  const Outcome ours = with_onednn(run);
  EXPECT_EQ(ours.report.pools, 0) << ours.text;
  EXPECT_TRUE(at::equal(ours.tensors[1], run()[1]));
}

TEST(OnednnPooling, MeansAreAsExactAsLibtorchs) {
  for (const bool counts_padding : {true, false}) {
    torch::manual_seed(3);
    const at::Tensor x = torch::randn({2, 9, 11, 8});
    const auto run = [&](at::ScalarType type) {
      return [=] {
        const at::Tensor leaf = x.to(type).detach().requires_grad_();
        const at::Tensor y = at::avg_pool2d(leaf * 1, 3, 2, 1, false, counts_padding) * 1;
        (y * y).sum().backward();
        return Tensors{y.detach(), leaf.grad()};
      };
    };
    const Outcome ours = with_onednn(run(at::kFloat));
    EXPECT_EQ(ours.report.pools, 2) << ours.text;
    const Tensors plain = run(at::kFloat)(), exact = run(at::kDouble)();
    for (size_t i = 0; i < 2; ++i) expect_as_exact(ours.tensors[i], plain[i], exact[i], c10::str("tensor ", i));
  }
}

}  // namespace
}  // namespace bellows::compile_detail::testing
