#include "bellows/graph/execution/parallelism.h"
#include "bellows/graph/program/rewrite.h"
#include "tests/graph/pass_support.h"

namespace bellows::graph::testing {
namespace {

/// A function of tensors without gradients, through one pass only.
std::shared_ptr<PassBackend> through(const std::string& pass, const std::function<Tensors(const Tensors&)>& body,
                                     const Tensors& given) {
  PassOptions options{.exact = true};
  for (const Pass& other : passes()) {
    if (other.name != pass && other.name != "versions" && other.name != "dead code")
      options.without.push_back(other.name);
  }
  return expect_passed(
      [=] {
        Tensors inputs;
        for (const at::Tensor& tensor : given) inputs.push_back(tensor.clone());
        return Program{[=](int) {
                         const at::NoGradGuard no_grad;
                         return body(inputs);
                       },
                       [=] { return inputs; }};
      },
      PassBackend(options));
}

size_t instructions(const PassBackend& backend) {
  return backend.programs.back().instructions.size();
}

TEST(Passes, DeadCodeIsWhatNobodyReads) {
  const auto backend = through("dead code",
                               [](const Tensors& x) -> Tensors {
                                 const at::Tensor unused = (x[0] * 2).exp();
                                 return {x[0] + 1};
                               },
                               {torch::randn({3, 3})});
  EXPECT_EQ(instructions(*backend), 1u);
  EXPECT_EQ(backend->reports.back().fired("dead code"), 2);
}

TEST(Passes, WhatIsWrittenIsNotDead) {
  const auto backend = through("dead code",
                               [](const Tensors& x) -> Tensors {
                                 x[0].select(0, 1).add_(1);
                                 at::Tensor own = x[0] * 2;
                                 own.select(0, 0).zero_();
                                 return {own};
                               },
                               {torch::randn({3, 3})});
  EXPECT_EQ(instructions(*backend), 3u);
}

TEST(Passes, CommonIsComputedOnce) {
  const auto backend = through("common",
                               [](const Tensors& x) -> Tensors {
                                 return {x[0].exp() + 1, x[0].exp() + 2, x[0].exp().t() + 1};
                               },
                               {torch::randn({3, 4})});
  EXPECT_EQ(instructions(*backend), 4u) << backend->programs.back().to_text();
}

TEST(Passes, CommonIsNotWhatWasWrittenBetween) {
  const auto backend = through("common",
                               [](const Tensors& x) -> Tensors {
                                 const at::Tensor before = x[0].exp();
                                 x[0].add_(1);
                                 return {before * 2, x[0].exp() * 2, x[0].exp() * 3};
                               },
                               {torch::randn({3, 4})});
  EXPECT_EQ(instructions(*backend), 6u) << backend->programs.back().to_text();
  EXPECT_EQ(backend->reports.back().fired("common"), 1);
}

TEST(Passes, TwoResultsStayTwo) {
  through("common", [](const Tensors& x) -> Tensors { return {x[0].exp(), x[0].exp()}; }, {torch::randn({3, 4})});
  through("algebra",
          [](const Tensors& x) -> Tensors {
            return {x[0].clone(), x[0].clone(), x[0] * 1};
          },
          {torch::randn({3})});
}

TEST(Passes, CastsOfViewsAreCastsOfTheWhole) {
  const auto backend = through("casts",
                               [](const Tensors& x) -> Tensors {
                                 return {x[0].to(at::kBFloat16) + 1, x[0].t().to(at::kBFloat16) + 1,
                                         x[0].view({-1}).to(at::kBFloat16) + 1, x[0].slice(0, 1).to(at::kBFloat16) + 1,
                                         x[0].to(at::kDouble) + 1};
                               },
                               {torch::randn({3, 4})});
  EXPECT_EQ(backend->reports.back().fired("casts"), 2) << backend->programs.back().to_text();
}

TEST(Passes, AlgebraThatChangesNoBit) {
  const at::Tensor x = torch::tensor({-0.0f, 0.0f, 1.5f, -1e38f, std::numeric_limits<float>::infinity()});
  const auto count = [&](const std::function<at::Tensor(const at::Tensor&)>& formula) {
    const auto backend =
        through("algebra", [&](const Tensors& all) -> Tensors { return {formula(all[0]).exp()}; }, {x});
    return instructions(*backend) - 1;
  };
  EXPECT_EQ(count([](const at::Tensor& a) { return a * 1; }), 0u);
  EXPECT_EQ(count([](const at::Tensor& a) { return a / 1; }), 0u);
  EXPECT_EQ(count([](const at::Tensor& a) { return a - 0; }), 0u);
  EXPECT_EQ(count([](const at::Tensor& a) { return a.neg().neg(); }), 0u);
  EXPECT_EQ(count([](const at::Tensor& a) { return a.pow(1); }), 0u);
  EXPECT_EQ(count([](const at::Tensor& a) { return a.relu().relu(); }), 1u);
  EXPECT_EQ(count([](const at::Tensor& a) { return a.clone(); }), 0u);
  EXPECT_EQ(count([](const at::Tensor& a) { return a.to(at::kDouble).to(at::kFloat); }), 0u);
  EXPECT_EQ(count([](const at::Tensor& a) { return a.to(at::kDouble).to(at::kBFloat16); }), 1u);
  EXPECT_EQ(count([](const at::Tensor& a) { return (a * 4) * 2; }), 1u);
  EXPECT_EQ(count([](const at::Tensor& a) { return a + 0; }), 1u) << "0 + -0 is 0";
  EXPECT_EQ(count([](const at::Tensor& a) { return (a * 0.5) * 2; }), 2u) << "half of the smallest number is 0";
  EXPECT_EQ(count([](const at::Tensor& a) { return a.to(at::kBFloat16).to(at::kFloat); }), 2u) << "rounds";
  EXPECT_EQ(count([](const at::Tensor& a) { return a / 3; }), 1u);
}

TEST(Passes, NumbersThatMayChangeAreNoConstants) {
  const auto make = [] {
    const at::Tensor x = torch::randn({3});
    return Program{[x](int call) -> Tensors { return {(x * (call < 3 ? 1.0 : 2.0 + call)).exp()}; }};
  };
  expect_passed(make, PassBackend({.exact = true}));
}

/// A program of its own: y = exp(w) * x, where w is known.
graph::Program with_constant(const at::Tensor& w) {
  const at::Tensor x = torch::ones({3});
  const auto op = [](const char* name) {
    return &operator_facts(
        c10::Dispatcher::singleton().findSchemaOrThrow(name, std::string(name) == "aten::exp" ? "" : "Tensor"));
  };
  const auto tensor = [&](ValueId value) {
    return Instruction::Argument{.kind = OperatorFacts::Kind::tensor, .operands = {{value, Geometry::of(x)}}};
  };
  graph::Program program;
  program.states.push_back({.dispatch_state = DispatchState::capture()});
  for (int i = 0; i < 4; ++i) program.values.push_back({Geometry::of(x), x.nbytes()});
  program.inputs = {0};
  program.constants = {{1, w}};
  program.instructions = {
      {.op = op("aten::exp"), .arguments = {tensor(1)}, .results = {{.operands = {{2, Geometry::of(x)}}}}},
      {.op = op("aten::mul"), .arguments = {tensor(2), tensor(0)}, .results = {{.operands = {{3, Geometry::of(x)}}}}}};
  program.outputs = {{.value = 3}};
  return program;
}

TEST(Passes, ConstantsAreComputedOnce) {
  const at::Tensor w = torch::randn({3}), x = torch::randn({3});
  graph::Program program = with_constant(w);
  program.check();
  const PassReport report = run_passes(program, {.exact = true, .check = true});
  EXPECT_EQ(report.fired("constants"), 1);
  ASSERT_EQ(program.instructions.size(), 1u);
  std::vector<c10::Storage> inputs{x.storage()}, outputs(1);
  ProgramRunner(program).run(inputs, {}, outputs);
  EXPECT_TRUE(same_bits(Geometry::of(x).over(outputs[0]), w.exp() * x));
}

TEST(Passes, ConstantsThatGrowAreMadeInEachCall) {
  const at::Tensor w = torch::randn({5000}), x = torch::randn({2, 5000});
  const auto backend = std::make_shared<PassBackend>(PassOptions{.exact = true});
  backend->frozen = {w};
  RegionOptions options;
  options.backend = backend;
  Region region(options);
  at::Tensor result;
  for (int call = 0; call < 3; ++call) region.run([&] { result = x * w.neg().repeat({2, 1}); });
  EXPECT_EQ(backend->reports.back().fired("constants"), 1) << backend->programs.back().to_text();
  EXPECT_TRUE(same_bits(result, x * w.neg().repeat({2, 1})));
}

TEST(Passes, WhatLetsGoOfMemoryRunsAsSoonAsItCan) {
  const auto backend = through("order",
                               [](const Tensors& x) -> Tensors {
                                 const at::Tensor a = x[0].exp(), b = x[0].tanh(), of_b = b.sum();
                                 return {of_b, a.sum()};
                               },
                               {torch::randn({30})});
  const auto& all = backend->programs.back().instructions;
  EXPECT_EQ(backend->reports.back().fired("order"), 1) << backend->programs.back().to_text();
  EXPECT_EQ(all[1].op->name, "aten::sum") << "of exp, before tanh is there";
  EXPECT_EQ(all[2].op->name, "aten::tanh");
}

/// How often groups of a function of a square matrix write over what they read.
int64_t times_reused(const std::function<at::Tensor(const at::Tensor&)>& function) {
  const auto make = [&] {
    const at::Tensor x = torch::randn({6, 6});
    return Program{[=](int) -> Tensors {
      const at::NoGradGuard no_grad;
      return {function(x)};
    }};
  };
  const auto backend = expect_passed(make, PassBackend({}, PassBackend::Kernels::groups), 1e-6);
  return backend->reports.back().fired("reuse");
}

TEST(Passes, GroupsWriteOverWhatNobodyReadsAfterwards) {
  EXPECT_EQ(times_reused([](const at::Tensor& x) { return ((x.mm(x) + 1).relu()).mm(x); }), 1);
  EXPECT_EQ(times_reused([](const at::Tensor& x) { return at::softmax(x.mm(x) * 2, 1).mm(x); }), 1) << "row by row";
  EXPECT_EQ(times_reused([](const at::Tensor& x) {
              const at::Tensor a = x.mm(x);
              return (a + 1).relu().mm(a);
            }),
            0)
      << "is read again";
  EXPECT_EQ(times_reused([](const at::Tensor& x) { return (x.mm(x).t() + x.mm(x * 2)).relu().mm(x); }), 1);
  EXPECT_EQ(times_reused([](const at::Tensor& x) { return (x.mm(x).t() + x.mm(x)).relu().mm(x); }), 0)
      << "is read across";
  EXPECT_EQ(times_reused([](const at::Tensor& x) { return (x + 1).relu().mm(x); }), 0) << "is an input";
}

TEST(Passes, ParallelismIsThatOfTheLongestChain) {
  const auto backend = through("dead code",
                               [](const Tensors& x) -> Tensors {
                                 return {x[0].exp().neg() + x[0].tanh(), x[0].sin()};
                               },
                               {torch::randn({10})});
  const Parallelism found = parallelism(backend->programs.back(), [](const Instruction&) { return 1.0; });
  EXPECT_EQ(found.levels, 3);
  EXPECT_EQ(found.widest, 3);
  EXPECT_EQ(found.total, 5);
  EXPECT_EQ(found.gain(), 5.0 / 3);
  EXPECT_EQ(parallelism(backend->programs.back()).total, 5 * 80 + 40);
}

TEST(Passes, HaveSwitchesAndCounters) {
  graph::Program program = with_constant(torch::randn({3}));
  const PassReport report = run_passes(program, {.without = {"constants", "loops"}});
  EXPECT_EQ(report.fired("constants"), 0);
  EXPECT_EQ(program.instructions.size(), 2u);
  EXPECT_EQ(error_of([&] { run_passes(program, {.without = {"konstants"}}); }).find("konstants") == std::string::npos,
            false);
  for (const Pass& pass : passes()) EXPECT_FALSE(pass.what.empty()) << pass.name;
}

TEST(Passes, OfAUserMatchAndReplace) {
  const auto x = Pattern::any("x");
  const Pass swish{.name = "swish",
                   .what = "x * sigmoid(x) is silu",
                   .tolerance = 1e-6,
                   .run = [&](graph::Program& program, const PassOptions&) {
                     return rewrite(program, Pattern::op("aten::mul.Tensor", {x, Pattern::op("aten::sigmoid", {x})}),
                                    [](Editor& editor, const Match& match) -> std::optional<Operand> {
                                      return editor.call("aten::silu", {match["x"]}, editor.result().geometry);
                                    });
                   }};
  struct Own : Backend {
    explicit Own(const Pass& one) : pass(one) {}
    Pass pass;
    int64_t fired = 0;
    std::shared_ptr<Executable> prepare(graph::Program program, std::span<const c10::Storage>) override {
      functionalize(program);
      fired += run_passes(program, {.check = true}, {&pass, 1}).fired("swish");
      return std::make_shared<ProgramRunner>(std::move(program));
    }
    std::string to_text() const override { return ""; }
  };
  const auto own = std::make_shared<Own>(swish);
  RegionOptions options;
  options.backend = own;
  Region region(options);
  const at::Tensor input = torch::randn({4, 5});
  at::Tensor result;
  for (int call = 0; call < 3; ++call)
    region.run([&] { result = (input * input.sigmoid()) * (input.sigmoid() * input); });
  EXPECT_EQ(own->fired, 1) << "the other one has its factors the other way round";
  EXPECT_TRUE(at::allclose(result, at::silu(input).pow(2), 1e-5));
}

TEST(Passes, WhatIsPutInPlaceRunsInTheStateOfTheCall) {
  graph::Program program = with_constant(torch::randn({3}));
  program.states.push_back(program.states[0]);
  for (Instruction& one : program.instructions) {
    one.state = 1;
    one.default_dtype = at::kDouble;
  }
  const auto negated = [](Editor& editor, const Match& match) -> std::optional<Operand> {
    return editor.call("aten::neg", {match["x"]}, editor.result().geometry);
  };
  EXPECT_EQ(rewrite(program, Pattern::op("aten::exp", {Pattern::any("x")}), negated), 1);
  EXPECT_EQ(program.instructions[0].op->name, "aten::neg");
  EXPECT_EQ(program.instructions[0].state, 1);
  EXPECT_EQ(program.instructions[0].default_dtype, at::kDouble);
}

}  // namespace
}  // namespace bellows::graph::testing
