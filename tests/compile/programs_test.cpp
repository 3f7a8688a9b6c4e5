#include <sys/wait.h>
#include <unistd.h>

#include "bellows/compile/compile.h"
#include "bellows/tap/deferral.h"
#include "tests/compile/distance.h"
#include "tests/graph/random_program.h"
#include "tests/support/slow_tests.h"

namespace bellows::compile_detail::testing {
namespace {

using graph::testing::outcome;
using graph::testing::Program;
using graph::testing::Region;

/// A few programs, the same in each run; RC_PARAMS in the environment asks for others.
[[maybe_unused]] const int fixed_seed =
    setenv("RC_PARAMS",
           slow_tests() ? "seed=20261123 max_success=300 max_size=60" : "seed=20261123 max_success=30 max_size=60", 0);

// Branches on data are left out, as rounding may take another one. A quarter runs without what changes bits.
RC_GTEST_PROP(GeneratedPrograms, LeaveNearlyTheSameValues, ()) {
  const auto instructions =
      *rc::gen::container<std::vector<graph::testing::Instruction>>(graph::testing::instruction());
  const int sizes = *rc::gen::element(1, 3);
  const auto make = [&] {
    Program program = graph::testing::random_program(instructions, false, sizes);
    program.body = [sizes, body = std::move(program.body)](int call) { return body(sizes == 1 ? call % 3 : call); };
    return program;
  };
  const bool exact = *rc::gen::inRange(0, 4) == 3;
  const double allowed = exact ? 0 : 1;
  const auto backend = std::make_shared<CpuBackend>(BackendOptions{.exact = exact});
  Region region({.backend = backend});
  const Tensors expected = outcome(make, 9, nullptr), got = outcome(waiting(backend, make), 9, &region);
  const double far = furthest(expected, got);
  for (size_t i = 0; i < expected.size() && far > allowed; ++i) {
    if (distance(expected[i], got[i]) > allowed) RC_LOG() << i << ": " << expected[i] << "\n" << got[i] << "\n";
  }
  if (far > allowed) {
    RC_LOG() << region.explain().to_text();
    for (const auto& recording : region.recordings()) RC_LOG() << recording.to_text();
  }
  RC_ASSERT(far <= allowed);
}

// A number, and a row, that are written and then read at all places of a matrix.
TEST(GeneratedPrograms, WriteOnceWhatIsReadAtManyPlaces) {
  const auto make = [] {
    const at::Tensor number = torch::rand({}), row = torch::rand({5}), x = torch::randn({7, 5});
    return Program{[=](int) -> Tensors {
                     const at::NoGradGuard no_grad;
                     number.mul_(0.5);
                     const at::Tensor y = x * number + 1;
                     row.mul_(0.9).add_(0.1);
                     return {y, x - row, x.tanh() * row};
                   },
                   [=] {
                     return Tensors{number, row};
                   }};
  };
  const auto backend = std::make_shared<CpuBackend>();
  Region region({.backend = backend});
  EXPECT_LE(furthest(outcome(make, 6, nullptr), outcome(waiting(backend, make), 6, &region)), 1);
  EXPECT_THAT(region.explain().to_text(), ::testing::ContainsRegex("kernels: [1-9]"));
}

/// A library that knows nothing of libtorch.
void foreign_squeeze(const float* from, float* to, int64_t count) {
  for (int64_t i = 0; i < count; ++i) to[i] = from[i] / (1 + std::abs(from[i]));
}

struct Squeeze : torch::autograd::Function<Squeeze> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& y) {
    const at::Tensor dense = y.contiguous();
    at::Tensor made = at::empty_like(dense);
    tap::sync();
    foreign_squeeze(dense.const_data_ptr<float>(), made.mutable_data_ptr<float>(), dense.numel());
    context->save_for_backward({y});
    return made;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    return {gradients[0] / (1 + context->get_saved_variables()[0].abs()).pow(2)};
  }
};

/// What tracing gets wrong and scripting refuses: `if x.sum() < 0: return -y; return our_lib.squeeze(y)`
at::Tensor f1(const at::Tensor& x, const at::Tensor& y) {
  if (x.sum().item<float>() < 0) return -y;
  return Squeeze::apply(y);
}

TEST(Compile, F1BranchesOnDataAndCallsForeignCode) {
  torch::manual_seed(5);
  const at::Tensor x = torch::rand({7, 5}), y = torch::randn({7, 5}), w = torch::randn({5, 5});
  const auto body = [&](double sign) {
    const at::Tensor leaf = w.detach().requires_grad_();
    const at::Tensor out = f1(x * sign, at::mm(y, leaf).tanh() * 2) * 3;
    out.sum().backward();
    return Tensors{out.detach(), leaf.grad()};
  };
  for (const CompileOptions& options : {CompileOptions{.always = true}, {}, {.exact = true}, {.generate = false}}) {
    const auto compiled = compile(body, options);
    for (const double sign : {1, -1, 1, 1, -1, -1, 1, -1, 1, -1, 1, -1}) {
      const Tensors got = compiled(sign), expected = body(sign);
      for (size_t i = 0; i < expected.size(); ++i) {
        const bool exact = options.exact || !options.generate;
        EXPECT_TRUE(exact ? at::equal(got[i], expected[i]) : at::allclose(got[i], expected[i], 1e-5, 1e-6))
            << i << sign;
      }
      wait_for(compiled);
    }
    const std::string said = compiled.explain().to_text();
    EXPECT_LE(compiled.explain().recordings, 2) << said;
    EXPECT_NE(said.find("aten::_local_scalar_dense"), std::string::npos) << said;
  }
}

TEST(Compile, RewritesNormsWithoutWeightsToBf16) {
  torch::manual_seed(5);
  const at::Tensor x = torch::randn({4, 8}), w = torch::randn({8, 8}), image = torch::randn({2, 8, 5, 5}),
                   kernel = torch::randn({8, 8, 3, 3});
  const auto body = [&] {
    const at::Tensor v = w.detach().requires_grad_();
    const at::Tensor rows = at::layer_norm(at::linear(x, v), {8}), made = at::conv2d(image, kernel, {}, 1, 1);
    const at::Tensor groups = std::get<0>(at::native_group_norm(made, {}, {}, 2, 8, 25, 2, 1e-5)),
                     batch = std::get<0>(at::native_batch_norm(made, {}, {}, {}, {}, true, 0.1, 1e-5));
    (rows.pow(3).sum() + groups.sum() + batch.sum()).backward();
    return Tensors{rows.detach(), groups, batch, v.grad()};
  };
  const auto compiled = compile(body, {.autocast = at::kBFloat16});
  for (int call = 0; call < 6; ++call) {
    EXPECT_LE(furthest(body(), compiled()), 4000) << "within 4e-2, in call " << call;
    wait_for(compiled);
  }
}

// A child has no thread but the one that forked. What is made anew in it needs another.
TEST(Compile, GoesOnInAChildOfFork) {
  const at::Tensor x = torch::rand({64});
  const auto compiled = compile([&](double factor) { return (x * factor + 1).tanh().sum(); }, {.always = true});
  for (int call = 0; call < 5; ++call) {
    compiled(2.0);
    wait_for(compiled);
  }
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    ::alarm(60);
    bool right = true;
    for (const double factor : {2.0, 3.0, 4.0, 5.0, 3.0}) {
      right = right && at::allclose(compiled(factor), (x * factor + 1).tanh().sum());
      wait_for(compiled);
    }
    ::_exit(right ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

}  // namespace
}  // namespace bellows::compile_detail::testing
