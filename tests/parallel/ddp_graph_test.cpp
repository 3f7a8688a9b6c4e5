#include <gmock/gmock.h>

#include "bellows/core/error.h"
#include "bellows/parallel/ddp/distributed_data_parallel.h"
#include "tests/parallel/ddp_models.h"
#include "tests/parallel/ranks.h"

namespace bellows::parallel::testing {
namespace {

using ::testing::HasSubstr;

/// Which branch rank `rank` of `ranks` takes; the last of three is never taken.
using Choice = std::function<int(int rank, int step)>;

/// Gradients of every step, one behind the other.
std::vector<at::Tensor> gradients_by(int ranks, const DistributedOptions& options, const Choice& choice, int count) {
  std::vector<std::vector<at::Tensor>> results(static_cast<size_t>(ranks));
  run_ranks(ranks, [&](const comm::Group& group) {
    const auto [model, module] = make_model<Layers>(uint64_t{1}, at::kDouble, 3);
    const DistributedDataParallel ddp(model, group, options);
    auto& own = results[static_cast<size_t>(group.rank())];
    for (int step = 0; step < count; ++step) {
      for (at::Tensor& parameter : model.parameters()) parameter.mutable_grad() = at::Tensor();
      module->active = choice(group.rank(), step);
      loss_of(ddp.forward(part(numbers({12, 6}, 30 + step), group.rank(), ranks))).backward();
      for (const at::Tensor& gradient : gradients_of(model)) own.push_back(gradient);
    }
  });
  for (const auto& result : results) expect_equal(result, results.front());
  return results.front();
}

/// The same in one process: each part through its rank's branch.
std::vector<at::Tensor> gradients_alone(int ranks, const Choice& choice, int count) {
  const auto [model, module] = make_model<Layers>(uint64_t{1}, at::kDouble, 3);
  std::vector<at::Tensor> result;
  for (int step = 0; step < count; ++step) {
    for (at::Tensor& parameter : model.parameters()) parameter.mutable_grad() = at::Tensor();
    for (int rank = 0; rank < ranks; ++rank) {
      module->active = choice(rank, step);
      (loss_of(model.forward(part(numbers({12, 6}, 30 + step), rank, ranks))) / ranks).backward();
    }
    for (const at::Tensor& gradient : gradients_of(model)) result.push_back(gradient);
  }
  return result;
}

TEST(DistributedGraph, UnusedParametersOnSomeRanksOrAll) {
  const Choice alternating = [](int, int step) { return step % 2; };
  const Choice by_rank = [](int rank, int step) { return (rank + step) % 2; };
  for (const bool views : {true, false}) {
    const DistributedOptions options = {.find_unused_parameters = true,
                                        .gradient_as_bucket_view = views,
                                        .bucket_bytes = 900,
                                        .first_bucket_bytes = 120};
    expect_close(gradients_by(2, options, alternating, 5), gradients_alone(2, alternating, 5));
    expect_close(gradients_by(3, options, by_rank, 5), gradients_alone(3, by_rank, 5));
  }
}

TEST(DistributedGraph, StaticGraphFindsUnusedOnesOnce) {
  const Choice same = [](int, int) { return 1; };
  const DistributedOptions options = {.static_graph = true, .bucket_bytes = 900, .first_bucket_bytes = 120};
  expect_close(gradients_by(2, options, same, 5), gradients_alone(2, same, 5));
}

TEST(DistributedGraph, AStepWithoutAGradientIsNamedInTheNext) {
  run_ranks(2, [&](const comm::Group& group) {
    const auto [model, module] = make_model<Layers>(uint64_t{1}, at::kDouble, 2);
    const DistributedDataParallel ddp(model, group);
    loss_of(ddp.forward(numbers({4, 6}, 1))).backward();
    try {
      ddp.forward(numbers({4, 6}, 1));
      ADD_FAILURE() << "expected an error";
    } catch (const c10::Error& error) {
      EXPECT_EQ(user_message(error),
                "DistributedDataParallel: the last step computed no gradient for branch1_weight, branch1_bias, so not "
                "all gradients were exchanged. Set find_unused_parameters, or set requires_grad to false for "
                "parameters that are never trained.");
    }
  });
}

TEST(DistributedGraph, StaticGraphIsAPromise) {
  run_ranks(2, [&](const comm::Group& group) {
    const auto [model, module] = make_model<Layers>(uint64_t{1}, at::kDouble, 2);
    const DistributedDataParallel ddp(model, group, {.static_graph = true});
    EXPECT_THROW(ddp.before_backward({}), c10::ValueError);
    for (int step = 0; step < 2; ++step) loss_of(ddp.forward(numbers({4, 6}, 1))).backward();
    try {
      module->active = 1;
      for (int step = 0; step < 2; ++step) loss_of(ddp.forward(numbers({4, 6}, 1))).backward();
      ADD_FAILURE() << "expected an error";
    } catch (const c10::Error& error) {
      EXPECT_THAT(user_message(error), HasSubstr("static_graph"));
    }
  });
}

}  // namespace
}  // namespace bellows::parallel::testing
