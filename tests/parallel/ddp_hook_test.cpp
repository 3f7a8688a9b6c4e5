#include <gmock/gmock.h>

#include "bellows/comm/collectives.h"
#include "bellows/core/error.h"
#include "bellows/parallel/ddp/distributed_data_parallel.h"
#include "tests/parallel/ddp_models.h"
#include "tests/parallel/ranks.h"

namespace bellows::parallel::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// The mean, in two collectives, with notes of what came.
class NotingHook final : public GradientHook {
 public:
  at::Tensor mean(const GradientBucket& bucket, const comm::Group& group) override {
    if (bucket.index == fail_at) TORCH_CHECK_VALUE(false, "the hook's own error");
    if (bucket.index == shrink_at) return bucket.flat.narrow(0, 0, 1);
    order.push_back(bucket.index);
    if (bucket.last) order.push_back(-1);
    threads.push_back(std::this_thread::get_id());
    int64_t count = 0;
    for (size_t i = 0; i < bucket.gradients.size(); ++i) {
      EXPECT_EQ(bucket.gradients[i].sizes(), bucket.parameters[i].sizes());
      EXPECT_EQ(bucket.gradients[i].strides(), bucket.parameters[i].strides());
      EXPECT_TRUE(bucket.gradients[i].is_alias_of(bucket.flat));
      count += bucket.gradients[i].numel();
    }
    EXPECT_EQ(count, bucket.flat.numel());
    EXPECT_FALSE(c10::GradMode::is_enabled());
    return comm::all_gather(bucket.flat, group).mean(0);
  }
  std::string describe() const override { return "noting"; }

  int64_t fail_at = -1, shrink_at = -1;
  std::vector<int64_t> order;
  std::vector<std::thread::id> threads;
};

TEST(GradientHooks, AreCalledInOrderOnAThreadOfTheirOwn) {
  const at::Tensor batch = numbers({12, 6}, 7);
  const Model alone = make_model<Layers>().first;
  loss_of(alone.forward(batch)).backward();
  for (const bool unused : {false, true}) {
    run_ranks(3, [&](const comm::Group& group) {
      const auto hook = std::make_shared<NotingHook>();
      const auto [model, own] = make_model<Layers>();
      const DistributedDataParallel ddp(
          model, group,
          {.find_unused_parameters = unused, .hook = hook, .bucket_bytes = 900, .first_bucket_bytes = 120});
      for (int step = 0; step < 2; ++step) {
        for (at::Tensor& parameter : model.parameters()) parameter.mutable_grad() = at::Tensor();
        loss_of(ddp.forward(part(batch, group.rank(), 3))).backward();
        expect_close(gradients_of(model), gradients_of(alone), 1e-12);
      }
      if (!unused) {
        EXPECT_THAT(hook->order, ElementsAre(0, -1, 0, 1, 2, -1));
      }
      for (const auto thread : hook->threads) {
        EXPECT_NE(thread, std::this_thread::get_id());
        EXPECT_EQ(thread, hook->threads.front());
      }
      EXPECT_THAT(ddp.describe(), HasSubstr(", noting"));
    });
  }
}

/// What the ranks' backward said.
std::vector<std::string> errors_of(const std::function<void(NotingHook&, int rank)>& spoil) {
  return messages_of_ranks(2, [&](const comm::Group& group) {
    const auto hook = std::make_shared<NotingHook>();
    const auto [model, own] = make_model<Layers>();
    const DistributedDataParallel ddp(model, group, {.hook = hook, .bucket_bytes = 900, .first_bucket_bytes = 120});
    for (int step = 0; step < 2; ++step) {
      if (step == 1) spoil(*hook, group.rank());
      loss_of(ddp.forward(numbers({4, 6}, 1))).backward();
    }
  });
}

TEST(GradientHooks, TheirErrorsComeOutOfBackward) {
  const auto everywhere = errors_of([](NotingHook& hook, int) { hook.fail_at = 1; });
  EXPECT_THAT(everywhere, ElementsAre(HasSubstr("the hook's own error"), HasSubstr("the hook's own error")));
  const auto on_one = errors_of([](NotingHook& hook, int rank) { hook.fail_at = rank == 1 ? 1 : -1; });
  EXPECT_THAT(on_one[1], HasSubstr("the hook's own error"));
  EXPECT_THAT(on_one[0], HasSubstr("failed on rank 0, group world/hook"));
  const auto shape = errors_of([](NotingHook& hook, int) { hook.shrink_at = 0; });
  EXPECT_THAT(shape[0], HasSubstr("gradient hook noting: expected the mean of"));
}

}  // namespace
}  // namespace bellows::parallel::testing
