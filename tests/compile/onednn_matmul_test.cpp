// Batched matmuls whose operands change, as oneDNN's primitives.
#include "tests/compile/onednn_support.h"

namespace bellows::compile_detail::testing {
namespace {

struct ProductCase {
  std::string name;
  int64_t batch, rows, inner, columns;
};

const std::vector<ProductCase> product_cases{
    {"one", 1, 1, 1, 1},      {"one_batch", 1, 17, 8, 33},    {"heads_of_8", 24, 16, 8, 16},
    {"odd", 5, 13, 7, 11},    {"heads_of_64", 6, 65, 64, 65}, {"one_column", 3, 9, 12, 1},
    {"one_row", 4, 1, 16, 9},
};

/// Whether matmuls with transposed left matrices become primitives.
bool takes_transposed() {
  return !__builtin_cpu_is("intel");
}

class OnednnProduct : public ::testing::TestWithParam<ProductCase> {};

TEST_P(OnednnProduct, OfEachOrderIsAsExactAsLibtorch) {
  const ProductCase& one = GetParam();
  torch::manual_seed(3);
  const at::Tensor a = torch::randn({one.batch, one.rows, one.inner}),
                   b = torch::randn({one.batch, one.inner, one.columns}),
                   at = a.transpose(1, 2).contiguous().transpose(1, 2),
                   bt = b.transpose(1, 2).contiguous().transpose(1, 2);
  const auto run = [&](at::ScalarType type) {
    return [=] {
      const auto in = [&](const at::Tensor& t) { return t.to(type); };
      return Tensors{at::bmm(in(a), in(b)) * 1, at::bmm(in(a), in(bt)) * 1, at::bmm(in(at), in(b)) * 1,
                     at::bmm(in(at), in(bt)) * 1};
    };
  };
  const Outcome ours = with_onednn(run(at::kFloat));
  const bool both_orders = one.rows == 1 || one.inner == 1;  // a vector is not transposed
  EXPECT_EQ(ours.report.matmuls, takes_transposed() || both_orders ? 4 : 2) << ours.text;
  const Tensors plain = run(at::kFloat)(), exact = run(at::kDouble)();
  for (size_t i = 0; i < plain.size(); ++i)
    expect_as_exact(ours.tensors[i], plain[i], exact[i], c10::str(one.name, " ", i), 8);
}

INSTANTIATE_TEST_SUITE_P(Shapes, OnednnProduct, ::testing::ValuesIn(product_cases),
                         [](const auto& one) { return "_" + one.param.name; });

TEST(OnednnProductTest, ReadsHeadsOfAPackedProjection) {
  torch::manual_seed(3);
  const at::Tensor packed = torch::randn({2, 9, 3 * 4 * 8});
  const auto run = [&](at::ScalarType type) {
    return [=] {
      const at::Tensor parts = packed.to(type).view({18, 12, 8}).transpose(0, 1);  // heads, rows, width
      const at::Tensor q = parts.slice(0, 0, 4), k = parts.slice(0, 4, 8), v = parts.slice(0, 8, 12);
      return Tensors{at::bmm(at::bmm(q, k.transpose(1, 2)), v)};
    };
  };
  const Outcome ours = with_onednn(run(at::kFloat));
  EXPECT_EQ(ours.report.matmuls, 2) << ours.text;
  expect_as_exact(ours.tensors[0], run(at::kFloat)()[0], run(at::kDouble)()[0], "heads", 8);
}

TEST(OnednnProductTest, KeepsGradients) {
  torch::manual_seed(3);
  const at::Tensor a = torch::randn({6, 17, 8}), b = torch::randn({6, 8, 19});
  const auto run = [&](at::ScalarType type) {
    return [=] {
      const at::Tensor x = a.detach().to(type).requires_grad_(), y = b.detach().to(type).requires_grad_();
      at::bmm(x, y).square().sum().backward();
      return Tensors{x.grad(), y.grad()};
    };
  };
  const Outcome ours = with_onednn(run(at::kFloat));
  EXPECT_EQ(ours.report.matmuls, takes_transposed() ? 3 : 2) << ours.text;
  const Tensors plain = run(at::kFloat)(), exact = run(at::kDouble)();
  for (size_t i = 0; i < plain.size(); ++i) expect_as_exact(ours.tensors[i], plain[i], exact[i], "gradient", 8);
}

TEST(OnednnProductTest, OfOtherTypesSizesAndOrdersAreLeftToLibtorch) {
  torch::manual_seed(3);
  const at::Tensor a = torch::randn({4, 6, 5}), b = torch::randn({4, 5, 7}), one = torch::randn({1, 6, 5}),
                   every_second = torch::randn({4, 6, 10}).slice(2, 0, 10, 2);
  const auto run = [&] {
    return Tensors{at::bmm(a.to(at::kDouble), b.to(at::kDouble)), at::bmm(a.slice(0, 0, 0), b.slice(0, 0, 0)),
                   at::bmm(one.expand({4, 6, 5}), b), at::bmm(every_second, b)};
  };
  const Outcome ours = with_onednn(run);
  EXPECT_EQ(ours.report.matmuls, 0) << ours.text;
  const Tensors plain = run();
  for (size_t i = 0; i < plain.size(); ++i) EXPECT_TRUE(at::equal(ours.tensors[i], plain[i])) << i;
}

TEST(OnednnProductTest, HasTheSameBitsOnOneThread) {
  torch::manual_seed(3);
  const at::Tensor a = torch::randn({16, 33, 24}), b = torch::randn({16, 24, 65});
  const int threads = at::get_num_threads();
  const auto run = [&] { return Tensors{at::bmm(a, b)}; };
  const Outcome many = with_onednn(run);
  at::set_num_threads(1);
  const Outcome single = with_onednn(run);
  at::set_num_threads(threads);
  EXPECT_TRUE(at::equal(many.tensors[0], single.tensors[0]));
}

TEST(OnednnProductTest, InBf16RoundsOnce) {
  torch::manual_seed(3);
  const at::Tensor a = torch::randn({6, 17, 24}).to(at::kBFloat16), b = torch::randn({6, 24, 40}).to(at::kBFloat16);
  const Outcome ours = with_onednn([&] { return Tensors{at::bmm(a, b)}; });
  EXPECT_EQ(ours.report.matmuls, has_bf16_primitives() ? 1 : 0) << ours.text;  // libtorch computes it otherwise
  const at::Tensor exact = at::bmm(a.to(at::kDouble), b.to(at::kDouble));
  EXPECT_LE(largest(ours.tensors[0].to(at::kDouble) - exact), largest(exact) / 256);
}

}  // namespace
}  // namespace bellows::compile_detail::testing
