#include "bellows/core/log.h"
#include "tests/graph/kept_programs.h"

namespace bellows::graph::testing {
namespace {

using ::testing::HasSubstr;

TEST(FunctionalProgram, WritesMakeNewValues) {
  const at::Tensor x = torch::ones({2, 3}), w = torch::ones({3, 2});
  at::Tensor kept;
  int call = 0;
  const graph::Program program = program_of([&] {
    at::Tensor y = at::mm(x, w);
    y.select(0, 1).mul_(0.5 * ++call);
    x.add_(y.sum());
    kept = y.t();
  });
  ASSERT_EQ(program.instructions.size(), 4u);
  EXPECT_EQ(program.inputs.size(), 2u);
  EXPECT_EQ(program.numbers.size(), 1u);
  EXPECT_EQ(program.states.size(), 1u);
  ASSERT_EQ(program.outputs.size(), 2u);  // x, and what kept sees; the sum is nobody's
  EXPECT_EQ(program.instructions[1].updates.size(), 1u);
  EXPECT_EQ(program.instructions[1].updates[0].before, program.instructions[0].results[0].operands[0].value);
  const std::string text = program.to_text();
  EXPECT_THAT(text, HasSubstr("program of 4 instructions, 2 inputs, 1 numbers, 2 outputs"));
  EXPECT_THAT(text, HasSubstr("%2 f32[2, 2] = aten::mm(%0 f32[2, 3], %1 f32[3, 2])"));
  EXPECT_THAT(text, HasSubstr("aten::mul_.Scalar(%2 f32[2] offset 2, #0) updates %2 to %3"));
  EXPECT_THAT(text, HasSubstr("to input 0"));
  EXPECT_NO_THROW(program.check());
}

TEST(FunctionalProgram, InputsAreAsLargeAsTheProgramSees) {
  const at::Tensor x = torch::ones({8, 4});
  at::Tensor kept;
  const graph::Program program = program_of([&] { kept = x.slice(0, 1, 3) * 2 + x[0]; });
  ASSERT_EQ(program.inputs.size(), 1u);
  EXPECT_EQ(program.values[program.inputs[0]].nbytes, 48u);  // three rows of eight
}

graph::Program small_program() {
  const at::Tensor x = torch::ones({4});
  static at::Tensor kept;
  return program_of([&] {
    kept = (x * 2).relu();
    x.add_(1);
  });
}

TEST(FunctionalProgram, CheckFindsWhatIsWrong) {
  const graph::Program good = small_program();
  const auto error = [&](const std::function<void(graph::Program&)>& spoil) {
    graph::Program bad = good;
    spoil(bad);
    return error_of([&] { bad.check(); });
  };
  EXPECT_EQ(error([](auto&) {}), "");
  EXPECT_THAT(error([](auto& p) { std::swap(p.instructions[0], p.instructions[1]); }),
              HasSubstr("an operand is used before it is computed: %1 (instruction 0, aten::relu)"));
  EXPECT_THAT(
      error([](auto& p) { std::rotate(p.instructions.begin(), p.instructions.begin() + 2, p.instructions.end()); }),
      HasSubstr("an operand is used after its update: %0"));
  EXPECT_THAT(error([](auto& p) { p.instructions[0].arguments[0].operands[0].geometry.offset = 1; }),
              HasSubstr("reaches to byte 20 of 16"));
  for (const int64_t stride : {0, 1}) {
    EXPECT_THAT(error([&](auto& p) {
                  Geometry& seen = p.instructions[0].arguments[0].operands[0].geometry;
                  seen.sizes = {4, INT64_MAX};
                  seen.strides = {1, stride};
                }),
                HasSubstr("of 16"))
        << "beyond 64 bits";
  }
  EXPECT_THAT(error([](auto& p) { p.instructions[2].updates.clear(); }), HasSubstr("argument 0 is written"));
  EXPECT_THAT(error([](auto& p) { p.instructions[1].arguments.pop_back(); }), HasSubstr("0 arguments instead of 1"));
  EXPECT_THAT(error([](auto& p) { p.instructions[1].results.clear(); }), HasSubstr("0 results instead of 1"));
  EXPECT_THAT(error([](auto& p) { p.instructions[1].results[0].operands[0].value = 0; }),
              HasSubstr("a result that another instruction computes"));
  EXPECT_THAT(error([](auto& p) { p.instructions.erase(p.instructions.begin() + 1); }), HasSubstr("an output"));
  EXPECT_THAT(error([](auto& p) { p.outputs.push_back({.value = 2, .input = 0}); }),
              HasSubstr("an output to an input"));
  EXPECT_THAT(error([](auto& p) { p.instructions[0].state = 3; }), HasSubstr("a state that does not exist"));
  EXPECT_THAT(error([](auto& p) { p.instructions[0].op = nullptr; }), HasSubstr("an empty instruction"));
  EXPECT_THAT(error([](auto& p) { p.inputs.push_back(0); }), HasSubstr("an input is computed twice: %0"));
}

/// What of a program's results is held decides which program runs.
TEST(FunctionalProgram, EachSetOfLivingResultsHasItsOwn) {
  const auto backend = std::make_shared<KeepingBackend>();
  graph::Region region({.backend = backend});
  const at::Tensor x = torch::ones({3});
  for (int call = 0; call < 12; ++call) {
    at::Tensor sum, product;
    region.run([&] {
      const at::Tensor a = x + call, b = a * 2;
      if (call % 3 != 1) sum = a;
      if (call % 3 != 2) product = b;
    });
    if (sum.defined()) {
      EXPECT_EQ(sum[0].item<int>(), 1 + call);
    }
    if (product.defined()) {
      EXPECT_EQ(product[0].item<int>(), 2 + 2 * call);
    }
  }
  EXPECT_EQ(backend->programs.size(), 3u);
  const Explanation said = region.explain();
  EXPECT_EQ(said.programs, 3);
  EXPECT_EQ(said.program_runs, 11);
  EXPECT_EQ(said.never_seen, 22 - 7 - 7) << said.to_text();
  EXPECT_THAT(said.to_text(), HasSubstr("3 programs were prepared and ran 11 times"));
  EXPECT_THAT(said.to_text(), HasSubstr("programs run as they come"));
}

TEST(FunctionalProgram, PlansAreBounded) {
  const auto backend = std::make_shared<KeepingBackend>();
  graph::Region region({.backend = backend});
  const at::Tensor x = torch::ones({3});
  for (int call = 0; call < 128; ++call) {
    Tensors kept(7);
    region.run([&] {
      for (int i = 0; i < 7; ++i) {
        const at::Tensor one = x + i;
        if (call >> i & 1) kept[i] = one;
      }
    });
    for (int i = 0; i < 7; ++i) {
      if (kept[i].defined()) {
        EXPECT_EQ(kept[i][0].item<int>(), 1 + i);
      }
    }
  }
  EXPECT_EQ(backend->programs.size(), 64u);
}

/// A back end may move a read of one tensor behind a write of another one.
TEST(FunctionalProgram, TensorsOverTheSameMemoryRunInOrder) {
  graph::Region region({.backend = std::make_shared<RunnerBackend>()});
  for (const bool shared : {true, false}) {
    float memory[8] = {};
    const auto nothing = [](void*) {};
    const at::Tensor x = at::from_blob(memory, {4}, nothing);
    const at::Tensor y = at::from_blob(memory + (shared ? 2 : 4), {4}, nothing);
    const int64_t runs = region.explain().program_runs;
    for (int call = 0; call < 4; ++call) {
      at::Tensor sum;
      region.run([&] {
        x.add_(1);
        sum = x + y;
      });
      EXPECT_EQ(sum[0].item<int>(), shared ? 2 * call + 2 : call + 1);
    }
    EXPECT_EQ(region.explain().program_runs - runs, shared ? 0 : 4);
  }
}

TEST(FunctionalProgram, WhatCannotBePreparedRunsInOrder) {
  struct Refusing : Backend {
    std::shared_ptr<Executable> prepare(graph::Program, std::span<const c10::Storage>) override {
      ++asked;
      TORCH_CHECK(false, "not today");
    }
    std::string to_text() const override { return ""; }
    int asked = 0;
  };
  const auto backend = std::make_shared<Refusing>();
  const auto silent = set_log_sink(nullptr);
  graph::Region region({.backend = backend});
  const at::Tensor x = torch::ones({3});
  for (int call = 0; call < 4; ++call) {
    at::Tensor y;
    region.run([&] { y = x + 1; });
    EXPECT_EQ(y[0].item<int>(), 2);
  }
  set_log_sink(silent);
  EXPECT_EQ(backend->asked, 1);
  EXPECT_EQ(region.explain().program_runs, 0);
}

TEST(FunctionalProgram, AfterAnErrorWhatWasComputedBeforeItHasItsValues) {
  graph::Region region({.backend = std::make_shared<RunnerBackend>()});
  const at::Tensor w = torch::rand({4, 2});
  at::Tensor whole, before, found, after;
  for (const int64_t index : {1, 2, 9, 3}) {
    const std::string error = error_of([&] {
      region.run([&] {
        whole = w * 3;
        before = w * 2;
        found = at::embedding(w, torch::full({1}, index, at::kLong));
        after = before.add_(1) + found;
      });
    });
    EXPECT_EQ(error.empty(), index < 4);
    EXPECT_TRUE(at::equal(whole, w * 3));
    if (error.empty()) {
      EXPECT_TRUE(at::equal(found[0], w[index]));
      EXPECT_TRUE(at::equal(after, w * 2 + 1 + w[index]));
      continue;
    }
    EXPECT_THAT(error, HasSubstr("Running aten::embedding, which was called earlier in its region"));
    EXPECT_THAT(error_of([&] { before.data_ptr(); }), HasSubstr("failed before it was computed")) << "was half way";
    EXPECT_THAT(error_of([&] { found.data_ptr(); }), HasSubstr("failed before it was computed"));
  }
  EXPECT_EQ(region.explain().program_runs, 3);
}

}  // namespace
}  // namespace bellows::graph::testing
