#include "bellows/parallel/tensor/cross_entropy.h"

#include <gmock/gmock.h>

#include "tests/parallel/tensor/tensor_support.h"
#include "tests/support/errors.h"

namespace bellows::parallel::testing::tensor {
namespace {

using ::testing::HasSubstr;

struct LossCase {
  at::ScalarType dtype = at::kDouble;
  TensorCrossEntropyOptions options{};
  double tolerance = 1e-12;
};

/// Compares loss and gradient with libtorch's for 13 classes, which no number of ranks divides.
void expect_like_libtorch(const LossCase& one, int ranks) {
  const at::Tensor whole = (drawn({5, 2, 13}, 1) * 4).to(one.dtype);
  at::Tensor target = drawn_ids(13, {5, 2}, 2);
  target[1][1] = one.options.ignore_index;
  const at::Tensor reference = whole.clone().requires_grad_();
  const int64_t reduction = one.options.reduction == nn::Reduction::none   ? at::Reduction::None
                            : one.options.reduction == nn::Reduction::mean ? at::Reduction::Mean
                                                                           : at::Reduction::Sum;
  const at::Tensor expected = at::cross_entropy_loss(reference.flatten(0, 1), target.flatten(), {}, reduction,
                                                     one.options.ignore_index, one.options.label_smoothing);
  const at::Tensor weights = drawn(expected.sizes(), 3).to(one.dtype);
  (expected * weights).sum().backward();
  run_ranks(ranks, [&](const comm::Group& group) {
    const int64_t first = 13 * group.rank() / group.size(), end = 13 * (group.rank() + 1) / group.size();
    const at::Tensor own = whole.slice(2, first, end).clone().requires_grad_();
    const at::Tensor loss = cross_entropy(own, target, 13, group, one.options);
    (loss.reshape(expected.sizes()) * weights).sum().backward();
    EXPECT_TRUE(at::allclose(loss.flatten(), expected.flatten().to(loss.scalar_type()), one.tolerance, one.tolerance));
    EXPECT_TRUE(at::allclose(own.grad(), reference.grad().slice(2, first, end), one.tolerance, one.tolerance));
  });
}

TEST(TensorCrossEntropy, MatchesLibtorch) {
  for (const int ranks : {1, 2, 4}) {
    expect_like_libtorch({}, ranks);
    expect_like_libtorch({.options = {.label_smoothing = 0.2, .ignore_index = 3}}, ranks);
    expect_like_libtorch({.options = {.reduction = nn::Reduction::sum}}, ranks);
    expect_like_libtorch({.options = {.label_smoothing = 0.1, .reduction = nn::Reduction::none}}, ranks);
    expect_like_libtorch({.dtype = at::kFloat, .tolerance = 1e-5}, ranks);
  }
}

TEST(TensorCrossEntropy, SendsThreeNumbersPerRow) {
  run_ranks(2, [&](const comm::Group& group) {
    const at::Tensor own = drawn({10, 4}, 1).requires_grad_();
    cross_entropy(own, drawn_ids(8, {10}, 2), 8, group).backward();
    EXPECT_EQ(comm::traffic(group).at("all_reduce").bytes, 3 * 10 * 8);
  });
}

TEST(TensorCrossEntropy, Misuse) {
  run_ranks(1, [&](const comm::Group& group) {
    const at::Tensor logits = drawn({10, 8}, 1), target = drawn_ids(8, {10}, 2);
    const auto message = [&](const at::Tensor& x, const at::Tensor& y, double smoothing = 0) {
      return message_of([&] { cross_entropy(x, y, 8, group, {.label_smoothing = smoothing}); });
    };
    EXPECT_THAT(message(logits.narrow(1, 0, 7), target),
                HasSubstr("expected floating-point logits with 8 of 8 classes"));
    EXPECT_THAT(message(logits, target.to(at::kFloat)), HasSubstr("expected int64 targets"));
    EXPECT_THAT(message(logits, target + 8), HasSubstr("expected targets from 0 to 7 or the ignore_index -100"));
    EXPECT_THAT(message(logits, target, 2), HasSubstr("expected label_smoothing in [0, 1], got 2"));
  });
}

}  // namespace
}  // namespace bellows::parallel::testing::tensor
