#include <torch/library.h>

#include "bellows/core/log.h"
#include "tests/graph/support.h"
#include "tests/support/captured_log.h"

// Frames in namespace bellows are skipped: the user's code stands outside.
namespace a_users_program {

[[gnu::noinline]] double reads_a_value(const at::Tensor& x) {
  double value = x.item<double>();
  value += 0;  // keeps this frame: no tail call
  return value;
}

[[gnu::noinline]] at::Tensor changes_its_mind(const at::Tensor& x, int call) {
  at::Tensor y = call < 2 ? x * 2 : x + 3;
  y = y.view({3});
  return y;
}

}  // namespace a_users_program

namespace bellows::graph::testing {
namespace {

using ::testing::HasSubstr;

TEST(Explain, SaysWhoCalledWhatBrokeAGraph) {
  Region region;
  const at::Tensor x = torch::ones({3});
  for (int call = 0; call < 4; ++call) {
    region.run([&] {
      const at::Tensor y = a_users_program::changes_its_mind(x, call);
      a_users_program::reads_a_value(y.sum());
    });
  }
  const Explanation said = region.explain();
  ASSERT_EQ(said.mismatch_causes.size(), 1u) << said.to_text();
  EXPECT_THAT(said.mismatch_causes[0].site, HasSubstr("a_users_program::changes_its_mind"));
  ASSERT_EQ(said.barrier_causes.size(), 1u) << said.to_text();
  EXPECT_EQ(said.barrier_causes[0].times, 2) << "of both recordings, of one place";
  EXPECT_THAT(said.barrier_causes[0].site, HasSubstr("a_users_program::reads_a_value"));
  EXPECT_THAT(said.to_text(), HasSubstr("called by a_users_program::reads_a_value"));
  std::istringstream lines(said.to_text());
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 81u) << line;  // "×" is two bytes
}

// Both go wrong: the function, and what it had called before. The function's own exception is what the caller gets.
TEST(Explain, AFailureOfWhatIsPendingWhileAnExceptionUnwinds) {
  Region region;
  const at::Tensor w = torch::rand({4, 2}), x = torch::zeros({1});
  at::Tensor row;
  const auto call = [&](int64_t index, bool throws) {
    region.run([&] {
      x.add_(1);
      row = at::embedding(w, torch::full({1}, index, at::kLong));
      x.add_(10);
      if (throws) throw std::domain_error("the user's own");
    });
  };
  call(1, false);
  call(2, false);
  const CapturedLog log;
  EXPECT_EQ(error_of([&] { call(9, true); }), "the user's own");
  EXPECT_THAT(log.text(), HasSubstr("after the function threw an exception, a pending operator also failed: "));
  EXPECT_THAT(log.text(), HasSubstr("index out of range"));
  EXPECT_EQ(x.item<double>(), 23) << "what came before the failure has run, what came after has not";
  EXPECT_THAT(error_of([&] { row.data_ptr(); }), HasSubstr("failed before it was computed"));
  call(3, false);
  EXPECT_EQ(x.item<double>(), 34);
  EXPECT_TRUE(at::equal(row[0], w[3]));
}

/// Products may run in oneDNN or not, and in less than fp32, as the flags say at the call: an operator that gives them back.
at::Tensor flags_now() {
  const at::Context& context = at::globalContext();
  const auto precision = context.float32Precision(at::Float32Backend::MKLDNN, at::Float32Op::MATMUL);
  return at::full({1}, 10 * static_cast<int>(precision) + (context.userEnabledMkldnn() ? 1 : 0));
}

/// An operator that gives the flags that it runs under.
auto flags_operator() {
  static const auto* const library = [] {
    auto* made = new torch::Library(torch::Library::DEF, "graph_flags", std::nullopt, __FILE__, __LINE__);
    made->def(torch::schema("graph_flags::mm_flags(Tensor x) -> Tensor"), {at::Tag::pt2_compliant_tag});
    made->impl("mm_flags", [](const at::Tensor&) { return flags_now(); });
    return made;
  }();
  TORCH_CHECK(library);
  return c10::Dispatcher::singleton()
      .findSchemaOrThrow("graph_flags::mm_flags", "")
      .typed<at::Tensor(const at::Tensor&)>();
}

TEST(Explain, FlagsOfProductsAreThoseOfTheCall) {
  const auto op = flags_operator();
  at::Context& context = at::globalContext();
  const auto set = [&](at::Float32Precision precision, bool onednn) {
    context.setFloat32Precision(at::Float32Backend::MKLDNN, at::Float32Op::MATMUL, precision);
    context.setUserEnabledMkldnn(onednn);
  };
  using P = at::Float32Precision;
  const P before = context.float32Precision(at::Float32Backend::MKLDNN, at::Float32Op::MATMUL);
  const at::NoGradGuard no_grad;
  Region region;
  const at::Tensor x = torch::ones({2, 2});
  for (int call = 0; call < 6; ++call) {
    const auto [precision, onednn] =
        std::vector<std::pair<P, bool>>{{P::IEEE, true}, {P::TF32, true}, {P::BF16, false}}[call / 2];
    at::Tensor flags, product;
    double expected = 0;
    region.run([&] {
      set(precision, onednn);
      expected = 10 * static_cast<int>(precision) + (onednn ? 1 : 0);
      flags = op.call(x);
      product = at::mm(x, x);
      set(before, true);  // and what is pending runs later
    });
    EXPECT_EQ(flags.item<double>(), expected) << call;
    EXPECT_EQ(product.sum().item<double>(), 8);
    EXPECT_EQ(context.float32Precision(at::Float32Backend::MKLDNN, at::Float32Op::MATMUL), before);
    EXPECT_TRUE(context.userEnabledMkldnn());
  }
  const Explanation said = region.explain();
  EXPECT_EQ(said.followed_calls, 3) << "each way of it has a recording of its own\n" << said.to_text();
  EXPECT_THAT(said.to_text(), HasSubstr("a different precision of fp32 matmuls"));
  EXPECT_THAT(said.to_text(), HasSubstr("oneDNN off instead of on"));
}

}  // namespace
}  // namespace bellows::graph::testing
