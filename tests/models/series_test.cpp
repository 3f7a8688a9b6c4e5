// Series of unequal length in one batch.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <limits>

#include "bellows/core/error.h"
#include "tests/models/small_models.h"

namespace bellows::models {

namespace {

constexpr double series_nan = std::numeric_limits<double>::quiet_NaN();

/// Series of 3 values a step, filled up with NaN to the longest.
at::Tensor padded(const std::vector<at::Tensor>& series) {
  return torch::nn::utils::rnn::pad_sequence(series, /*batch_first=*/true, series_nan);
}

double largest_difference(const at::Tensor& a, const at::Tensor& b) {
  return (a - b).abs().max().item<double>() / b.abs().max().item<double>();
}

}  // namespace

// In float64: what differs is the order of the sums, which masked and plain attention do not share.
TEST(Series, FilledUpGivesWhatEachGivesAlone) {
  torch::manual_seed(0);
  const std::vector<at::Tensor> series = {torch::randn({7, 3}), torch::randn({3, 3}), torch::randn({12, 3}),
                                          torch::randn({2, 3})};
  for (const int64_t classes : {0, 4}) {
    EncoderDecoderOptions options = wide_encoder_decoder();
    options.in_features = 3;
    options.out_features = 2;
    options.num_classes = classes;
    options.start_steps = 2;
    options.dropout = 0;
    const Model model = encoder_decoder(options);
    for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
      model.module()->to(dtype);
      std::vector<at::Tensor> alone, gradients;
      for (const at::Tensor& one : series) alone.push_back(model.forward(one.to(dtype).unsqueeze(0)));
      torch::cat(alone).square().sum().backward();
      for (const at::Tensor& parameter : model.parameters()) {
        gradients.push_back(parameter.grad().clone());
        parameter.mutable_grad().reset();
      }
      const at::Tensor together = model.forward(padded(series).to(dtype));
      const double tolerance = dtype == at::kDouble ? 1e-13 : 1e-6;
      EXPECT_LT(largest_difference(together, torch::cat(alone)), tolerance) << classes;
      together.square().sum().backward();
      for (size_t i = 0; i < gradients.size(); ++i) {
        const at::Tensor parameter = model.parameters()[i];
        EXPECT_LT((parameter.grad() - gradients[i]).abs().max().item<double>(),
                  100 * tolerance * std::max(1.0, gradients[i].abs().max().item<double>()))
            << classes << ", parameter " << i;
        parameter.mutable_grad().reset();
      }
    }
  }
}

TEST(Series, OnlyWholeStepsAtTheEndArePadding) {
  torch::manual_seed(1);
  EncoderDecoderOptions options = wide_encoder_decoder();
  options.num_classes = 3;
  options.start_steps = 3;
  const Model model = encoder_decoder(options);
  model.eval();
  at::Tensor x = torch::randn({2, 6, 2});
  x[0].slice(0, 4).fill_(series_nan);
  EXPECT_TRUE(model.forward(x).isfinite().all().item<bool>());
  at::Tensor hole = x.clone();
  hole[1][2].fill_(series_nan);
  EXPECT_TRUE(model.forward(hole)[1].isnan().all().item<bool>()) << "a missing value is not made up";
  EXPECT_TRUE(model.forward(hole)[0].isfinite().all().item<bool>());
  x[0].slice(0, 2).fill_(series_nan);
  try {
    model.forward(x);
    ADD_FAILURE() << "expected an error";
  } catch (const c10::ValueError& error) {
    EXPECT_THAT(user_message(error), testing::HasSubstr("expected series of at least 3 steps, got a series of 2"));
  }
}

}  // namespace bellows::models
