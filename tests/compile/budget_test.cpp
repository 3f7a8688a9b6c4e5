// What a memory budget changes in compiled functions: their memory and time, but not their results.
#include <rapidcheck/gtest.h>

#include "bellows/compile/compile.h"
#include "bellows/compile/onednn/onednn.h"
#include "bellows/core/log.h"
#include "bellows/graph/passes/recompute.h"
#include "bellows/models/resnet.h"
#include "tests/compile/distance.h"
#include "tests/graph/kept_programs.h"
#include "tests/graph/random_program.h"
#include "tests/graph/training.h"
#include "tests/models/small_models.h"
#include "tests/support/slow_tests.h"

namespace bellows::compile_detail::testing {
namespace {

using graph::testing::outcome;
using graph::testing::Program;
using graph::testing::Region;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

struct Network {
  std::string name;
  std::function<Program()> step;
};

std::vector<Network> networks() {
  using namespace graph::testing;
  const auto mlp = [] {
    nn::Sequential net;
    for (int layer = 0; layer < 6; ++layer) {
      net->push_back(nn::Linear(64, 64));
      net->push_back(nn::GELU());
      net->push_back(nn::LayerNorm(nn::LayerNormOptions({64})));
    }
    net->push_back(nn::Linear(64, 10));
    return training<AdamW>(net.ptr(), classify(net, torch::randn({128, 64})), AdamWOptions(1e-3).eps(1e-3));
  };
  const auto encoder = [] {
    models::BertOptions options = models::without_dropout(models::wide_bert());
    options.num_hidden_layers = 4;
    const Model model = models::bert(options);
    const at::Tensor ids = torch::randint(1, 50, {16, 16}), y = torch::randint(0, 2, {16});
    return training<AdamW>(
        model.module(), [=](int) { return nn::functional::cross_entropy(model.forward(ids), y); },
        AdamWOptions(1e-3).eps(1e-3));
  };
  const auto resnet = [] {
    const Model model = models::resnet18({.num_classes = 10});
    const at::Tensor x = torch::randn({4, 3, 32, 32}), y = torch::randint(0, 10, {4});
    return training<SGD>(
        model.module(), [=](int) { return nn::functional::cross_entropy(model.forward(x), y); }, SGDOptions(1e-3));
  };
  return {{"mlp", mlp}, {"encoder", encoder}, {"resnet", resnet}};
}

struct Kept final : LogSink {
  void write(LogLevel level, std::string_view message) override {
    if (level == LogLevel::warn) warnings.emplace_back(message);
  }
  std::vector<std::string> warnings;
};

/// The warnings that an action logs.
std::vector<std::string> warnings_of(const std::function<void()>& action) {
  const auto kept = std::make_shared<Kept>();
  const auto before = set_log_sink(kept);
  action();
  set_log_sink(before);
  return kept->warnings;
}

TEST(MemoryBudget, KeepsBitsInExactMode) {
  for (const Network& network : networks()) {
    SCOPED_TRACE(network.name);
    const auto backend = std::make_shared<CpuBackend>(BackendOptions{.exact = true, .memory_budget = 0.5});
    Region region({.backend = backend});
    const Tensors plain = outcome(network.step, 6, nullptr), got = outcome(waiting(backend, network.step), 6, &region);
    EXPECT_EQ(graph::testing::first_difference(plain, got), -1) << region.explain().to_text();
    EXPECT_THAT(region.explain().to_text(), ::testing::ContainsRegex("recomputation: [1-9]"));
  }
}

TEST(MemoryBudget, KeepsResultsNearlyOtherwise) {
  for (const Network& network : networks()) {
    SCOPED_TRACE(network.name);
    const auto run = [&](double budget) {
      const auto backend = std::make_shared<CpuBackend>(BackendOptions{.memory_budget = budget});
      Region region({.backend = backend});
      Tensors got = outcome(waiting(backend, network.step), 5, &region);
      if (budget < 1) {
        EXPECT_THAT(region.explain().to_text(), ::testing::ContainsRegex("recomputation: [1-9]"));
        EXPECT_THAT(region.explain().to_text(), HasSubstr("kernels: "));
      }
      return got;
    };
    const Tensors whole = run(1);
    for (const double budget : {0.5, 0.3}) EXPECT_LE(furthest(whole, run(budget)), 20) << budget;
  }
}

/// The passes of a CPU back end up to code generation, with recomputation.
std::vector<graph::Pass> passes_with(double budget, graph::RecomputeReport& report) {
  std::vector<graph::Pass> list = passes_with_onednn();
  const auto place = std::find_if(list.begin(), list.end(),
                                  [](const auto& pass) { return pass.name == "onednn" || pass.name == "loops"; });
  graph::RecomputeOptions options{.budget = budget, .after = {place, list.end()}};
  options.report = [&report](const graph::RecomputeReport& made) { report = made; };
  list.insert(place, graph::recompute_pass(std::move(options)));
  return list;
}

// With oneDNN, images have another layout, weights are packed, and ReLU is part of batch norm.
TEST(MemoryBudget, SmallerBudgetsNeverGiveHigherPeaksOfAConvolutionalNetwork) {
  torch::manual_seed(5);
  const Model model = models::resnet18({.num_classes = 10});
  const at::Tensor x = torch::randn({8, 3, 64, 64}), y = torch::randint(0, 10, {8});
  torch::optim::SGD optimizer(model.parameters(), torch::optim::SGDOptions(1e-3));
  graph::Program original = graph::testing::program_of([&] {
    optimizer.zero_grad();
    torch::cross_entropy_loss(model.forward(x), y).backward();
    optimizer.step();
  });
  graph::functionalize(original);
  size_t last = SIZE_MAX;
  for (const double budget : {1.0, 0.8, 0.6, 0.4, 0.2}) {
    SCOPED_TRACE(budget);
    graph::Program program = original;
    graph::RecomputeReport report;
    graph::run_passes(program, {.check = true}, passes_with(budget, report));
    const size_t peak = graph::physical_peak(program, [](const auto& one) { return bool(one.group); });
    EXPECT_EQ(peak, report.peak_after);
    EXPECT_LE(peak, last);
    EXPECT_EQ(report.repeated > 0, budget < 1);
    EXPECT_TRUE(report.is_met() || budget < 0.8) << report.to_text();
    last = peak;
  }
}

TEST(MemoryBudget, WarnsOnceIfItCannotBeMet) {
  const Network network = networks()[0];
  const auto backend = std::make_shared<CpuBackend>(BackendOptions{.exact = true, .memory_budget = 0.01});
  Region region({.backend = backend});
  Tensors got;
  const auto said = warnings_of([&] { got = outcome(waiting(backend, network.step), 6, &region); });
  EXPECT_EQ(graph::testing::first_difference(outcome(network.step, 6, nullptr), got), -1);
  ASSERT_EQ(said.size(), 1u);
  EXPECT_THAT(said[0], HasSubstr("memory_budget = 0.01 cannot be met"));
  EXPECT_THAT(said[0], ::testing::ContainsRegex("smallest reachable peak is [1-9][0-9]+ bytes"));
  EXPECT_THAT(said[0], HasSubstr("Set a larger memory_budget"));
}

TEST(MemoryBudget, SaysNothingIfItIsMet) {
  const Network network = networks()[0];
  const auto backend = std::make_shared<CpuBackend>(BackendOptions{.exact = true, .memory_budget = 0.6});
  Region region({.backend = backend});
  EXPECT_THAT(warnings_of([&] { outcome(waiting(backend, network.step), 3, &region); }), IsEmpty());
}

TEST(MemoryBudget, IsOffByDefault) {
  const Network network = networks()[0];
  const auto backend = std::make_shared<CpuBackend>();
  Region region({.backend = backend});
  outcome(waiting(backend, network.step), 3, &region);
  EXPECT_THAT(region.explain().to_text(), Not(HasSubstr("recompute")));
}

TEST(MemoryBudget, RejectsOtherNumbers) {
  const auto error_with = [](const CompileOptions& options) {
    return graph::testing::error_of([&] { compile([] {}, options); });
  };
  for (const double budget : {0.0, -1.0, 1.01, std::nan("")}) {
    EXPECT_THROW(compile([] {}, {.memory_budget = budget}), c10::ValueError) << budget;
    EXPECT_THAT(error_with({.memory_budget = budget}), HasSubstr("memory_budget must be larger than 0 and at most 1"));
  }
  EXPECT_THAT(error_with({.generate = false, .memory_budget = 0.5}), HasSubstr("memory_budget requires generate"));
  EXPECT_EQ(error_with({.memory_budget = 0.5}), "");
}

[[maybe_unused]] const int budget_seed =
    setenv("RC_PARAMS",
           slow_tests() ? "seed=20261123 max_success=300 max_size=60" : "seed=20261123 max_success=30 max_size=60", 0);

RC_GTEST_PROP(GeneratedProgramsUnderABudget, KeepTheirValues, ()) {
  const auto instructions =
      *rc::gen::container<std::vector<graph::testing::Instruction>>(graph::testing::instruction());
  const bool exact = *rc::gen::inRange(0, 4) > 0;
  const double budget = *rc::gen::element(0.01, 0.5, 0.8);
  const auto make = [&] {
    Program program = graph::testing::random_program(instructions, exact);
    program.body = [body = std::move(program.body)](int call) { return body(call % 3); };
    return program;
  };
  const double allowed = exact ? 0 : 1;
  const auto sink = set_log_sink(nullptr);  // most budgets cannot be met
  const auto backend = std::make_shared<CpuBackend>(BackendOptions{.exact = exact, .memory_budget = budget});
  Region region({.backend = backend});
  const Tensors expected = outcome(make, 9, nullptr), got = outcome(waiting(backend, make), 9, &region);
  set_log_sink(sink);
  const double far = furthest(expected, got);
  RC_CLASSIFY(region.explain().to_text().find("recompute  ") != std::string::npos, "recomputed");
  if (far > allowed) RC_LOG() << region.explain().to_text();
  RC_ASSERT(far <= allowed);
}

// The programs of GeneratedPrograms.LeaveNearlyTheSameValues (programs_test.cpp), with half the memory. Most of them are
// not exact, so repeated instructions are fused with their readers.
RC_GTEST_PROP(GeneratedProgramsUnderABudget, KeepTheirValuesWithHalfThePeak, ()) {
  const auto instructions =
      *rc::gen::container<std::vector<graph::testing::Instruction>>(graph::testing::instruction());
  const int sizes = *rc::gen::element(1, 3);
  const bool exact = *rc::gen::inRange(0, 4) == 3;
  const auto make = [&] {
    Program program = graph::testing::random_program(instructions, false, sizes);
    program.body = [sizes, body = std::move(program.body)](int call) { return body(sizes == 1 ? call % 3 : call); };
    return program;
  };
  const double allowed = exact ? 0 : 1;
  const auto sink = set_log_sink(nullptr);  // many budgets cannot be met
  const auto backend = std::make_shared<CpuBackend>(BackendOptions{.exact = exact, .memory_budget = 0.5});
  Region region({.backend = backend});
  const Tensors expected = outcome(make, 9, nullptr), got = outcome(waiting(backend, make), 9, &region);
  set_log_sink(sink);
  const double far = furthest(expected, got);
  RC_CLASSIFY(region.explain().to_text().find("recompute  ") != std::string::npos, "recomputed");
  for (size_t i = 0; i < expected.size() && far > allowed; ++i) {
    if (distance(expected[i], got[i]) > allowed) RC_LOG() << i << ": " << expected[i] << "\n" << got[i] << "\n";
  }
  if (far > allowed) RC_LOG() << region.explain().to_text();
  RC_ASSERT(far <= allowed);
}

}  // namespace
}  // namespace bellows::compile_detail::testing
