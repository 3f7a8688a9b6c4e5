// Compiled functions draw random numbers with the fast kernels, and get libtorch's values.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <string>

#include "bellows/compile.h"
#include "bellows/nn/fast_random.h"

namespace bellows::compile_detail::testing {
namespace {

/// Compiled without and with generated code.
class CompiledRandom : public ::testing::TestWithParam<bool> {};

at::Tensor noisy(const at::Tensor& x) {
  const at::Tensor noise = torch::rand_like(x);
  return torch::dropout(x + noise, 0.2, true).tanh() * 2;
}

TEST_P(CompiledRandom, ValuesAndGeneratorEqualEagerCode) {
  const auto compiled = compile(noisy, {.generate = GetParam(), .exact = true, .always = true});
  const at::Tensor x = torch::ones({300, 40});
  for (int call = 0; call < 4; ++call) {
    torch::manual_seed(call);
    const at::Tensor expected = noisy(x), next = torch::rand({3});
    torch::manual_seed(call);
    const int64_t before = nn::FastRandomGuard::performed();
    EXPECT_TRUE(torch::equal(compiled(x), expected)) << call;
    EXPECT_FALSE(nn::FastRandomGuard::active());
    const bool has_kernels = at::get_cpu_capability() != "DEFAULT";
    EXPECT_EQ(nn::FastRandomGuard::performed() > before, has_kernels) << call;
    EXPECT_TRUE(torch::equal(torch::rand({3}), next)) << call;
  }
}

INSTANTIATE_TEST_SUITE_P(Modes, CompiledRandom, ::testing::Bool(),
                         [](const auto& test) { return std::string(test.param ? "Generated" : "Plain"); });

}  // namespace
}  // namespace bellows::compile_detail::testing
