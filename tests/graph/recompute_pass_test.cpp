// Recomputation changes when values are computed, and nothing else: results keep their bits, and the peak falls with the budget.
#include "bellows/graph/passes/recompute.h"
#include "bellows/graph/passes/work_model.h"
#include "bellows/models/resnet.h"
#include "tests/graph/kept_programs.h"
#include "tests/graph/pass_support.h"
#include "tests/graph/training.h"
#include "tests/models/small_models.h"

namespace bellows::graph::testing {
namespace {

using ::testing::HasSubstr;

struct Network {
  std::string name;
  std::function<Program()> step;
};

nn::Sequential deep_mlp() {
  nn::Sequential net;
  for (int layer = 0; layer < 8; ++layer) {
    net->push_back(nn::Linear(32, 32));
    net->push_back(nn::GELU());
  }
  net->push_back(nn::Linear(32, 10));
  return net;
}

Program mlp_step() {
  auto net = deep_mlp();
  return training<AdamW>(net.ptr(), classify(net, torch::randn({64, 32})), AdamWOptions(1e-2));
}

Program encoder_step() {
  models::BertOptions options = models::without_dropout(models::wide_bert());
  options.num_hidden_layers = 4;
  const Model model = models::bert(options);
  const at::Tensor ids = torch::randint(1, 50, {8, 16}), y = torch::randint(0, 2, {8});
  return training<AdamW>(
      model.module(), [=](int) { return nn::functional::cross_entropy(model.forward(ids), y); }, AdamWOptions(1e-3));
}

Program resnet_step() {
  const Model model = models::resnet18({.num_classes = 10});
  const at::Tensor x = torch::randn({4, 3, 32, 32}), y = torch::randint(0, 10, {4});
  return training<SGD>(
      model.module(), [=](int call) { return nn::functional::cross_entropy(model.forward(x * (1 + 0.1 * call)), y); },
      SGDOptions(0.01).momentum(0.9));
}

const std::vector<Network>& networks() {
  static const std::vector<Network> all{{"mlp", mlp_step}, {"encoder", encoder_step}, {"resnet", resnet_step}};
  return all;
}

/// Passes with recomputation before the passes that fuse.
std::vector<Pass> with_budget(double budget, std::vector<RecomputeReport>& reports) {
  std::vector<Pass> list = passes();
  const auto place = std::find_if(list.begin(), list.end(), [](const Pass& pass) { return pass.name == "loops"; });
  RecomputeOptions options{.budget = budget, .after = {place, list.end()}};
  options.report = [&reports](const RecomputeReport& report) { reports.push_back(report); };
  insert_before("loops", recompute_pass(options), list);
  return list;
}

/// The program of a whole step, as the passes receive it.
graph::Program program_of_step(const Network& network) {
  torch::manual_seed(5);
  const Program step = network.step();
  int call = 0;
  graph::Program program = program_of([&] { step.body(call++); });
  functionalize(program);
  return program;
}

/// The report of a pass with this budget, after which the program is valid.
RecomputeReport recomputed(graph::Program& program, double budget, bool exact) {
  std::vector<RecomputeReport> reports;
  PassOptions options{.exact = exact, .check = true};
  if (exact) options.without = {"loops", "updates", "reuse"};
  run_passes(program, options, with_budget(budget, reports));
  EXPECT_EQ(reports.size(), 1u);
  return reports.empty() ? RecomputeReport{} : reports[0];
}

size_t peak_of(const graph::Program& program, bool exact) {
  return physical_peak(program, [&](const graph::Instruction& one) { return !exact && one.group; });
}

TEST(Recompute, KeepsBits) {
  for (const Network& network : networks()) {
    for (const bool exact : {false, true}) {
      SCOPED_TRACE(network.name + (exact ? ", without groups" : ""));
      std::vector<RecomputeReport> reports;
      PassBackend backend{{.exact = exact}};
      if (exact) backend.options.without = {"loops", "updates", "reuse"};
      backend.options.exact = true;
      backend.list = with_budget(0.5, reports);
      const auto used = expect_passed(network.step, std::move(backend));
      EXPECT_GT(used->fired("recompute"), 0);
    }
  }
}

// Without a kernel, libtorch's convolutions allocate their results outside of the arena, which then cannot shrink as much.
TEST(Recompute, ReachesHalfThePeak) {
  for (const Network& network : networks()) {
    const graph::Program original = program_of_step(network);
    for (const bool exact : {false, true}) {
      SCOPED_TRACE(network.name + (exact ? ", without groups" : ""));
      if (network.name == "resnet" && !exact) continue;
      graph::Program program = original;
      const RecomputeReport report = recomputed(program, 0.5, exact);
      EXPECT_TRUE(report.is_met()) << report.to_text();
      EXPECT_GT(report.repeated, 0);
      EXPECT_GT(report.work, 0);
      EXPECT_LT(report.work, 0.25) << report.to_text();
    }
  }
}

void expect_falling_peaks(const Network& network, const std::vector<double>& budgets, bool exact) {
  const graph::Program original = program_of_step(network);
  size_t last = SIZE_MAX;
  double work = -1;
  for (const double budget : budgets) {
    SCOPED_TRACE(c10::str(network.name, ", budget ", budget, exact ? ", without groups" : ""));
    graph::Program program = original;
    const RecomputeReport report = recomputed(program, budget, exact);
    EXPECT_EQ(report.peak_after, peak_of(program, exact));
    EXPECT_LE(report.peak_after, last);
    EXPECT_GE(report.work, work);
    EXPECT_EQ(report.is_met(),
              static_cast<double>(report.peak_after) <= budget * static_cast<double>(report.peak_before));
    last = report.peak_after;
    work = report.work;
  }
  EXPECT_GT(last, 0u);
}

TEST(Recompute, SmallerBudgetsNeverGiveHigherPeaks) {
  for (const bool exact : {false, true}) {
    for (const size_t network : {0, 1})
      expect_falling_peaks(networks()[network], {1, 0.8, 0.6, 0.5, 0.4, 0.3, 0.2}, exact);
  }
  expect_falling_peaks(networks()[2], {0.8, 0.5, 0.2}, true);
}

TEST(Recompute, ReportsABudgetThatCannotBeMet) {
  graph::Program program = program_of_step(networks()[0]);
  const RecomputeReport report = recomputed(program, 0.01, false);
  EXPECT_FALSE(report.is_met());
  EXPECT_LT(report.peak_after, report.peak_before);
  EXPECT_THAT(report.to_text(), HasSubstr("budget 0.01"));
}

TEST(Recompute, ChangesNothingAtBudget1) {
  for (const Network& network : networks()) {
    graph::Program program = program_of_step(network), plain = program;
    EXPECT_EQ(recomputed(program, 1, false).repeated, 0);
    run_passes(plain);
    EXPECT_EQ(program.to_text(), plain.to_text());
  }
}

// A mask that is drawn stays, although it is large and needed late.
TEST(Recompute, NeverDrawsTwice) {
  const auto make = [] {
    nn::Sequential net;
    for (int layer = 0; layer < 6; ++layer) {
      net->push_back(nn::Linear(32, 32));
      net->push_back(nn::Dropout(0.3));
      net->push_back(nn::Tanh());
    }
    return training<AdamW>(
        net.ptr(), [net, x = torch::randn({64, 32})](int) mutable { return net->forward(x).pow(2).mean(); },
        AdamWOptions(1e-2));
  };
  std::vector<RecomputeReport> reports;
  PassBackend backend{{.exact = true}};
  backend.list = with_budget(0.4, reports);
  expect_passed(make, std::move(backend));
}

// An update of an operand between the two uses makes a second computation impossible.
TEST(Recompute, ReadsNoOverwrittenOperand) {
  const auto make = [] {
    const at::Tensor w = torch::randn({64, 64}), x = torch::randn({64, 64});
    return Program{[=](int call) -> Tensors {
                     const at::NoGradGuard no_grad;
                     const at::Tensor early = at::mm(x, w).tanh();
                     w.mul_(0.5).add_(0.1 * call);
                     at::Tensor y = early + 1;
                     for (int i = 0; i < 6; ++i) y = at::mm(y, w).tanh();
                     return {at::mm(y, early)};
                   },
                   [=] { return Tensors{w}; }};
  };
  std::vector<RecomputeReport> reports;
  PassBackend backend{{.exact = true}};
  backend.list = with_budget(0.3, reports);
  expect_passed(make, std::move(backend));
}

TEST(Recompute, RejectsOtherBudgets) {
  for (const double budget : {0.0, -0.5, 1.5, std::nan("")}) {
    EXPECT_THROW(recompute_pass({.budget = budget}), c10::ValueError) << budget;
    EXPECT_THAT(error_of([&] { recompute_pass({.budget = budget}); }), HasSubstr("(0, 1]"));
  }
}

TEST(WorkModel, CountsOperations) {
  const at::Tensor a = torch::randn({6, 4}), b = torch::randn({4, 5}), image = torch::randn({2, 4, 8, 8}),
                   kernel = torch::randn({3, 4, 3, 3});
  const auto flops = [](const std::function<at::Tensor()>& call) {
    at::Tensor result;
    const graph::Program program = program_of([&] {
      const at::NoGradGuard no_grad;
      result = call();
    });
    double total = 0;
    for (const graph::Instruction& one : program.instructions) total += flops_of(one);
    return total;
  };
  EXPECT_EQ(flops([&] { return at::mm(a, b); }), 2 * 6 * 4 * 5);
  EXPECT_EQ(flops([&] { return at::addmm(torch::ones({5}), a, b); }), 2 * 6 * 4 * 5);
  EXPECT_EQ(flops([&] {
              return at::convolution(image, kernel, {}, {1, 1}, {1, 1}, {1, 1}, false, {0, 0}, 1);
            }),
            2.0 * 2 * 3 * 8 * 8 * 4 * 9);
  EXPECT_EQ(flops([&] { return a.tanh(); }), 0);
}

}  // namespace
}  // namespace bellows::graph::testing
