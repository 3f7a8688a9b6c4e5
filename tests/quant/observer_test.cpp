#include "bellows/quant/observer.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include "bellows/quant/histogram/histogram.h"
#include "tests/support/errors.h"
#include "tests/support/golden.h"

namespace bellows::quant {

namespace {

using testing::HasSubstr;

Parameters observed(const std::vector<at::Tensor>& batches, const Scheme& scheme, const ObserverOptions& options) {
  const auto observer = make_observer(scheme, options);
  for (const at::Tensor& x : batches) observer->observe(x);
  return observer->parameters();
}

double squared_error(const at::Tensor& x, const Parameters& parameters, const Scheme& scheme) {
  return (quantize(x, parameters, scheme).dequantize() - x).square().mean().item<double>();
}

/// Normal values with a few large ones.
at::Tensor heavy_tailed() {
  at::manual_seed(5);
  const at::Tensor x = torch::randn({20000});
  x.slice(0, 0, 5).mul_(40);
  return x;
}

}  // namespace

TEST(Observer, AveragesAsPyTorchDoes) {
  const Golden golden("quant/parameters.safetensors");
  std::vector<at::Tensor> batches;
  for (int i = 0; i < 5; ++i) batches.push_back(golden(c10::str("average.x", i)));
  const Parameters got = observed(batches, {}, {.method = RangeMethod::moving_average, .averaging_constant = 0.1});
  EXPECT_TRUE(got.scale.flatten().equal(golden("average.scale").flatten()));
  EXPECT_TRUE(got.zero_point.flatten().equal(golden("average.zero_point").flatten()));
}

TEST(Observer, TheRangeOfSeveralBatchesIsThatOfAllValues) {
  at::manual_seed(6);
  const at::Tensor x = torch::randn({30, 7});
  const Scheme scheme{.granularity = Granularity::channel, .axis = 1};
  const Parameters parts = observed({x.slice(0, 0, 10), x.slice(0, 10)}, scheme, {}),
                   whole = choose_parameters(x, scheme);
  EXPECT_TRUE(parts.scale.equal(whole.scale));
  EXPECT_TRUE(parts.zero_point.equal(whole.zero_point));
}

TEST(Observer, PercentilesLeaveOutliersOut) {
  const at::Tensor x = torch::arange(0, 10001, at::kFloat) / 100;  // 0 … 100
  const Parameters got = observed({x}, {}, {.method = RangeMethod::percentile, .percentile = 0.9});
  EXPECT_NEAR(got.scale.item<double>() * 255, 95, 0.1);  // the range begins at 0
}

TEST(Observer, TheMseRangeHasASmallerErrorThanTheWholeRange) {
  const at::Tensor x = heavy_tailed();
  for (const int bits : {4, 8}) {
    for (const bool symmetric : {false, true}) {
      const Scheme scheme{.bits = bits, .is_signed = true, .symmetric = symmetric};
      const double whole = squared_error(x, observed({x}, scheme, {}), scheme);
      const double chosen = squared_error(x, observed({x}, scheme, {.method = RangeMethod::mse}), scheme);
      EXPECT_LT(chosen, 0.99 * whole) << scheme.to_text();
    }
  }
}

// The search finds nearly the best of all symmetric ranges.
TEST(Observer, TheMseRangeIsTheBestOne) {
  at::manual_seed(7);
  const at::Tensor x = torch::randn({20000});
  const Scheme scheme{.bits = 4, .is_signed = true, .symmetric = true};
  double best = 1e9;
  for (int i = 1; i <= 400; ++i) {
    const at::Tensor high = at::scalar_tensor(0.0125 * i, at::kFloat);
    best = std::min(best, squared_error(x, choose_parameters(-high, high, scheme), scheme));
  }
  EXPECT_LT(squared_error(x, observed({x}, scheme, {.method = RangeMethod::mse}), scheme), 1.01 * best);
}

TEST(Observer, TheEntropyRangeLeavesRareOutliersOut) {
  const at::Tensor x = heavy_tailed();
  const Scheme scheme{.is_signed = true, .symmetric = true};
  const double whole = observed({x}, scheme, {}).scale.item<double>();
  const double chosen = observed({x}, scheme, {.method = RangeMethod::entropy}).scale.item<double>();
  EXPECT_LT(chosen, 0.5 * whole);
  EXPECT_GT(chosen * 127, 3);  // the range still holds nearly all normal values
}

// An even distribution has no outliers, so no method may cut much of it.
TEST(Observer, EvenValuesKeepTheirRange) {
  at::manual_seed(8);
  const at::Tensor x = torch::rand({50000}) * 4 - 2;
  for (const auto method : {RangeMethod::percentile, RangeMethod::mse, RangeMethod::entropy}) {
    const Parameters got = observed({x}, {.is_signed = true, .symmetric = true}, {.method = method});
    EXPECT_NEAR(got.scale.item<double>() * 127.5, 2, 0.05) << name_of(method);
  }
}

TEST(Observer, HistogramsDoNotDependOnTheOrderOfBatches) {
  at::manual_seed(9);
  const at::Tensor small = torch::randn({1000}), large = torch::randn({1000}) * 100;
  Histogram one, other;
  one.add(small);
  one.add(large);
  other.add(large);
  other.add(small);
  EXPECT_EQ(one.range(), other.range());
  double difference = 0, all = 0;
  for (size_t i = 0; i < one.counts().size(); ++i) {
    difference += std::abs(one.counts()[i] - other.counts()[i]);
    all += one.counts()[i];
  }
  EXPECT_EQ(difference, 0);
  EXPECT_EQ(all, 2000);
}

TEST(Observer, ConstantAndZeroValuesHaveParameters) {
  for (const double value : {0.0, 3.0, -2.0}) {
    for (const auto method : {RangeMethod::min_max, RangeMethod::moving_average, RangeMethod::percentile,
                              RangeMethod::mse, RangeMethod::entropy}) {
      const at::Tensor x = at::full({100}, value);
      const Scheme scheme{.is_signed = true};
      const Parameters got = observed({x}, scheme, {.method = method});
      EXPECT_TRUE(at::allclose(quantize(x, got, scheme).dequantize(), x, 5e-3, 1e-12))
          << name_of(method) << " of " << value;
    }
  }
}

TEST(Observer, RejectsBadInput) {
  const at::Tensor x = torch::randn({4, 10});
  for (const auto method : {RangeMethod::min_max, RangeMethod::mse}) {
    EXPECT_THAT(message_of([&] { observed({}, {}, {.method = method}); }), HasSubstr("saw no values"));
    EXPECT_THAT(message_of([&] { observed({at::zeros({0})}, {}, {.method = method}); }), HasSubstr("saw no values"));
    EXPECT_THAT(message_of([&] { observed({x / 0}, {}, {.method = method}); }), HasSubstr("contains NaN or infinite"));
    EXPECT_THAT(message_of([&] { observed({x.to(at::kInt)}, {}, {.method = method}); }), HasSubstr("got Int"));
  }
  EXPECT_THAT(message_of([&] {
                observed({x, x.slice(0, 1)}, weight_scheme(), {});
              }),
              HasSubstr("expected 4 channels as in the first batch, got 3"));
  EXPECT_THAT(message_of([] { make_observer(group_scheme(4, 2)); }), HasSubstr("use quantize(x, scheme)"));
  EXPECT_THAT(message_of([] { make_observer(weight_scheme(), {.method = RangeMethod::entropy}); }),
              HasSubstr("the method entropy needs one range"));
  EXPECT_THAT(message_of([] { make_observer({}, {.method = RangeMethod::percentile, .percentile = 0}); }),
              HasSubstr("percentile in (0, 1], got 0"));
  EXPECT_THAT(message_of([] { make_observer({}, {.method = RangeMethod::moving_average, .averaging_constant = 2}); }),
              HasSubstr("averaging_constant in (0, 1], got 2"));
  EXPECT_THAT(message_of([] { range_method("max"); }), HasSubstr("there is no method 'max'. Expected min_max"));
  EXPECT_EQ(range_method("entropy"), RangeMethod::entropy);
}

}  // namespace bellows::quant
