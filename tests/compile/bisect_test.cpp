// Wrong passes, which BELLOWS_BISECT=1 finds and BELLOWS_WITHOUT_PASSES switches off.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdlib.h>

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/torch.h>

#include "bellows/compile.h"
#include "bellows/compile/backend.h"
#include "tests/support/captured_log.h"
#include "tests/support/errors.h"

namespace bellows::compile_detail::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
namespace nn = torch::nn;

/// An environment variable that has a value while the object exists.
class SetVariable {
 public:
  SetVariable(const char* name, const char* value) : name_(name) { ::setenv(name, value, 1); }
  ~SetVariable() { ::unsetenv(name_); }
  SetVariable(const SetVariable&) = delete;
  SetVariable& operator=(const SetVariable&) = delete;

 private:
  const char* name_;
};

/// Changes every subtraction to an addition, which has the same arguments.
graph::Pass wrong_pass() {
  return {.name = "wrong", .what = "adds instead of subtracting", .run = [](graph::Program& program, const auto&) {
            int64_t changed = 0;
            for (graph::Instruction& one : program.instructions) {
              if (!one.op || one.op->name != "aten::sub.Tensor") continue;
              one.op = &graph::operator_facts(c10::Dispatcher::singleton().findSchemaOrThrow("aten::add", "Tensor"));
              ++changed;
            }
            return changed;
          }};
}

graph::Pass throwing_pass() {
  return {.name = "thrower", .what = "throws", .run = [](graph::Program&, const auto&) -> int64_t {
            TORCH_CHECK(false, "the thrower found no place");
          }};
}

/// Adds 1 to elements of its operand.
struct WrongKernel : graph::Kernel {
  explicit WrongKernel(int64_t count) : count_(count) {}
  std::string name() const override { return "a wrong copy"; }
  void run(std::span<void* const> operands, std::span<void* const> results, std::span<const c10::IValue>,
           void*) const override {
    for (int64_t i = 0; i < count_; ++i)
      static_cast<float*>(results[0])[i] = static_cast<const float*>(operands[0])[i] + 1;
  }
  int64_t count_;
};

graph::Pass wrong_kernel_pass() {
  return {.name = "wrong kernel", .what = "runs tanh as a copy", .run = [](graph::Program& program, const auto&) {
            int64_t changed = 0;
            for (graph::Instruction& one : program.instructions) {
              if (!one.op || one.op->name != "aten::tanh") continue;
              one.kernel =
                  std::make_shared<WrongKernel>(c10::multiply_integers(one.arguments[0].operands[0].geometry.sizes));
              ++changed;
            }
            return changed;
          }};
}

at::Tensor formula(const at::Tensor& x, const at::Tensor& y) {
  const c10::InferenceMode inference;
  return at::mm(x, y).tanh() - y * 2;
}

struct Ran {
  at::Tensor result;
  std::string log, report;
};

/// Runs the formula three times with passes of the test, and returns the last result.
Ran run_with(std::vector<graph::Pass> extra, bool exact = false) {
  torch::manual_seed(2);
  const at::Tensor x = torch::randn({16, 16}), y = torch::randn({16, 16}), x_before = x.clone();
  const auto backend = std::make_shared<CpuBackend>(BackendOptions{.exact = exact, .extra_passes = std::move(extra)});
  graph::Region region({.record_deferred = true, .backend = backend});
  Ran ran;
  const CapturedLog log;
  for (int call = 0; call < 3; ++call) {
    region.run([&] { ran.result = formula(x, y); });
    if (log.text().empty()) continue;
    EXPECT_TRUE(at::allclose(ran.result, formula(x, y), 1e-4, 1e-5)) << "call " << call;
  }
  EXPECT_TRUE(at::equal(x, x_before)) << "the check wrote to an input";
  ran.log = log.text();
  ran.report = backend->to_text();
  return ran;
}

at::Tensor expected() {
  torch::manual_seed(2);
  const at::Tensor x = torch::randn({16, 16}), y = torch::randn({16, 16});
  return formula(x, y);
}

bool is_right(const at::Tensor& result) {
  return at::allclose(result, expected(), 1e-4, 1e-5);
}

TEST(Bisect, TheWrongPassOfTheTestsIsWrong) {
  EXPECT_FALSE(is_right(run_with({wrong_pass()}).result)) << "the other tests prove nothing";
  EXPECT_FALSE(is_right(run_with({wrong_kernel_pass()}).result)) << "the other tests prove nothing";
}

TEST(Bisect, NamesAWrongPass) {
  const SetVariable bisect("BELLOWS_BISECT", "1");
  for (const bool exact : {false, true}) {
    const Ran ran = run_with({wrong_pass()}, exact);
    EXPECT_TRUE(is_right(ran.result));
    EXPECT_THAT(ran.log, AllOf(HasSubstr("the pass \"wrong\" (adds instead of subtracting) is wrong: output 0 (f32[16, "
                                         "16]) differs by up to "),
                               HasSubstr("from the unchanged program (largest value "),
                               HasSubstr("replaces 1 × aten::sub.Tensor with 1 × aten::add.Tensor."),
                               HasSubstr("The different result is computed by aten::add.Tensor."),
                               HasSubstr("set BELLOWS_WITHOUT_PASSES=\"wrong\"")));
    EXPECT_EQ(ran.log.find("is wrong:"), ran.log.rfind("is wrong:")) << ran.log;
    EXPECT_THAT(ran.report, HasSubstr("wrong: the pass \"wrong\""));
    EXPECT_EQ(ran.report.find("kernels: 1") != std::string::npos, !exact) << "other passes were skipped, too";
  }
}

TEST(Bisect, NamesAPassThatThrows) {
  const SetVariable bisect("BELLOWS_BISECT", "1");
  const Ran ran = run_with({throwing_pass()});
  EXPECT_TRUE(is_right(ran.result));
  EXPECT_THAT(ran.log, AllOf(HasSubstr("the pass \"thrower\" (throws) is wrong: an exception is thrown: "),
                             HasSubstr("the thrower found no place"), HasSubstr("BELLOWS_WITHOUT_PASSES=\"thrower\"")));
  EXPECT_THAT(ran.report, HasSubstr("kernels: 1"));
}

TEST(Bisect, NamesAWrongKernel) {
  const SetVariable bisect("BELLOWS_BISECT", "1");
  const Ran ran = run_with({wrong_kernel_pass()});
  EXPECT_TRUE(is_right(ran.result));
  EXPECT_THAT(ran.log, AllOf(HasSubstr("the pass \"wrong kernel\""), HasSubstr("The wrong kernel is a wrong copy: "),
                             HasSubstr("tanh")));
}

TEST(Bisect, NamesEachOfSeveralWrongPasses) {
  const SetVariable bisect("BELLOWS_BISECT", "1");
  const Ran ran = run_with({wrong_pass(), throwing_pass(), wrong_kernel_pass()});
  EXPECT_TRUE(is_right(ran.result));
  for (const char* name : {"wrong", "thrower", "wrong kernel"})
    EXPECT_THAT(ran.log, HasSubstr(std::string("the pass \"") + name + "\""));
}

/// A training step with gradients that consist of rounding errors only (the bias before batch norm), to which Adam
/// gives full steps, with dropout, integers, and writes to its inputs.
TEST(Bisect, FindsNothingInRightPrograms) {
  const SetVariable bisect("BELLOWS_BISECT", "1");
  torch::manual_seed(4);
  nn::Sequential net(nn::Conv2d(nn::Conv2dOptions(3, 8, 3)), nn::BatchNorm2d(8), nn::ReLU(), nn::MaxPool2d(2),
                     nn::Conv2d(nn::Conv2dOptions(8, 16, 3).stride(2)), nn::BatchNorm2d(16), nn::GELU(), nn::Flatten(),
                     nn::Dropout(0.3), nn::Linear(64, 32), nn::LayerNorm(nn::LayerNormOptions({32})),
                     nn::Linear(32, 5));
  const at::Tensor x = torch::randn({12, 3, 12, 12}), y = torch::randint(0, 5, {12});
  torch::optim::AdamW optimizer(net->parameters(), torch::optim::AdamWOptions(1e-2));
  const auto step = [&] {
    optimizer.zero_grad();
    const at::Tensor scores = net->forward(x), loss = torch::cross_entropy_loss(scores, y);
    loss.backward();
    optimizer.step();
    return std::make_tuple(loss.detach(), scores.argmax(1), (scores > 0).sum());
  };
  for (const bool bf16 : {false, true}) {
    auto compiled =
        compile(step, {.autocast = bf16 ? std::make_optional(at::kBFloat16) : std::nullopt, .always = true});
    const CapturedLog log;
    for (int call = 0; call < 4; ++call) compiled();
    EXPECT_THAT(log.text(), ::testing::Not(HasSubstr("the pass")));  // a slow compiler may be reported
    EXPECT_THAT(compiled.explain().to_text(), ::testing::ContainsRegex("kernels: [1-9]"));
  }
}

TEST(Bisect, ChecksProgramsWithFrozenTensors) {
  const SetVariable bisect("BELLOWS_BISECT", "1");
  torch::manual_seed(4);
  const at::Tensor w = torch::randn({16, 16}), x = torch::randn({4, 16}), w_before = w.clone();
  const auto body = [&] {
    const c10::InferenceMode inference;
    return torch::relu(torch::linear(x, w.t().exp() + 1) * 2);
  };
  auto compiled = compile(body, {.frozen = {w}, .always = true});
  const CapturedLog log;
  for (int call = 0; call < 4; ++call) EXPECT_TRUE(at::allclose(compiled(), body(), 1e-4, 1e-3));
  EXPECT_EQ(log.text(), "");
  EXPECT_TRUE(at::equal(w, w_before));
}

TEST(Bisect, SkipsPassesByName) {
  const SetVariable without("BELLOWS_WITHOUT_PASSES", "wrong, dead code,loops");
  const Ran ran = run_with({wrong_pass()});
  EXPECT_TRUE(is_right(ran.result));
  EXPECT_THAT(ran.report, Not(HasSubstr("loops")));
}

TEST(Bisect, GeneratesNoCodeWithoutKernels) {
  EXPECT_THAT(run_with({}).report, HasSubstr("kernels: 1"));
  const SetVariable without("BELLOWS_WITHOUT_PASSES", "kernels,branches,autocast,onednn");
  EXPECT_THAT(run_with({}).report, AllOf(HasSubstr("program of"), Not(HasSubstr("kernels: "))));
}

TEST(Bisect, RefusesUnknownNamesAndValues) {
  {
    const SetVariable without("BELLOWS_WITHOUT_PASSES", "loops,atention");
    EXPECT_THAT(message_of([] { compile([] {}); }),
                AllOf(HasSubstr("BELLOWS_WITHOUT_PASSES contains \"atention\", which is not a pass. Did you mean "
                                "\"attention\"?"),
                      HasSubstr("composites, "), HasSubstr("loops, "), HasSubstr("kernels"), HasSubstr("branches")));
  }
  const SetVariable bisect("BELLOWS_BISECT", "yes");
  EXPECT_THAT(message_of([] { compile([] {}); }), HasSubstr("BELLOWS_BISECT must be 0 or 1, got \"yes\""));
}

}  // namespace
}  // namespace bellows::compile_detail::testing
