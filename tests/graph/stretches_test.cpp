#include <ATen/Parallel.h>

#include "bellows/graph/execution/branches.h"
#include "tests/graph/pass_support.h"

namespace bellows::graph::testing {
namespace {

class Stretches : public ::testing::Test {
 protected:
  void SetUp() override {
    at::set_num_threads(2);
    poison_arenas(true);
  }
  void TearDown() override {
    poison_arenas(false);
    at::set_num_threads(threads_);
  }

 private:
  const int threads_ = at::get_num_threads();
};

PassBackend branching(PassOptions options = {}, PassBackend::Kernels kernels = PassBackend::Kernels::none) {
  PassBackend backend(std::move(options), kernels);
  backend.list.push_back(branches_pass());
  return backend;
}

at::Tensor tower(at::Tensor x, const Tensors& weights) {
  for (const at::Tensor& w : weights) x = at::tanh(at::mm(x, w));
  return x;
}

Tensors some_weights(int count, int64_t width = 128) {
  Tensors all;
  all.reserve(count);
  for (int i = 0; i < count; ++i) all.push_back(torch::randn({width, width}) / 8);
  return all;
}

std::function<Program()> towers(int count, int64_t rows = 1, int64_t width = 128) {
  return [=]() -> Program {
    std::vector<Tensors> weights;
    weights.reserve(count);
    for (int i = 0; i < count; ++i) weights.push_back(some_weights(8, width));
    const at::Tensor x = torch::randn({rows, width});
    return {[=](int call) -> Tensors {
      at::Tensor sum = x * (call + 1);
      Tensors tops;
      for (const Tensors& one : weights) tops.push_back(tower(sum, one));
      for (const at::Tensor& top : tops) sum = sum + top;
      return {sum, tops[0]};
    }};
  };
}

TEST_F(Stretches, RunsTowersAtTheSameTime) {
  for (const int count : {2, 3, 7}) {
    const auto backend = expect_passed(towers(count), branching());
    EXPECT_EQ(backend->reports.back().fired("branches"), count) << backend->programs.back().to_text();
  }
  EXPECT_EQ(expect_passed(towers(1), branching())->fired("branches"), 0);
}

TEST_F(Stretches, AreLeftOutWhenAskedAndWithOneThread) {
  EXPECT_EQ(expect_passed(towers(2), branching({.without = {"branches"}}))->fired("branches"), 0);
  EXPECT_EQ(expect_passed(towers(2), branching({.exact = true}))->fired("branches"), 0);
  at::set_num_threads(1);
  EXPECT_EQ(expect_passed(towers(2), branching())->fired("branches"), 0);
}

TEST_F(Stretches, HoldNothingThatTwoThreadsMakeFaster) {
  EXPECT_EQ(expect_passed(towers(2, 4, 128), branching(), 1e-5, 4)->fired("branches"), 0);
  const auto backend = expect_passed(
      []() -> Program {
        const at::Tensor x = torch::randn({2000});
        return {[=](int) -> Tensors {
          return {at::dropout(x, 0.5, true), at::sin(x), at::randn({3}) + 1, at::cos(x)};
        }};
      },
      branching());
  EXPECT_EQ(backend->fired("branches"), 0) << "random numbers come in order, and what is left is too little";
}

/// Writes of parts of one buffer come one after the other, and so do writes behind what reads.
TEST_F(Stretches, KeepWritesOfOneBufferInOrder) {
  const auto program = []() -> Program {
    const Tensors weights = some_weights(16);
    const at::Tensor kept = torch::randn({2, 1, 128});
    return {[=](int) -> Tensors {
              at::Tensor a = kept.select(0, 0), b = kept.select(0, 1);
              const at::Tensor before = kept.sum(0);
              for (int i = 0; i < 8; ++i) a.copy_(at::tanh(at::mm(a, weights[i])));
              for (int i = 8; i < 16; ++i) b.copy_(at::tanh(at::mm(b, weights[i])));
              return {before, kept * 2};
            },
            [=] { return Tensors{kept}; }};
  };
  expect_passed(program, branching());
}

/// The first one by the program's order, and all is well in the next call.
TEST_F(Stretches, SayWhichOperatorFailed) {
  const Tensors weights = some_weights(16);
  const auto backend = std::make_shared<PassBackend>(branching({.without = {"order", "loops"}}));
  RegionOptions options;
  options.backend = backend;
  Region region(options);
  const at::Tensor ids = torch::zeros({1}, at::kLong), x = torch::randn({1, 128});
  const at::Tensor bad = torch::full({1}, 1000, at::kLong);
  const auto body = [&](const at::Tensor& at) {
    const at::Tensor a = tower(at::index_select(x, 0, at), {weights.begin(), weights.begin() + 8});
    return a + tower(x, {weights.begin() + 8, weights.end()});
  };
  at::Tensor result;
  for (int call = 0; call < 3; ++call) region.run([&] { result = body(ids); });
  EXPECT_EQ(backend->reports.back().fired("branches"), 2) << backend->programs.back().to_text();
  EXPECT_THAT(error_of([&] { region.run([&] { body(bad).sum(); }); }), ::testing::HasSubstr("index_select"));
  region.run([&] { result = body(ids); });
  EXPECT_TRUE(same_bits(result, body(ids)));
}

}  // namespace
}  // namespace bellows::graph::testing
