#include "bellows/graph/execution/program_runner.h"

#include "bellows/tap/allocator.h"
#include "tests/data/allocation_count.h"
#include "tests/graph/kept_programs.h"

namespace bellows::graph::testing {
namespace {

using ::testing::HasSubstr;

/// x + 1 + 1 …, each a kernel.
graph::Program kernel_chain(int length, int64_t count, size_t scratch = 0) {
  const at::Tensor x = torch::zeros({count});
  at::Tensor kept;
  graph::Program program = program_of([&] {
    kept = x;
    for (int i = 0; i < length; ++i) kept = kept + 1;
  });
  for (Instruction& one : program.instructions) one.kernel = add_one(count, scratch);
  program.check();
  return program;
}

TEST(ProgramRunner, KernelsWorkInOneArena) {
  const int64_t count = 1000;
  ProgramRunner runner(kernel_chain(20, count, 100));
  EXPECT_EQ(runner.memory().arena_bytes, 2 * 4032u + 128);
  for (int call = 0; call < 3; ++call) {
    auto inputs = storages({torch::full({count}, static_cast<float>(call))});
    std::vector<c10::Storage> outputs(1);
    runner.run(inputs, {}, outputs);
    EXPECT_FALSE(inputs[0]);  // let go of: the program was its last user
    EXPECT_EQ(static_cast<const float*>(outputs[0].data())[count - 1], 20 + call);
  }
}

/// Of each result, before it is written: that it is NaN. And of the last instruction's operand but one, which is read too late.
class NosyKernel : public Kernel {
 public:
  explicit NosyKernel(std::vector<bool>& seen, float*& before) : seen_(seen), before_(before) {}
  std::string name() const override { return "nosy"; }
  void run(std::span<void* const> operands, std::span<void* const> results, std::span<const c10::IValue>,
           void* scratch) const override {
    seen_.push_back(std::isnan(*static_cast<float*>(results[0])) && std::isnan(*static_cast<float*>(scratch)) &&
                    (!before_ || std::isnan(*before_)));
    before_ = seen_.size() > 1 ? static_cast<float*>(operands[0]) : nullptr;  // the first one's is the caller's
    *static_cast<float*>(results[0]) = *static_cast<float*>(scratch) = 1;
  }
  size_t scratch_bytes() const override { return sizeof(float); }

 private:
  std::vector<bool>& seen_;
  float*& before_;
};

TEST(ProgramRunner, PoisonIsReadBeforeAValueIsThereAndAfterItsLastUse) {
  for (const bool poisoned : {true, false}) {
    std::vector<bool> seen;
    float* before = nullptr;
    graph::Program program = kernel_chain(6, 1);
    for (Instruction& one : program.instructions) one.kernel = std::make_shared<NosyKernel>(seen, before);
    poison_arenas(poisoned);
    ProgramRunner runner(std::move(program));
    poison_arenas(true);
    for (int call = 0; call < 2; ++call) {
      seen.clear();
      before = nullptr;
      auto inputs = storages({torch::zeros({1})});
      std::vector<c10::Storage> outputs(1);
      runner.run(inputs, {}, outputs);
    }
    EXPECT_EQ(seen.size(), 6u);
    EXPECT_EQ(std::count(seen.begin(), seen.end(), poisoned), 6);
  }
}

struct Cost {
  int64_t objects = 0, buffers = 0;
  bool operator==(const Cost& other) const = default;
};

Cost cost_of_a_run(Executable& executable, const Tensors& inputs, size_t outputs) {
  tap::install_cpu_allocator();
  Cost cost;
  for (int call = 0; call < 4; ++call) {
    auto in = storages(inputs);
    std::vector<c10::Storage> out(outputs);
    const int64_t objects = test::all_allocations(), buffers = tap::cpu_allocation_counters().allocations;
    executable.run(in, {}, out);
    cost = {test::all_allocations() - objects, tap::cpu_allocation_counters().allocations - buffers};
  }
  return cost;
}

TEST(ProgramRunner, ARunAllocatesNothing) {
  ProgramRunner two(kernel_chain(2, 64)), many(kernel_chain(40, 64));
  const Cost of_two = cost_of_a_run(two, {torch::zeros({64})}, 1),
             of_many = cost_of_a_run(many, {torch::zeros({64})}, 1);
  EXPECT_EQ(of_many, of_two) << of_many.objects << " and " << of_many.buffers;
  EXPECT_EQ(of_many.buffers, 0) << "the output has the memory that it had before";
  EXPECT_LE(of_many.objects, 12);

  const auto in_place = [](int length) {
    const at::Tensor x = torch::zeros({64}), y = torch::ones({64});
    return program_of([&] {
      for (int i = 0; i < length; ++i) x.view({8, 8}).relu_();
    });
  };
  ProgramRunner few(in_place(2)), more(in_place(40));
  const Cost of_few = cost_of_a_run(few, {torch::zeros({64})}, 1),
             of_more = cost_of_a_run(more, {torch::zeros({64})}, 1);
  EXPECT_EQ(of_more.buffers, 0);
  EXPECT_LE(of_more.objects - of_few.objects, 38) << "libtorch's own included";
}

using Home = MemoryPlan::Home;

bool lends(const ProgramRunner& runner) {
  const auto& blocks = runner.memory().blocks;
  return std::any_of(blocks.begin(), blocks.end(), [](const auto& block) { return block.home == Home::lent; });
}

/// Runs a chain of 4 on `value`.
c10::Storage output_of(ProgramRunner& runner, int64_t count, float value) {
  auto inputs = storages({torch::full({count}, value)});
  std::vector<c10::Storage> outputs(1);
  runner.run(inputs, {}, outputs);
  return outputs[0];
}

float last_of(const c10::Storage& storage, int64_t count) {
  return static_cast<const float*>(storage.data())[count - 1];
}

TEST(ProgramRunner, LendsOutOfItsArenaWhatComesBackInTime) {
  tap::install_cpu_allocator();
  const int64_t count = 10000;
  ProgramRunner runner(kernel_chain(4, count));
  for (int call = 0; call < 2; ++call) EXPECT_EQ(last_of(output_of(runner, count, 1), count), 5);
  EXPECT_FALSE(lends(runner));
  for (int call = 0; call < 3; ++call) {
    auto inputs = storages({torch::full({count}, 2.0F)});
    std::vector<c10::Storage> outputs(1);
    const int64_t before = tap::cpu_allocation_counters().allocations;
    runner.run(inputs, {}, outputs);
    EXPECT_EQ(tap::cpu_allocation_counters().allocations, before);
    EXPECT_EQ(last_of(outputs[0], count), 6);
    EXPECT_TRUE(lends(runner));
  }
  const c10::Storage kept = output_of(runner, count, 3), next = output_of(runner, count, 4);
  EXPECT_FALSE(lends(runner)) << "one was held while the program ran again";
  EXPECT_EQ(last_of(kept, count), 7);
  EXPECT_EQ(last_of(next, count), 8);
}

TEST(ProgramRunner, LendsNothingThatIsHeldWhileAnotherProgramRuns) {
  const int64_t count = 10000;
  ProgramRunner runner(kernel_chain(4, count)), other(kernel_chain(4, count));
  for (int call = 0; call < 4; ++call) {
    const c10::Storage held = output_of(runner, count, 1);
    EXPECT_EQ(last_of(output_of(other, count, 2), count), 6);
    EXPECT_EQ(last_of(held, count), 5);
  }
  EXPECT_FALSE(lends(runner));
  EXPECT_TRUE(lends(other));
}

/// Two programs that run in turns need one arena; it is freed with the last of them.
TEST(ProgramRunner, ProgramsShareTheirArena) {
  tap::install_cpu_allocator();
  const int64_t count = 1 << 20, before = tap::cpu_allocation_counters().current_bytes;
  {
    ProgramRunner large(kernel_chain(8, count)), small(kernel_chain(8, count / 2));
    for (int call = 0; call < 3; ++call) {
      for (auto* runner : {&large, &small}) {
        auto inputs = storages({torch::full({runner == &large ? count : count / 2}, static_cast<float>(call))});
        std::vector<c10::Storage> outputs(1);
        runner->run(inputs, {}, outputs);
        EXPECT_EQ(static_cast<const float*>(outputs[0].data())[count / 2 - 1], 8 + call);
      }
      const int64_t held = tap::cpu_allocation_counters().current_bytes - before;
      EXPECT_LT(held, 2 * 4 * count + (1 << 16)) << "two buffers of the larger one";
    }
  }
  EXPECT_LT(tap::cpu_allocation_counters().current_bytes - before, 1 << 16);
}

TEST(ProgramRunner, OutputsAreGivenCopiedOrWrittenBack) {
  const at::Tensor x = torch::zeros({4}), y = torch::ones({4});
  at::Tensor sum;
  graph::Program program = program_of([&] { sum = x + y; });
  const ValueId a = program.inputs[0], b = program.inputs[1], c = program.outputs[0].value;
  // Twice the same, an input as it is, and two inputs that change places.
  program.outputs = {{.value = c}, {.value = c}, {.value = a}, {.value = a, .input = 1}, {.value = b, .input = 0}};
  ProgramRunner runner(program);
  const at::Tensor first = torch::full({4}, 3.0), second = torch::full({4}, 5.0);
  auto inputs = storages({first, second});
  std::vector<c10::Storage> outputs(5);
  runner.run(inputs, {}, outputs);
  EXPECT_EQ(first[0].item<int>(), 5);
  EXPECT_EQ(second[3].item<int>(), 3);
  const auto number = [&](size_t i) { return static_cast<const float*>(outputs[i].data())[3]; };
  EXPECT_EQ(number(0), 8);
  EXPECT_EQ(number(1), 8);
  EXPECT_EQ(number(2), 3);
  EXPECT_NE(outputs[0].data(), outputs[1].data());
  EXPECT_FALSE(outputs[3] || outputs[4]);
}

TEST(ProgramRunner, GroupsRunTheirOwnInstructions) {
  const at::Tensor x = torch::arange(4.), state = torch::zeros({4});
  at::Tensor kept;
  int call = 0;
  graph::Program inner = program_of([&] {
    kept = (x * (0.5 * ++call)).relu();
    state.add_(kept);
  });
  functionalize(inner);
  graph::Program outer{
      .states = inner.states, .values = inner.values, .inputs = inner.inputs, .numbers = inner.numbers};
  Instruction group{.group = std::make_shared<graph::Program>(inner), .kind = "pointwise"};
  for (const ValueId input : inner.inputs)
    group.arguments.push_back({.kind = OperatorFacts::Kind::tensor,
                               .operands = {{.value = input, .geometry = inner.values[input].geometry}}});
  group.arguments.push_back({.kind = OperatorFacts::Kind::number, .number = 0});
  for (const auto& output : inner.outputs) {
    if (output.input >= 0)
      group.updates.push_back({.before = inner.inputs[output.input], .after = output.value});
    else
      group.results.push_back({.operands = {{.value = output.value, .geometry = inner.values[output.value].geometry}}});
  }
  outer.instructions = {group};
  outer.outputs = inner.outputs;
  outer.check();
  EXPECT_THAT(outer.to_text(), HasSubstr("pointwise("));
  ProgramRunner runner(outer);
  auto inputs = storages({torch::arange(4.), state});
  state.fill_(1);
  std::vector<c10::Storage> outputs(2);
  const c10::IValue scale(2.0);
  runner.run(inputs, std::span(&scale, 1), outputs);
  EXPECT_EQ(state[3].item<int>(), 7);
  const size_t made = outer.outputs[0].input < 0 ? 0 : 1;
  EXPECT_EQ(static_cast<const float*>(outputs[made].data())[2], 4);
}

/// Of a step: the most memory at once, beyond what is there before it.
int64_t peak_of(const std::function<void()>& step) {
  tap::reset_cpu_allocation_peak();
  const int64_t before = tap::cpu_allocation_counters().current_bytes;
  step();
  return tap::cpu_allocation_counters().peak_bytes - before;
}

/// With a value read in the middle, too: what backward needs no more is let go of while it runs.
TEST(ProgramRunner, AWholeStepNeedsNoMoreMemoryThanAPlainOne) {
  namespace nn = torch::nn;
  tap::install_cpu_allocator();
  for (const bool reads : {false, true}) {
    nn::Sequential net;
    for (int i = 0; i < 6; ++i) {
      net->push_back(nn::Linear(64, 64));
      net->push_back(nn::Tanh());
    }
    torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.01).momentum(0.9));
    const at::Tensor x = torch::randn({512, 64});
    const auto step = [&] {
      optimizer.zero_grad();
      const at::Tensor loss = net->forward(x).pow(2).mean();
      if (reads) {
        EXPECT_GT(loss.item<double>(), 0);
      }
      loss.backward();
      optimizer.step();
    };
    for (int call = 0; call < 3; ++call) step();
    const int64_t plain = peak_of(step);
    graph::Region region({.backend = std::make_shared<RunnerBackend>()});
    for (int call = 0; call < 4; ++call) region.run(step);
    const int64_t runs = region.explain().program_runs, programs = peak_of([&] { region.run(step); });
    EXPECT_EQ(region.explain().program_runs - runs, reads ? 2 : 1);
    EXPECT_LE(programs, plain) << (reads ? "with a value read" : "in one piece");
  }
}

}  // namespace
}  // namespace bellows::graph::testing
