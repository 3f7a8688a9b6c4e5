#include "bellows/compile/backend.h"
#include "bellows/compile/compile.h"
#include "bellows/tap/deferral.h"
#include "tests/graph/random_program.h"
#include "tests/tap/bits_cases.h"

#include <chrono>
#include <cmath>
#include <thread>

namespace bellows::compile_detail::testing {
namespace {

using graph::testing::outcome;
using graph::testing::Program;
using graph::testing::Region;
using graph::testing::Tensors;

/// A few programs, the same in each run; RC_PARAMS in the environment asks for others.
[[maybe_unused]] const int fixed_seed = setenv("RC_PARAMS",
                                               std::getenv("BELLOWS_SLOW") ? "seed=20261123 max_success=300 max_size=60"
                                                                           : "seed=20261123 max_success=30 max_size=60",
                                               0);

void wait_for(const CpuBackend& backend) {
  while (!backend.ready()) std::this_thread::sleep_for(std::chrono::milliseconds(2));
}

/// As a program, but that each call waits until all that is made faster is ready.
std::function<Program()> waiting(const std::shared_ptr<CpuBackend>& backend, const std::function<Program()>& make) {
  return [=] {
    Program program = make();
    program.body = [backend, body = std::move(program.body)](int call) {
      wait_for(*backend);
      return body(call);
    };
    return program;
  };
}

/// How far a tensor is from what is expected, in units of 1e-5 of the largest value and of 1e-5; of other types or sizes: very far.
double distance(const at::Tensor& expected, const at::Tensor& got) {
  if (expected.defined() != got.defined()) return HUGE_VAL;
  if (!expected.defined() || expected.numel() == 0) return 0;
  if (expected.sizes() != got.sizes() || expected.strides() != got.strides() || expected.dtype() != got.dtype())
    return HUGE_VAL;
  if (!expected.is_floating_point()) return at::equal(expected, got) ? 0 : HUGE_VAL;
  const at::Tensor a = expected.detach().to(at::kDouble), b = got.detach().to(at::kDouble), finite = a.isfinite();
  if (!at::equal(finite, b.isfinite())) return HUGE_VAL;
  if (!at::equal(a.masked_fill(finite, 0).nan_to_num(7), b.masked_fill(finite, 0).nan_to_num(7))) return HUGE_VAL;
  const at::Tensor x = a.masked_fill(~finite, 0), y = b.masked_fill(~finite, 0);
  return (x - y).abs().max().item<double>() / (1e-5 * (1 + x.abs().max().item<double>()));
}

double furthest(const Tensors& expected, const Tensors& got) {
  double result = expected.size() == got.size() ? 0 : HUGE_VAL;
  for (size_t i = 0; i < std::min(expected.size(), got.size()); ++i)
    result = std::max(result, distance(expected[i], got[i]));
  return result;
}

// Branches on data are left out, as rounding may take another one. A quarter runs without what changes bits.
RC_GTEST_PROP(GeneratedPrograms, LeaveNearlyTheSameValues, ()) {
  const auto instructions =
      *rc::gen::container<std::vector<graph::testing::Instruction>>(graph::testing::instruction());
  const auto make = [&] {
    Program program = graph::testing::random_program(instructions, false);
    program.body = [body = std::move(program.body)](int call) { return body(call % 3); };
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
    for (const auto& graph : region.graphs()) RC_LOG() << graph.to_text();
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

/// Results and gradients of all cases, one case after the other, with the places where they begin.
Tensors run_all(const std::vector<tap::testing::BitsCase>& cases, std::vector<size_t>& begins) {
  Tensors all;
  begins.clear();
  for (const auto& one : cases) {
    begins.push_back(all.size());
    const tap::testing::BitsInputs inputs;
    const Tensors results = one.run_with_backward(inputs);
    all.insert(all.end(), results.begin(), results.end());
    for (const auto& leaf : inputs.leaves()) all.push_back(leaf.grad());
  }
  begins.push_back(all.size());
  return all;
}

/// Casts to bf16 and back inside of a kernel do not round: half a unit of its last place.
double allowed(const std::string& name) {
  return name.find("bfloat16") == std::string::npos ? 10 : 400;
}

TEST(GeneratedPrograms, OfAllOperatorsGiveNearlyTheSameValues) {
  for (const auto* cases : {&tap::testing::pointwise_cases, &tap::testing::reduction_cases,
                            &tap::testing::indexing_cases, &tap::testing::matrix_cases, &tap::testing::network_cases}) {
    const auto backend = std::make_shared<CpuBackend>();
    Region region({.backend = backend});
    std::vector<size_t> begins;
    for (int call = 0; call < 3; ++call) {
      torch::manual_seed(5);
      const Tensors expected = run_all(*cases, begins);
      torch::manual_seed(5);
      Tensors got;
      region.run([&] { got = run_all(*cases, begins); });
      wait_for(*backend);
      ASSERT_EQ(expected.size(), got.size());
      for (size_t i = 0; i < cases->size(); ++i) {
        for (size_t at = begins[i]; at < begins[i + 1]; ++at)
          EXPECT_LE(distance(expected[at], got[at]), allowed((*cases)[i].name))
              << (*cases)[i].name << ", tensor " << at - begins[i] << ", call " << call;
      }
    }
    EXPECT_THAT(region.explain().to_text(), ::testing::ContainsRegex("kernels: [1-9]"));
  }
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
  for (const CompileOptions& options : {CompileOptions{}, {.exact = true}, {.generate = false}}) {
    const auto compiled = compile(body, options);
    for (const double sign : {1, -1, 1, 1, -1, -1, 1, -1, 1, -1, 1, -1}) {
      const Tensors got = compiled(sign), expected = body(sign);
      for (size_t i = 0; i < expected.size(); ++i) {
        const bool exact = options.exact || !options.generate;
        EXPECT_TRUE(exact ? at::equal(got[i], expected[i]) : at::allclose(got[i], expected[i], 1e-5, 1e-6))
            << i << sign;
      }
      while (!compiled.ready()) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    const std::string said = compiled.explain().to_text();
    EXPECT_LE(compiled.explain().recordings, 2) << said;
    EXPECT_NE(said.find("aten::_local_scalar_dense"), std::string::npos) << said;
  }
}

}  // namespace
}  // namespace bellows::compile_detail::testing
