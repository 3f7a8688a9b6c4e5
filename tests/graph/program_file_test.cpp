#include "bellows/graph/program/program_file.h"

#include <filesystem>
#include <fstream>
#include <random>

#include "bellows/system/file.h"
#include "tests/graph/kept_programs.h"

namespace bellows::graph::testing {
namespace {

using ::testing::HasSubstr;

std::string scratch(const std::string& name) {
  return ::testing::TempDir() + "bellows_" + std::to_string(getpid()) + "_" + name;
}

/// Lists, numbers, text, devices, states, updates, a group, and a constant that an operand sees in part.
graph::Program rich_program() {
  const at::Tensor x = torch::ones({4, 6}), table = torch::arange(12.).view({3, 4});
  at::Tensor kept, other;
  int call = 0;
  graph::Program program = program_of([&] {
    kept = at::cat({x, x.narrow(0, 1, 2) * (0.1 * ++call)}).sum({0}, true).to(at::kDouble);
    other = at::gelu(x, "tanh").clamp(c10::nullopt, 0.5) + at::mm(table.t().slice(1, 1, 3), x.slice(0, 0, 2));
    x.select(0, 1).add_(1e-300);
    at::_foreach_mul_(Tensors{x[2], x[3]}, std::vector<at::Scalar>{2.0, -0.0});
  });
  functionalize(program);
  const auto input = std::find_if(program.inputs.begin(), program.inputs.end(),
                                  [&](ValueId value) { return program.values[value].nbytes == 48; });
  program.constants = {{.value = *input, .tensor = table}};
  const int gone = static_cast<int>(input - program.inputs.begin());
  program.inputs.erase(input);
  for (auto& output : program.outputs) output.input -= output.input > gone;
  program.check();
  return program;
}

Tensors run(const graph::Program& program) {
  ProgramRunner runner(program);
  const at::Tensor x = torch::arange(24.).view({4, 6}).sin();
  auto inputs = storages({x});
  std::vector<c10::Storage> outputs(program.outputs.size());
  const std::vector<c10::IValue> numbers(program.numbers.size(), c10::IValue(0.7));
  runner.run(inputs, numbers, outputs);
  Tensors all{x};
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (outputs[i]) all.push_back(program.values[program.outputs[i].value].geometry.over(outputs[i]).clone());
  }
  return all;
}

TEST(ProgramFile, KeepsEveryBit) {
  const graph::Program program = rich_program();
  const std::string path = scratch("program.safetensors");
  save_program(path, program);
  const graph::Program loaded = load_program(path);
  EXPECT_EQ(loaded.to_text(), program.to_text());
  EXPECT_EQ(loaded.states, program.states);
  EXPECT_EQ(first_difference(run(loaded), run(program)), -1);
  save_program(path + "2", loaded);
  const auto bytes = [](const std::string& name) {
    std::ifstream in(name, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(in), {});
  };
  EXPECT_EQ(bytes(path), bytes(path + "2"));
  std::filesystem::remove(path);
  std::filesystem::remove(path + "2");
}

TEST(ProgramFile, GroupsAreKeptAndKernelsAreNot) {
  graph::Program program = rich_program();
  Instruction& first = program.instructions.front();
  first.kernel = add_one(1);
  const std::string path = scratch("kernel.safetensors");
  save_program(path, program);
  EXPECT_EQ(load_program(path).instructions.front().kernel, nullptr);
  first.op = nullptr;
  EXPECT_THAT(error_of([&] { save_program(path, program); }),
              HasSubstr("a kernel that does not replace an operator or a group: a function"));
  first.kernel = nullptr;
  first.kind = "pointwise";
  auto inner = std::make_shared<graph::Program>();
  inner->states.resize(1);
  first.group = inner;
  first.arguments.clear();
  first.results.clear();
  program.instructions.resize(1);
  program.outputs.clear();
  save_program(path, program);
  const graph::Program loaded = load_program(path);
  ASSERT_TRUE(loaded.instructions[0].group);
  EXPECT_EQ(loaded.to_text(), program.to_text());
  std::filesystem::remove(path);
}

/// A damaged file is refused with its name, wherever the damage is, or gives the program that was saved.
TEST(ProgramFile, DamagedFilesAreRefused) {
  const graph::Program program = rich_program();
  const std::string path = scratch("whole.safetensors"), broken = scratch("broken.safetensors");
  save_program(path, program);
  std::ifstream in(path, std::ios::binary);
  const std::string whole(std::istreambuf_iterator<char>(in), {});
  const auto load = [&](const std::string& bytes) {
    std::ofstream(broken, std::ios::binary) << bytes;
    try {
      EXPECT_EQ(load_program(broken).to_text(), program.to_text());
      return false;
    } catch (const c10::ValueError& error) {
      EXPECT_THAT(error.what(), HasSubstr(broken));
      return true;
    }
  };
  EXPECT_FALSE(load(whole));
  std::mt19937 random(3);
  for (size_t length = 0; length < whole.size(); length += 1 + random() % (whole.size() / 150))
    EXPECT_TRUE(load(whole.substr(0, length))) << length;
  int refused = 0;
  for (int round = 0; round < 300; ++round) {
    std::string changed = whole;
    changed[random() % changed.size()] ^= static_cast<char>(1 << random() % 8);
    refused += load(changed);
  }
  EXPECT_GT(refused, 290);
  EXPECT_THAT(error_of([&] { load_program(scratch("nowhere")); }), HasSubstr("nowhere"));
  std::filesystem::remove(path);
  std::filesystem::remove(broken);
}

}  // namespace
}  // namespace bellows::graph::testing
