#include "bellows/compile/codegen/schedule.h"
#include "bellows/compile/jit/program_kernels.h"
#include "tests/compile/codegen_support.h"

namespace bellows::compile_detail::testing {
namespace {

using Shapes = std::vector<at::Tensor>;

/// Tensors of all awkward kinds, with values in a range.
Shapes awkward(double low, double high, at::ScalarType type = at::kFloat) {
  const auto make = [&](at::IntArrayRef sizes) { return (at::rand(sizes) * (high - low) + low).to(type); };
  return {make({0}),
          make({}),
          make({1}),
          make({15}),
          make({17}),
          make({5, 17}).t(),
          make({3, 4, 5}).permute({1, 2, 0}),
          make({40, 33}).slice(1, 3, 31, 2),
          make({1, 7}).expand({9, 7}),
          make({2, 3, 4, 5}).contiguous(at::MemoryFormat::ChannelsLast),
          make({70, 130})};
}

OperatorCase one_of(const std::string& name, std::vector<c10::IValue> arguments, double rtol = 1e-5,
                    double atol = 1e-6) {
  return {.name = name, .arguments = std::move(arguments), .rtol = rtol, .atol = atol};
}

double eps_of(at::ScalarType type) {
  return type == at::kBFloat16 ? 8e-3 : type == at::kHalf ? 1e-3 : 1e-6;
}

class CodeOfUnary : public ::testing::TestWithParam<at::ScalarType> {};

TEST_P(CodeOfUnary, IsAsAtenComputes) {
  torch::manual_seed(1);
  const at::ScalarType type = GetParam();
  std::vector<OperatorCase> cases;
  const auto add = [&](const std::string& name, double low, double high, double ulps = 8) {
    for (const at::Tensor& x : awkward(low, high, type))
      cases.push_back(one_of("aten::" + name, {x}, ulps * eps_of(type), 1e-6));
  };
  for (const char* name : {"exp", "expm1", "tanh", "erf", "sigmoid", "relu", "silu", "gelu", "neg", "abs", "floor",
                           "ceil", "round", "trunc", "sin", "cos", "sign", "log1p"})
    add(name, name == std::string("log1p") ? -0.9 : -6, 6);
  for (const char* name : {"log", "log2", "log10", "sqrt", "rsqrt", "reciprocal"}) add(name, 0.01, 9);
  expect_generated(cases);
}

INSTANTIATE_TEST_SUITE_P(Types, CodeOfUnary, ::testing::Values(at::kFloat, at::kDouble, at::kBFloat16, at::kHalf));

TEST(CodeOfFunctions, RoundsNoIntegers) {
  std::vector<OperatorCase> cases;
  for (const char* name : {"floor", "ceil", "round", "trunc"}) {
    for (const at::ScalarType type : {at::kLong, at::kInt, at::kByte})
      cases.push_back(one_of(std::string("aten::") + name, {torch::arange(17).to(type)}));
  }
  expect_generated(cases);
}

TEST(CodeOfFunctions, KeepsInfinitiesAndNan) {
  const double inf = std::numeric_limits<double>::infinity();
  const at::Tensor x =
      at::tensor({0., -0., inf, -inf, std::nan(""), 1., -1., 1e-40, 88.9, -104., 89.5, 1e30}, at::kFloat);
  std::vector<OperatorCase> cases;
  for (const char* name : {"exp", "log", "log1p", "tanh", "erf", "expm1", "sqrt", "relu", "sigmoid", "rsqrt"})
    cases.push_back(one_of(std::string("aten::") + name, {x}, 1e-5, 1e-38));
  for (const char* name : {"amax", "amin", "sum.dim_IntList"})
    cases.push_back(one_of(std::string("aten::") + name, {x.view({3, 4}), std::vector<int64_t>{1}, true}));
  cases.push_back(one_of("aten::amax", {x.view({3, 4}), std::vector<int64_t>{0}, false}));
  cases.push_back(one_of("aten::maximum", {x, x.flip(0)}));
  cases.push_back(one_of("aten::to.dtype", {x, at::kHalf}));
  cases.pop_back();
  cases.push_back(one_of("aten::_to_copy", {x, at::kHalf}));
  cases.push_back(one_of("aten::_to_copy", {x, at::kBFloat16}));
  expect_generated(cases);
}

// Five units of the last place, one of them libtorch's.
TEST(CodeOfFunctions, AreWithinUnitsOfTheLastPlace) {
  std::vector<OperatorCase> cases;
  for (const char* name : {"exp", "expm1", "tanh", "erf"})
    cases.push_back(one_of(std::string("aten::") + name, {at::linspace(-8, 8, 20001)}, 6e-7, 1e-12));
  for (const char* name : {"log", "log1p"})
    cases.push_back(one_of(std::string("aten::") + name, {at::linspace(1e-4, 50, 20001)}, 6e-7, 1e-12));
  for (const char* name : {"exp", "tanh", "log"}) {
    const bool log = name == std::string("log");
    for (const double scale : {0.1, 1.0, 80.0})
      cases.push_back(one_of(std::string("aten::") + name,
                             {at::linspace(log ? 1e-9 : -scale * 8, scale * 8, 20001, at::kDouble)}, 1e-15, 1e-300));
  }
  expect_generated(cases);
}

TEST(CodeOfFunctions, KeepsSpecialDoubles) {
  const double inf = std::numeric_limits<double>::infinity();
  const at::Tensor x =
      at::tensor({0., -0., inf, -inf, std::nan(""), 1e-310, 709.7, 710.5, -708., -745., -746., 1e308}, at::kDouble);
  std::vector<OperatorCase> cases;
  for (const char* name : {"exp", "log", "tanh", "sigmoid"})
    cases.push_back(one_of(std::string("aten::") + name, {x}, 1e-15, 0));
  expect_generated(cases);
}

TEST(CodeOfBinary, BroadcastsByStrides) {
  torch::manual_seed(2);
  std::vector<OperatorCase> cases;
  const std::vector<std::pair<at::Tensor, at::Tensor>> pairs = {
      {at::rand({3, 1, 17}), at::rand({5, 1})},
      {at::rand({15}), at::rand({})},
      {at::rand({4, 6, 5, 5}), at::rand({6, 1, 1})},
      {at::rand({4, 6, 5, 5}).contiguous(at::MemoryFormat::ChannelsLast), at::rand({4, 6, 5, 5})},
      {at::rand({33, 65}).t(), at::rand({65, 33})},
      {at::rand({12}), at::rand({12}, at::kDouble)},
      {at::randint(1, 9, {7, 3}), at::rand({3})},
      {at::rand({7, 3}).to(at::kBFloat16), at::rand({3}).to(at::kBFloat16)},
      {at::randint(1, 9, {7, 3}), at::randint(1, 9, {7, 1})}};
  for (const auto& [a, b] : pairs) {
    const double rtol = 4 * eps_of(a.scalar_type());
    cases.push_back(one_of("aten::add.Tensor", {a, b, 2}, rtol));
    cases.push_back(one_of("aten::sub.Tensor", {a, b, 1}, rtol));
    for (const char* name : {"mul.Tensor", "div.Tensor", "maximum", "minimum", "eq.Tensor", "lt.Tensor", "ge.Tensor"})
      cases.push_back(one_of(std::string("aten::") + name, {a, b}, rtol));
    cases.push_back(one_of("aten::pow.Tensor_Scalar", {a, 2}, rtol));
    cases.push_back(one_of("aten::where.self", {a > 0.5, a, b.to(a.dtype())}, rtol));
    cases.push_back(one_of("aten::lerp.Scalar", {at::rand({9}), at::rand({9}), 0.3}, rtol));
  }
  expect_generated(cases);
}

TEST(CodeOfReductions, SumsRowsAndColumns) {
  torch::manual_seed(3);
  std::vector<OperatorCase> cases;
  const std::vector<at::Tensor> tensors = {at::randn({64, 33}),
                                           at::randn({33, 64}).t(),
                                           at::randn({2, 3, 4, 5}),
                                           at::randn({1, 700}),
                                           at::randn({700, 1}),
                                           at::randn({5000, 17}),
                                           at::randn({17, 9000}),
                                           at::randn({3, 40, 7}),
                                           at::randn({4, 8, 6, 6}).contiguous(at::MemoryFormat::ChannelsLast)};
  for (const at::Tensor& x : tensors) {
    for (int64_t dim = 0; dim < x.dim(); ++dim) {
      for (const bool keep : {false, true}) {
        const std::vector<int64_t> dims{dim};
        cases.push_back(one_of("aten::sum.dim_IntList", {x, dims, keep}, 1e-5, 1e-4));
        cases.push_back(one_of("aten::mean.dim", {x, dims, keep}, 1e-5, 1e-5));
        cases.push_back(one_of("aten::amax", {x, dims, keep}));
      }
      cases.push_back(one_of("aten::_softmax", {x, dim, false}));
      cases.push_back(one_of("aten::_log_softmax", {x, dim, false}));
    }
    cases.push_back(one_of("aten::sum", {x}, 1e-5, 1e-3));
    cases.push_back(one_of("aten::mean", {x}, 1e-5, 1e-5));
    cases.push_back(one_of("aten::sum.dim_IntList", {x, std::vector<int64_t>{0, 1}, false}, 1e-5, 1e-3));
  }
  const at::Tensor wide = at::randn({6, 40}).to(at::kBFloat16);
  cases.push_back(one_of("aten::sum.dim_IntList", {wide, std::vector<int64_t>{1}, false}, 8e-3, 1e-2));
  cases.push_back(one_of("aten::_softmax", {wide, 1, false}, 8e-3, 1e-3));
  expect_generated(cases);
}

/// On one thread, they would take as long as a matmul.
TEST(CodeOfReductions, DividesSumsOfVeryManyElements) {
  for (const auto& sizes : std::vector<std::vector<int64_t>>{{128, 784}, {4, 3, 96, 96}, {9, 20000}}) {
    OperatorCase sum = one_of("aten::sum", {at::randn(sizes)});
    prepare(sum);
    const auto expression = graph::expression_of(sum.instruction);
    ASSERT_TRUE(expression);
    EXPECT_EQ(schedule(*expression)->phases.size(), 2u);
    EXPECT_TRUE(is_worth_generating(*expression));
  }
  OperatorCase row = one_of("aten::sum", {at::randn({100000})});  // has no loop that could be divided
  prepare(row);
  EXPECT_EQ(schedule(*graph::expression_of(row.instruction))->phases.size(), 1u);
}

TEST(CodeOfNormalizations, AreAsAtenComputes) {
  torch::manual_seed(4);
  std::vector<OperatorCase> cases;
  for (const int64_t width : {1, 15, 17, 768}) {
    const at::Tensor x = at::randn({6, 5, width}), w = at::rand({width}), b = at::rand({width}),
                     grad = at::randn({6, 5, width});
    const std::vector<int64_t> shape{width};
    cases.push_back(one_of("aten::native_layer_norm", {x, shape, w, b, 1e-5}, 1e-4, 1e-5));
    cases.push_back(one_of("aten::layer_norm", {x, shape, w, b, 1e-5}, 1e-4, 1e-5));
    cases.push_back(one_of("aten::softmax.int", {x, -1}));
    cases.push_back(one_of("aten::log_softmax.int", {x, -1}));
    const auto [y, mean, scale] = at::native_layer_norm(x, shape, w, b, 1e-5);
    cases.push_back(one_of("aten::native_layer_norm_backward",
                           {grad, x, shape, mean, scale, w, b, std::vector<bool>{true, true, true}}, 1e-4, 1e-4));
    const at::Tensor soft = x.softmax(-1), log_soft = x.log_softmax(-1);
    cases.push_back(one_of("aten::_softmax_backward_data", {grad, soft, -1, at::kFloat}, 1e-5, 1e-6));
    cases.push_back(one_of("aten::_log_softmax_backward_data", {grad, log_soft, -1, at::kFloat}, 1e-5, 1e-5));
  }
  for (const auto format : {at::MemoryFormat::Contiguous, at::MemoryFormat::ChannelsLast}) {
    for (const int64_t side : {1, 5, 16}) {
      const at::Tensor x = at::randn({4, 9, side, side}).contiguous(format), w = at::rand({9}), b = at::rand({9});
      const at::Tensor mean = at::rand({9}), variance = at::rand({9}),
                       grad = at::randn({4, 9, side, side}).contiguous(format);
      cases.push_back(
          one_of("aten::native_batch_norm", {x, w, b, mean.clone(), variance.clone(), true, 0.1, 1e-5}, 1e-4, 1e-5));
      cases.push_back(one_of("aten::native_batch_norm", {x, w, b, mean, variance, false, 0.1, 1e-5}, 1e-4, 1e-5));
      const auto [y, saved, scale] = at::native_batch_norm(x, w, b, mean, variance, true, 0.1, 1e-5);
      cases.push_back(one_of(
          "aten::native_batch_norm_backward",
          {grad, x, w, mean, variance, saved, scale, true, 1e-5, std::vector<bool>{true, true, true}}, 1e-4, 1e-4));
    }
  }
  expect_generated(cases);
}

}  // namespace
}  // namespace bellows::compile_detail::testing
