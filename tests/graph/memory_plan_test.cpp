#include "bellows/graph/execution/memory_plan.h"

#include <random>

#include "tests/graph/kept_programs.h"

namespace bellows::graph::testing {
namespace {

using Home = MemoryPlan::Home;

/// Programs of kernels, of which each reads some values and makes or updates others.
class RandomKernels {
 public:
  explicit RandomKernels(unsigned seed) : random_(seed) {
    program_.states.resize(1);
    for (int i = 0; i < 3; ++i) live_.push_back(value(4 * (1 + draw(300))));
    program_.inputs = live_;
    const int count = 1 + draw(60);
    for (int i = 0; i < count; ++i) add();
    for (size_t i = 0; i < live_.size(); ++i) {
      if (draw(4) == 0) program_.outputs.push_back({.value = live_[i]});
    }
  }
  graph::Program take() { return std::move(program_); }

 private:
  int draw(int below) { return static_cast<int>(random_() % static_cast<unsigned>(below)); }

  ValueId value(int bytes) {
    Geometry geometry = Geometry::of(torch::empty({bytes / 4}));
    program_.values.push_back({.geometry = geometry, .nbytes = static_cast<size_t>(bytes)});
    return static_cast<ValueId>(program_.values.size()) - 1;
  }
  Operand whole(ValueId id) const { return {.value = id, .geometry = program_.values[id].geometry}; }

  void add() {
    Instruction one{.kernel = add_one(1, draw(3) == 0 ? 1 + draw(2000) : 0), .kind = "kernel"};
    std::vector<ValueId> reads;
    for (int i = draw(3); i >= 0; --i) reads.push_back(live_[draw(static_cast<int>(live_.size()))]);
    for (const ValueId read : reads)
      one.arguments.push_back({.kind = OperatorFacts::Kind::tensor, .operands = {whole(read)}});
    if (draw(3) == 0) {
      const ValueId after = value(static_cast<int>(program_.values[reads[0]].nbytes));
      one.updates = {{.before = reads[0], .after = after}};
      std::replace(live_.begin(), live_.end(), reads[0], after);
    } else {
      for (int i = draw(2); i >= 0; --i) {
        live_.push_back(value(4 * (1 + draw(draw(5) == 0 ? 3000 : 300))));
        one.results.push_back({.operands = {whole(live_.back())}});
      }
    }
    if (live_.size() > 6) live_.erase(live_.begin() + draw(static_cast<int>(live_.size())));
    program_.instructions.push_back(std::move(one));
  }

  std::mt19937 random_;
  graph::Program program_;
  std::vector<ValueId> live_;
};

/// When each value is needed, found by looking rather than by following the plan.
struct Lifetime {
  int first = INT_MAX, last = -1;
  void note(int at) {
    first = std::min(first, at);
    last = std::max(last, at);
  }
};

std::vector<Lifetime> lifetimes(const graph::Program& program) {
  std::vector<Lifetime> all(program.values.size());
  for (size_t i = 0; i < program.instructions.size(); ++i) {
    const Instruction& one = program.instructions[i];
    const int at = static_cast<int>(i);
    for (const auto& argument : one.arguments) {
      for (const Operand& operand : argument.operands) all[operand.value].note(at);
    }
    for (const auto& result : one.results) {
      for (const Operand& operand : result.operands) all[operand.value].note(at);
    }
    for (const auto& update : one.updates) all[update.after].note(at);
  }
  return all;
}

struct Range {
  size_t from, to;
  int first, last, block;
};

std::vector<Range> ranges(const graph::Program& program, const MemoryPlan& plan) {
  const auto all = lifetimes(program);
  std::vector<Range> result;
  for (size_t value = 0; value < all.size(); ++value) {
    const int i = plan.block_of[value];
    if (i < 0 || plan.blocks[i].home != Home::arena) continue;
    const size_t from = plan.blocks[i].offset;
    result.push_back({from, from + program.values[value].nbytes, all[value].first, all[value].last, i});
  }
  for (size_t i = 0; i < program.instructions.size(); ++i) {
    const int at = static_cast<int>(i);
    const size_t bytes = program.instructions[i].kernel->scratch_bytes(), from = plan.scratch_offset[i];
    if (bytes > 0) result.push_back({from, from + bytes, at, at, -1 - at});
  }
  return result;
}

TEST(MemoryPlan, NoTwoValuesThatAreNeededAtOnceShareAByte) {
  size_t arena = 0, least = 0, updates = 0, copies = 0;
  for (unsigned seed = 0; seed < 300; ++seed) {
    const graph::Program program = RandomKernels(seed).take();
    ASSERT_NO_THROW(program.check());
    const MemoryPlan plan = MemoryPlan::of(program);
    const auto all = ranges(program, plan);
    for (size_t i = 0; i < all.size(); ++i) {
      EXPECT_EQ(all[i].from % 64, 0u);
      EXPECT_LE(all[i].to, plan.arena_bytes);
      for (size_t j = 0; j < i; ++j) {
        const bool at_once = all[i].first <= all[j].last && all[j].first <= all[i].last;
        const bool share = all[i].from < all[j].to && all[j].from < all[i].to;
        EXPECT_FALSE(at_once && share && all[i].block != all[j].block) << "seed " << seed;
      }
    }
    EXPECT_GE(plan.arena_bytes, plan.least_bytes);
    arena += plan.arena_bytes;
    least += plan.least_bytes;
    for (const Instruction& one : program.instructions) updates += one.updates.size();
    for (const auto& block : plan.blocks) copies += block.copied >= 0;
  }
  EXPECT_GT(updates, 1000u);
  EXPECT_GT(copies, 100u);  // of inputs that are not to be written
  EXPECT_LT(static_cast<double>(arena), 1.05 * static_cast<double>(least)) << arena << " of at least " << least;
}

TEST(MemoryPlan, UpdatesStayWhereTheyAre) {
  const at::Tensor x = torch::ones({4});
  at::Tensor kept;
  graph::Program program = program_of([&] {
    at::Tensor y = x * 2;
    y.add_(1);
    x.add_(y);
    kept = y;
  });
  MemoryPlan plan = MemoryPlan::of(program);
  EXPECT_EQ(plan.blocks.size(), 2u);
  EXPECT_EQ(plan.block_of, (std::vector<int>{0, 1, 1, 0}));
  EXPECT_EQ(plan.blocks[0].home, Home::input);
  EXPECT_EQ(plan.blocks[1].home, Home::allocated);
  EXPECT_EQ(plan.arena_bytes, 0u);

  std::erase_if(program.outputs, [](const auto& output) { return output.input == 0; });
  plan = MemoryPlan::of(program);  // the input must now stay as it was
  EXPECT_EQ(plan.blocks.size(), 3u);
  EXPECT_EQ(plan.blocks[2].home, Home::arena);
  EXPECT_EQ(plan.blocks[2].copied, 0);
}

}  // namespace
}  // namespace bellows::graph::testing
