#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include <c10/util/hash.h>

#include "bellows/compile/jit/kernel_cache.h"
#include "bellows/compile/jit/program_kernels.h"
#include "bellows/graph/passes/functionalize.h"
#include "bellows/graph/passes/pass.h"
#include "tests/graph/kept_programs.h"

/// What becomes of a program where the compiler is none.
namespace bellows::compile_detail::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

/// A variable of the environment, as it was before when this is gone.
class Variable {
 public:
  Variable(const char* name, const std::string& value) : name_(name), had_(std::getenv(name)) {
    if (had_) before_ = std::getenv(name);
    ::setenv(name, value.c_str(), 1);
  }
  ~Variable() { had_ ? ::setenv(name_, before_.c_str(), 1) : ::unsetenv(name_); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const char* name_;
  bool had_;
  std::string before_;
};

/// A folder with a program in the place of a compiler, which says a version and then does as `body` says.
struct Compiler {
  explicit Compiler(const std::string& body, const std::string& version = "echo pretender 1; exit") {
    std::string name = (fs::temp_directory_path() / "compiler-test-XXXXXX").string();
    folder = ::mkdtemp(name.data());
    path = folder + "/c++";
    std::ofstream(path) << "#!/bin/sh\nif [ \"$1\" = --version ]; then " << version << "; fi\n" << body << "\n";
    fs::permissions(path, fs::perms::owner_all);
  }
  ~Compiler() {
    std::error_code ignored;
    fs::remove_all(folder, ignored);
  }
  Compiler(const Compiler&) = delete;
  Compiler& operator=(const Compiler&) = delete;

  std::string folder, path;
};

double seconds_of(const std::function<void()>& action) {
  const auto start = std::chrono::steady_clock::now();
  action();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// Softmax of a sum, in one group.
graph::Program grouped(at::Tensor& kept, const at::Tensor& x) {
  graph::Program program = graph::testing::program_of([&] {
    const at::NoGradGuard no_grad;
    kept = ((x * 2 + 1).softmax(1) - x).tanh();
  });
  graph::functionalize(program);
  graph::run_passes(program, {.can_generate = is_worth_generating});
  return program;
}

TEST(CompilerTest, WhatItCannotCompileIsRunByOperators) {
  const at::Tensor x = torch::randn({40, 33}), expected = ((x * 2 + 1).softmax(1) - x).tanh();
  for (const char* body : {"echo no >&2; exit 1", "exit 0",
                           "while [ \"$1\" != -o ]; do shift; done; echo garbage >\"$2\"", "kill -9 $$"}) {
    const Compiler compiler(body);
    const Variable chosen("BELLOWS_CXX", compiler.path);
    at::Tensor kept;
    graph::Program program = grouped(kept, x);
    KernelCache cache({.folder = compiler.folder + "/cache"});
    ASSERT_TRUE(cache.can_compile());
    const KernelReport report = generate_kernels(program, cache);
    EXPECT_EQ(report.kernels, 0) << body;
    EXPECT_EQ(report.left, 1) << body;
    graph::ProgramRunner runner(program);
    std::vector<c10::Storage> inputs{x.storage()}, outputs(1);
    runner.run(inputs, {}, outputs);
    EXPECT_TRUE(at::equal(graph::Geometry::of(kept).over(outputs[0]), expected)) << body;
  }
}

/// As after an update of the system's libraries: the entry is whole, and yet no library.
TEST(CompilerTest, MakesAnewWhatTheSystemCannotLoad) {
  const Compiler place("");
  const std::string folder = place.folder + "/cache", source = "extern \"C\" int number() { return 7; }\n";
  KernelCache({.folder = folder}).load(source);
  fs::path entry;
  for (const auto& item : fs::directory_iterator(folder)) {
    if (item.path().extension() == ".so") entry = item.path();
  }
  const std::string garbage(5000, 'x');
  std::ofstream(entry, std::ios::binary) << garbage << c10::sha1(entry.stem().string() + garbage).str();
  KernelCache cache({.folder = folder});
  EXPECT_EQ(reinterpret_cast<int (*)()>(cache.load(source)->symbol("number"))(), 7);
  EXPECT_EQ(cache.counts().refused, 1);
  EXPECT_EQ(cache.counts().compiled, 1);
}

TEST(CompilerTest, ThatNeverEndsIsEnded) {
  const Compiler sleeps("sleep 600"), mute("", "sleep 600");
  {
    const Variable chosen("BELLOWS_CXX", sleeps.path);
    auto found = KernelCompiler::find();
    ASSERT_TRUE(found);
    found->timeout_s = 1;
    std::string error;
    EXPECT_LT(seconds_of([&] { error = graph::testing::error_of([&] { found->compile("int x;"); }); }), 30);
    EXPECT_THAT(error, HasSubstr("needed more than 1 s to compile a kernel"));
  }
  const Variable chosen("BELLOWS_CXX", mute.path);
  std::string error;
  EXPECT_LT(seconds_of([&] { error = graph::testing::error_of([&] { KernelCompiler::find(1); }); }), 30);
  EXPECT_THAT(error, HasSubstr("does not answer --version within 1 s"));
}

TEST(CompilerTest, ThatIsNotThereIsNamed) {
  const Variable chosen("BELLOWS_CXX", "/nowhere/c++ -O2");
  EXPECT_THAT(graph::testing::error_of([] { KernelCompiler::find(); }),
              HasSubstr("BELLOWS_CXX is \"/nowhere/c++ -O2\", which does not answer --version"));
  EXPECT_FALSE(KernelCache().can_compile());
}

TEST(CompilerTest, NeedsNoFolderForTemporaryFilesButTmp) {
  const Variable nowhere("TMPDIR", "/nowhere");
  const auto found = KernelCompiler::find();
  ASSERT_TRUE(found);
  EXPECT_GT(found->compile("extern \"C\" int one() { return 1; }").size(), 100u);
}

}  // namespace
}  // namespace bellows::compile_detail::testing
