#include "bellows/tap/weight_casts.h"

#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <thread>

#include "bellows/tap/observer.h"

namespace bellows::tap {

namespace {

class CountToCopy final : public Observer {
 public:
  void before(const OpEvent& op) override { casts += op.name == "aten::_to_copy"; }
  int casts = 0;
};

/// Autocast on the CPU while it lives.
class AutocastOn {
 public:
  explicit AutocastOn(at::ScalarType dtype) : before_(at::autocast::get_autocast_dtype(at::kCPU)) {
    at::autocast::set_autocast_enabled(at::kCPU, true);
    at::autocast::set_autocast_dtype(at::kCPU, dtype);
    at::autocast::increment_nesting();
  }
  ~AutocastOn() {
    at::autocast::decrement_nesting();
    at::autocast::clear_cache();
    at::autocast::set_autocast_dtype(at::kCPU, before_);
    at::autocast::set_autocast_enabled(at::kCPU, false);
  }

 private:
  at::ScalarType before_;
};

/// Casts of `w` in two products with its transpose under autocast; x is bf16 already.
int casts_of_transposed(const at::Tensor& w) {
  const at::Tensor x = torch::ones({2, 3}, at::kBFloat16);
  const auto counter = std::make_shared<CountToCopy>();
  {
    const AutocastOn autocast(at::kBFloat16);
    const ObserverGuard guard(counter);
    x.mm(w.t());
    x.matmul(w.t());
  }
  return counter->casts;
}

}  // namespace

TEST(WeightCastGuard, CountsOnlyWhileItLivesOnItsThread) {
  const at::Tensor w = torch::ones({4, 3}).requires_grad_();
  EXPECT_EQ(casts_of_transposed(w), 2);
  {
    const WeightCastGuard outer;
    EXPECT_EQ(casts_of_transposed(w), 1);
    {
      const WeightCastGuard inner, off(false);
      EXPECT_EQ(casts_of_transposed(w), 1);
    }
    EXPECT_EQ(casts_of_transposed(w), 1);
    int elsewhere = 0;
    std::thread([&] { elsewhere = casts_of_transposed(w); }).join();
    EXPECT_EQ(elsewhere, 2);
  }
  EXPECT_EQ(casts_of_transposed(w), 2);
}

TEST(WeightCastGuard, EndsWithAnException) {
  const at::Tensor w = torch::ones({4, 3}).requires_grad_();
  EXPECT_THROW(
      {
        const WeightCastGuard guard;
        throw std::runtime_error("on the way");
      },
      std::runtime_error);
  EXPECT_EQ(casts_of_transposed(w), 2);
}

TEST(WeightCastGuard, ManyThreadsMayMakeTheFirstOne) {
  const at::Tensor w = torch::ones({4, 3}).requires_grad_();
  std::vector<int> casts(4, -1);
  std::vector<std::thread> threads;
  for (int& count : casts) {
    threads.emplace_back([&count, &w] {
      const WeightCastGuard guard;
      count = casts_of_transposed(w);
    });
  }
  for (std::thread& thread : threads) thread.join();
  // libtorch's cache is the process's: a thread may find another's cast, or lose its own when another clears it.
  for (const int count : casts) EXPECT_TRUE(count >= 0 && count <= 2) << count;
  const WeightCastGuard guard;
  EXPECT_EQ(casts_of_transposed(w), 1);
}

TEST(WeightCastGuard, OtherwiseTheKernelsAreLibtorchs) {
  const WeightCastGuard guard;
  const at::Tensor a = torch::randn({3, 3}), b = torch::randn({3, 3}), c = torch::randn({3});
  EXPECT_EQ(a.mm(b.t()).scalar_type(), at::kFloat);  // no autocast: not even called
  at::Tensor sum, wide, batched;
  {
    const AutocastOn autocast(at::kHalf);
    sum = torch::addmm(c, a, b, 2, 3);
    wide = a.to(at::kDouble).mm(b.to(at::kDouble));
    batched = torch::matmul(torch::ones({2, 3, 3}), b.t());
  }
  const auto half = [](const at::Tensor& t) { return t.to(at::kHalf); };
  EXPECT_TRUE(torch::equal(sum, torch::addmm(half(c), half(a), half(b), 2, 3)));
  EXPECT_TRUE(torch::equal(batched, torch::matmul(half(torch::ones({2, 3, 3})), half(b.t()))));
  EXPECT_EQ(wide.scalar_type(), at::kDouble);
}

}  // namespace bellows::tap
