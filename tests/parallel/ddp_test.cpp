#include <gmock/gmock.h>

#include "bellows/amp/autocast.h"
#include "bellows/comm/collectives.h"
#include "bellows/parallel/ddp/distributed_data_parallel.h"
#include "tests/parallel/ddp_models.h"
#include "tests/parallel/ranks.h"

namespace bellows::parallel::testing {
namespace {

using Tensors = std::vector<at::Tensor>;

constexpr int trained_steps = 20;
/// Many buckets, none of which ends with a layer.
const DistributedOptions small_buckets = {.bucket_bytes = 900, .first_bucket_bytes = 120};

Tensors each_rank(int ranks, const std::function<Tensors(const comm::Group&)>& body, int shown = 0) {
  std::vector<Tensors> results(static_cast<size_t>(ranks));
  run_ranks(ranks, [&](const comm::Group& group) { results[static_cast<size_t>(group.rank())] = body(group); });
  for (const Tensors& result : results) expect_equal(result, results.front());
  return results[static_cast<size_t>(shown)];
}

template <class Module>
Tensors trained_alone() {
  const auto [model, module] = make_model<Module>(uint64_t{1});
  auto optimizer = sgd(model);
  for (int step = 0; step < trained_steps; ++step) {
    optimizer.zero_grad();
    loss_of(model.forward(numbers({12, 6}, 50 + step))).backward();
    optimizer.step();
  }
  return copies(model.parameters());
}

template <class Module>
Tensors trained_on(int ranks, const DistributedOptions& options) {
  return each_rank(ranks, [&](const comm::Group& group) {
    const auto [model, module] = make_model<Module>(uint64_t(1 + group.rank()));  // rank 0's weights are what counts
    const DistributedDataParallel ddp(model, group, options);
    auto optimizer = sgd(model);
    for (int step = 0; step < trained_steps; ++step) {
      optimizer.zero_grad(/*set_to_none=*/step % 3 != 1);
      loss_of(ddp.forward(part(numbers({12, 6}, 50 + step), group.rank(), ranks))).backward();
      optimizer.step();
    }
    return copies(model.parameters());
  });
}

TEST(DistributedDataParallel, ABatchOf30OverThreeWorkersGivesTheGradientOfTheBatchOf30) {
  const at::Tensor batch = numbers({30, 6}, 7);
  const auto [alone, module] = make_model<Layers>();
  loss_of(alone.forward(batch)).backward();
  const Tensors shared = each_rank(3, [&](const comm::Group& group) {
    const auto [model, own_module] = make_model<Layers>();
    loss_of(DistributedDataParallel(model, group).forward(part(batch, group.rank(), 3))).backward();
    return gradients_of(model);
  });
  expect_close(shared, gradients_of(alone), 1e-12);
}

TEST(DistributedDataParallel, TwentyStepsOnTwoToFourRanksEqualOneProcess) {
  const Tensors layers = trained_alone<Layers>(), tied = trained_alone<Tied>();
  DistributedOptions apart = small_buckets;
  apart.gradient_as_bucket_view = false;
  for (const int ranks : {2, 3, 4}) {
    SCOPED_TRACE(ranks);
    expect_close(trained_on<Layers>(ranks, small_buckets), layers);
    expect_close(trained_on<Tied>(ranks, {}), tied);
  }
  expect_close(trained_on<Layers>(3, apart), layers);
}

TEST(DistributedDataParallel, AWorldOfOneIsThePlainModel) {
  expect_equal(trained_on<Layers>(1, {}), trained_alone<Layers>());
}

TEST(DistributedDataParallel, TwoRanksInFloatGiveTheBitsOfOneProcessThatAddsTheirGradients) {
  const at::Tensor batch = numbers({10, 6}, 3, at::kFloat);
  const auto [alone, module] = make_model<Layers>(uint64_t{1}, at::kFloat);
  for (const int half : {0, 1}) loss_of(alone.forward(part(batch, half, 2))).backward();
  Tensors expected = gradients_of(alone);
  for (at::Tensor& gradient : expected) gradient.div_(2);
  expect_equal(each_rank(2,
                         [&](const comm::Group& group) {
                           const auto [model, own] = make_model<Layers>(uint64_t{1}, at::kFloat);
                           const DistributedDataParallel ddp(model, group, small_buckets);
                           loss_of(ddp.forward(part(batch, group.rank(), 2))).backward();
                           return gradients_of(model);
                         }),
               expected);
}

TEST(DistributedDataParallel, NoSyncAccumulates) {
  const at::Tensor batch = numbers({24, 6}, 3);
  const auto [alone, module] = make_model<Layers>();
  for (const at::Tensor& piece : batch.chunk(3)) loss_of(alone.forward(piece)).backward();
  const Tensors shared = each_rank(2, [&](const comm::Group& group) {
    const auto [model, own] = make_model<Layers>();
    const DistributedDataParallel ddp(model, group, small_buckets);
    for (int step = 0; step < 3; ++step) {  // a later step finds its buckets anew, and gradients of the last one
      for (at::Tensor& parameter : model.parameters()) {
        if (step == 1) parameter.mutable_grad() = at::Tensor();
        if (step == 2) parameter.mutable_grad().zero_();
      }
      const auto pieces = batch.chunk(3);
      {
        const auto local = ddp.no_sync();
        for (const int i : {0, 1}) loss_of(ddp.forward(part(pieces[i], group.rank(), 2))).backward();
      }
      loss_of(ddp.forward(part(pieces[2], group.rank(), 2))).backward();
    }
    return gradients_of(model);
  });
  expect_close(shared, gradients_of(alone), 1e-12);
}

TEST(DistributedDataParallel, GradientsLieInTheBuckets) {
  each_rank(2, [&](const comm::Group& group) {
    const auto [model, module] = make_model<Layers>();
    const DistributedDataParallel ddp(model, group);
    loss_of(ddp.forward(numbers({4, 6}, 1))).backward();
    for (const at::Tensor& parameter : model.parameters())
      EXPECT_GT(parameter.grad().storage().nbytes(), parameter.grad().nbytes());
    return Tensors();
  });
}

TEST(DistributedDataParallel, TheLoopMayCallTheModelItself) {
  const at::Tensor batch = numbers({8, 6}, 7);
  const auto gradients = [&](bool by_hand) {
    return each_rank(2, [&](const comm::Group& group) {
      const auto [model, module] = make_model<Layers>();
      const DistributedDataParallel ddp(model, group);
      const at::Tensor x = part(batch, group.rank(), 2);
      if (by_hand) {
        ddp.before_forward();
        const at::Tensor loss = loss_of(model.forward(x));
        ddp.before_backward({loss});
        loss.backward();
      } else {
        loss_of(ddp.forward(x)).backward();
      }
      return gradients_of(model);
    });
  };
  expect_equal(gradients(true), gradients(false));
}

TEST(DistributedDataParallel, EvaluationIsEachRanksOwn) {
  each_rank(2, [&](const comm::Group& group) {
    const auto [model, module] = make_model<Layers>();
    const DistributedDataParallel ddp(model, group);
    const at::NoGradGuard no_grad;
    if (group.rank() == 0) ddp.forward(numbers({4, 6}, 1));  // the other one does not come
    return Tensors();
  });
}

/// Counts, and notes samples: rank 0's are everybody's.
class WithBuffers final : public torch::nn::Module {
 public:
  explicit WithBuffers(int rank) {
    weight_ = register_parameter("weight", at::ones({3}, at::kDouble));
    sum_ = register_buffer("sum", at::full({2, 3}, rank, at::kFloat));
    flag_ = register_buffer("flag", at::full({5}, rank == 0, at::kBool));
    register_buffer("none", at::zeros({0}));
  }
  at::Tensor forward(const at::Tensor& x) {
    seen = sum_.clone();
    sum_ += x.detach().mean().to(at::kFloat);
    return x * weight_;
  }
  at::Tensor seen;

 private:
  at::Tensor weight_, sum_, flag_;
};

TEST(DistributedDataParallel, BuffersAreRank0s) {
  const auto seen = [](bool broadcast) {
    std::vector<at::Tensor> of(2);
    each_rank(2, [&](const comm::Group& group) {
      const auto [model, module] = make_model<WithBuffers>(group.rank());
      const DistributedDataParallel ddp(model, group, {.broadcast_buffers = broadcast});
      EXPECT_TRUE(model.named_buffers()[1].second.all().item<bool>()) << "at construction";
      for (int step = 0; step < 2; ++step)
        loss_of(ddp.forward(at::full({4, 3}, 1.0 + group.rank(), at::kDouble))).backward();
      of[static_cast<size_t>(group.rank())] = module->seen;
      ddp.broadcast_buffers();
      return Tensors{model.named_buffers().front().second};
    });
    return of;
  };
  expect_equal(seen(true), {at::full({2, 3}, 1.0F), at::full({2, 3}, 1.0F)});
  expect_equal(seen(false), {at::full({2, 3}, 1.0F), at::full({2, 3}, 2.0F)});
}

TEST(DistributedDataParallel, LowPrecision) {
  const at::Tensor batch = numbers({8, 6}, 7, at::kFloat);
  const auto gradients = [&](int ranks, at::ScalarType weights, bool autocast) {
    return each_rank(ranks, [&](const comm::Group& group) {
      const auto [model, module] = make_model<Layers>(uint64_t{1}, weights);
      const DistributedDataParallel ddp(model, group);
      at::Tensor loss;
      {
        std::optional<amp::AutocastGuard> guard;
        if (autocast) guard.emplace(c10::DeviceType::CPU, at::kBFloat16);
        loss = loss_of(ddp.forward(part(batch.to(weights), group.rank(), ranks)).to(at::kFloat));
      }
      loss.backward();
      EXPECT_EQ(model.parameters().front().grad().scalar_type(), weights);
      Tensors result = gradients_of(model);
      for (at::Tensor& gradient : result) gradient = gradient.to(at::kDouble);
      return result;
    });
  };
  const auto difference = [](const Tensors& a, const Tensors& b) {
    double most = 0;
    for (size_t i = 0; i < a.size(); ++i) most = std::max(most, (a[i] - b[i]).abs().max().item<double>());
    return most;
  };
  EXPECT_LT(difference(gradients(2, at::kFloat, true), gradients(1, at::kFloat, true)), 2e-3);
  EXPECT_LT(difference(gradients(2, at::kBFloat16, false), gradients(1, at::kBFloat16, false)), 8e-3);
}

TEST(DistributedDataParallel, DescribesItself) {
  each_rank(2, [&](const comm::Group& group) {
    const auto [model, module] = make_model<Layers>();
    const DistributedDataParallel ddp(model, group, small_buckets);
    EXPECT_EQ(ddp.describe(), "2 ranks, 1 bucket, 2.5 KiB per step, gradients in the buckets");
    const auto before = comm::traffic(group)["all_reduce"];
    for (int step = 0; step < 2; ++step) loss_of(ddp.forward(numbers({4, 6}, 1))).backward();
    const auto after = comm::traffic(group)["all_reduce"];
    EXPECT_EQ(ddp.describe(), "2 ranks, 3 buckets, 2.5 KiB per step, gradients in the buckets");
    EXPECT_EQ(after.calls - before.calls, 1 + 3);
    EXPECT_EQ(after.bytes - before.bytes, 2 * 8 * (13 * 6 + 13 + 13 * 13 + 13 + 3 * 13 + 3));
    return Tensors();
  });
  const Model model = make_model<Layers>().first;
  run_ranks(1, [&](const comm::Group& group) {
    EXPECT_EQ(DistributedDataParallel(model, group).describe(), "1 rank, without exchange");
  });
}

}  // namespace
}  // namespace bellows::parallel::testing
