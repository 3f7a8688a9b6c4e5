// Every operator of the tap's cases in compiled functions, beside plain ones.

#include "tests/compile/distance.h"
#include "tests/tap/bits_cases.h"

namespace bellows::compile_detail::testing {
namespace {

using graph::testing::Region;
using tap::testing::BitsCase;
using tap::testing::BitsInputs;

struct Way {
  std::string name;
  bool inference = false;  ///< in inference mode, where operators that are made of others arrive whole
  bool special = false;    ///< of each input a value is NaN, one Inf, one -Inf
  bool bf16 = false;       ///< the program is rewritten to lower precision; beside plain fp32
};

void put_special_values(const BitsInputs& inputs) {
  const at::NoGradGuard no_grad;
  for (const at::Tensor& leaf : inputs.leaves()) {
    if (leaf.numel() < 4) continue;
    const at::Tensor all = leaf.view({-1});
    all[1] = NAN;
    all[2] = INFINITY;
    all[3] = -INFINITY;
  }
}

/// Results, and gradients where there are any.
Tensors run_one(const BitsCase& one, const Way& way) {
  const BitsInputs inputs;
  if (way.special) put_special_values(inputs);
  if (way.inference) {
    const c10::InferenceMode guard;
    Tensors results = one.run(inputs);
    for (at::Tensor& result : results) result = result.clone();
    return results;
  }
  Tensors all = one.run_with_backward(inputs);
  for (const at::Tensor& leaf : inputs.leaves()) all.push_back(leaf.grad());
  return all;
}

/// Of special values these give other ones. A tap takes libtorch's formula without branches for gradients of products (docs/tap-bits.md).
/// libtorch's vectors give NaN for gelu(Inf), and for a batch norm or group norm whose weight is infinite; ours follow the formula. A pool's gradient goes to
/// another place of a window with NaN.
bool differs(const std::string& name) {
  const auto has = [&](const char* part) { return name.find(part) != std::string::npos; };
  return has("prod") || name == "vander" || name == "gelu" || name == "batch_norm" || name == "group_norm" ||
         name == "batch_norm.eval" || name == "max_pool1d" || name == "max_pool2d";
}

/// Those that plain libtorch takes: a few refuse NaN, or gradients in inference mode.
std::vector<BitsCase> taken(const std::vector<BitsCase>& cases, const Way& way) {
  if (!way.special && !way.inference) return cases;
  std::vector<BitsCase> result;
  std::copy_if(cases.begin(), cases.end(), std::back_inserter(result), [&](const BitsCase& one) {
    if (way.special && differs(one.name)) return false;
    try {
      run_one(one, way);
      return true;
    } catch (const c10::Error&) {
      return false;
    }
  });
  return result;
}

Tensors run_all(const std::vector<BitsCase>& cases, const Way& way, std::vector<size_t>& begins) {
  torch::manual_seed(5);
  Tensors all;
  begins.clear();
  for (const BitsCase& one : cases) {
    begins.push_back(all.size());
    const Tensors results = run_one(one, way);
    all.insert(all.end(), results.begin(), results.end());
  }
  begins.push_back(all.size());
  return all;
}

/// bf16 in an operator's name: half a unit of its last place. Rewritten: ten units, as of second derivatives three products.
double allowed(const std::string& name, const Way& way) {
  return way.bf16 ? 4000 : name.find("bfloat16") == std::string::npos ? 10 : 400;
}

class Operators : public ::testing::TestWithParam<Way> {};

TEST_P(Operators, GiveNearlyTheSameValues) {
  for (const auto* every : {&tap::testing::pointwise_cases, &tap::testing::reduction_cases,
                            &tap::testing::indexing_cases, &tap::testing::matrix_cases, &tap::testing::network_cases}) {
    const std::vector<BitsCase> cases = taken(*every, GetParam());
    EXPECT_GE(cases.size() * 10, every->size() * 7) << "too many cases are left out";
    const auto backend = std::make_shared<CpuBackend>(
        BackendOptions{.autocast = GetParam().bf16 ? std::make_optional(at::kBFloat16) : std::nullopt});
    Region region({.backend = backend});
    std::vector<size_t> begins;
    for (int call = 0; call < 3; ++call) {
      const Tensors expected = run_all(cases, GetParam(), begins);
      Tensors got;
      region.run([&] { got = run_all(cases, GetParam(), begins); });
      wait_for(*backend);
      ASSERT_EQ(expected.size(), got.size());
      for (size_t i = 0; i < cases.size(); ++i) {
        for (size_t at = begins[i]; at < begins[i + 1]; ++at)
          EXPECT_LE(distance(expected[at], got[at]), allowed(cases[i].name, GetParam()))
              << cases[i].name << ", tensor " << at - begins[i] << ", call " << call;
      }
    }
    EXPECT_THAT(region.explain().to_text(), ::testing::ContainsRegex("kernels: [1-9]"));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Ways, Operators,
    ::testing::Values(Way{"WithGradients"}, Way{.name = "InInferenceMode", .inference = true},
                      Way{.name = "OfSpecialValues", .special = true},
                      Way{.name = "OfSpecialValuesInInferenceMode", .inference = true, .special = true},
                      Way{.name = "InBf16", .bf16 = true},
                      Way{.name = "InBf16AndInferenceMode", .inference = true, .bf16 = true}),
    [](const auto& way) { return way.param.name; });

}  // namespace
}  // namespace bellows::compile_detail::testing
