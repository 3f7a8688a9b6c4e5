#include "tests/graph/pass_support.h"
#include "tests/graph/training.h"
#include "tests/tap/bits_cases.h"

namespace bellows::graph::testing {
namespace {

using Kernels = PassBackend::Kernels;

/// Results and gradients of one way of calling an operator.
Program case_program(const tap::testing::BitsCase& one) {
  const auto inputs = std::make_shared<tap::testing::BitsInputs>();
  return {[=](int call) {
    {
      const at::NoGradGuard no_grad;
      for (at::Tensor leaf : inputs->leaves()) {
        leaf.mul_(1 - 0.01 * call);
        leaf.mutable_grad() = at::Tensor();
      }
    }
    Tensors all = one.run_with_backward(*inputs);
    for (const auto& leaf : inputs->leaves()) all.push_back(leaf.grad());
    return all;
  }};
}

/// Each formula gives what libtorch's kernel gives, but for the order of sums and the last bits of functions.
TEST(Expressions, AreWhatOperatorsCompute) {
  std::set<std::string> seen;
  for (const auto* cases :
       {&tap::testing::pointwise_cases, &tap::testing::reduction_cases, &tap::testing::network_cases}) {
    for (const auto& one : *cases) {
      SCOPED_TRACE(one.name);
      try {
        const auto backend =
            expect_passed([&] { return case_program(one); }, PassBackend({}, Kernels::single), 5e-5, 3);
        seen.insert(backend->evaluated.begin(), backend->evaluated.end());
      } catch (const c10::Error& error) {
        ADD_FAILURE() << error.what_without_backtrace();
      }
    }
  }
  EXPECT_GT(seen.size(), 90u);
  for (const char* name :
       {"aten::gelu_backward", "aten::_softmax_backward_data", "aten::native_layer_norm",
        "aten::native_layer_norm_backward", "aten::native_batch_norm", "aten::native_batch_norm_backward",
        "aten::mean.dim", "aten::_log_softmax", "aten::threshold_backward", "aten::binary_cross_entropy_with_logits",
        "aten::binary_cross_entropy_backward", "aten::huber_loss", "aten::huber_loss_backward", "aten::smooth_l1_loss",
        "aten::smooth_l1_loss_backward", "aten::log_sigmoid_forward", "aten::log_sigmoid_backward"})
    EXPECT_TRUE(seen.contains(name)) << name;
}

/// What an operator of a program computes, of one that runs once.
Expression expression_in(const std::function<Tensors(const Tensors&)>& body, const Tensors& inputs,
                         const std::string& op) {
  const auto backend = std::make_shared<PassBackend>(PassOptions{}, Kernels::single);
  RegionOptions options;
  options.backend = backend;
  Region region(options);
  for (int call = 0; call < 3; ++call) region.run([&] { body(inputs); });
  for (const auto& program : backend->programs) {
    for (const Instruction& one : program.instructions) {
      if (!one.op || one.op->name != op) continue;
      Instruction plain = one;
      plain.kernel = nullptr;
      if (const auto found = expression_of(plain)) return *found;
    }
  }
  return {};
}

TEST(Expressions, LoadTheMemoryAndComputeInFloat) {
  const at::Tensor a = torch::randn({3, 4}).to(at::kBFloat16), b = torch::randn({4}).to(at::kBFloat16);
  const Expression sum =
      expression_in([](const Tensors& x) -> Tensors { return {x[0] + x[1]}; }, {a, b}, "aten::add.Tensor");
  ASSERT_EQ(sum.loops, (Term::Numbers{3, 4})) << sum.to_text();
  const auto load = std::find_if(sum.terms.begin(), sum.terms.end(),
                                 [](const Term& term) { return term.function == Function::load && term.index == 0; });
  ASSERT_NE(load, sum.terms.end()) << sum.to_text();
  EXPECT_EQ(load->type, at::kBFloat16);
  EXPECT_EQ(load->strides, (Term::Numbers{4, 1}));
  const auto add =
      std::find_if(sum.terms.begin(), sum.terms.end(), [](const Term& term) { return term.function == Function::add; });
  ASSERT_NE(add, sum.terms.end());
  EXPECT_EQ(add->type, at::kFloat);
  ASSERT_EQ(sum.stores.size(), 1u);
  EXPECT_EQ(sum.stores[0].type, at::kBFloat16);
}

/// A program may be made faster on another thread, when the default is another one already.
TEST(Expressions, TakeNumbersInTheDefaultDtypeOfTheirCall) {
  const auto type_in = [](at::ScalarType default_dtype) {
    const auto body = [=](const Tensors& x) -> Tensors {
      torch::set_default_dtype(c10::scalarTypeToTypeMeta(default_dtype));
      const at::Tensor less = x[0].lt(0.5);
      torch::set_default_dtype(c10::scalarTypeToTypeMeta(at::kFloat));
      return {less};
    };
    const Expression less = expression_in(body, {torch::arange(4)}, "aten::lt.Scalar");
    const auto found = std::find_if(less.terms.begin(), less.terms.end(),
                                    [](const Term& term) { return term.function == Function::constant; });
    return found == less.terms.end() ? at::ScalarType::Undefined : found->type;
  };
  EXPECT_EQ(type_in(at::kDouble), at::kDouble);
  EXPECT_EQ(type_in(at::kFloat), at::kFloat);
}

TEST(Expressions, OfWhatIsNotKnownThereAreNone) {
  const at::Tensor a = torch::randn({4, 4});
  EXPECT_TRUE(
      expression_in([](const Tensors& x) -> Tensors { return {x[0].mm(x[0])}; }, {a}, "aten::mm").terms.empty());
  const auto at_least = [](int64_t number) {
    return expression_in([=](const Tensors& x) -> Tensors { return {x[0].clamp_min(number)}; }, {torch::arange(4)},
                         "aten::clamp_min");
  };
  EXPECT_FALSE(at_least(-(int64_t{1} << 53)).terms.empty());
  EXPECT_TRUE(at_least(std::numeric_limits<int64_t>::min()).terms.empty()) << "numbers in kernels are doubles";
  const at::Tensor z = at::complex(a, a);
  EXPECT_TRUE(
      expression_in([](const Tensors& x) -> Tensors { return {x[0] + x[0]}; }, {z}, "aten::add.Tensor").terms.empty());
}

}  // namespace
}  // namespace bellows::graph::testing
