#include "bellows/quant/observer.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/isinf.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>

#include <limits>

#include "bellows/quant/histogram/histogram.h"
#include "bellows/quant/histogram/histogram_range.h"
#include "bellows/quant/rows.h"

namespace bellows::quant {

namespace {

constexpr const char* no_data =
    "calibration: the observer saw no values. Run the model on calibration data before the parameters are used.";

at::Tensor checked(const at::Tensor& x) {
  TORCH_CHECK_VALUE(x.defined() && x.is_floating_point(), "calibration: expected a floating-point tensor, got ",
                    x.defined() ? c10::toString(x.scalar_type()) : "an undefined tensor", ".");
  const at::Tensor values = x.detach().to(at::kFloat);
  TORCH_CHECK_VALUE(at::isfinite(values).all().item<bool>(), "calibration: the tensor of shape ", x.sizes(),
                    " contains NaN or infinite values, so it has no range. Check the calibration data and the model.");
  return values;
}

/// The smallest and largest values: of all data, or averaged over batches.
class MinMaxObserver : public Observer {
 public:
  MinMaxObserver(const Scheme& scheme, double averaging_constant) : scheme_(scheme), constant_(averaging_constant) {}

  void observe(const at::Tensor& x) override {
    if (x.numel() == 0) return;
    const at::Tensor values = checked(x);
    const std::vector<int64_t> shape = parameter_shape(values.sizes(), scheme_);
    auto [low, high] = as_rows(values, scheme_).aminmax(1);
    low = low.view(shape);
    high = high.view(shape);
    TORCH_CHECK_VALUE(!low_.defined() || low.sizes() == low_.sizes(), "calibration: expected ", low_.numel(),
                      " channels as in the first batch, got ", low.numel(), ".");
    if (constant_ > 0) {
      if (!low_.defined()) average_ = MovingRange(low.sizes(), low.device());
      average_.update(low, high, constant_);
      low_ = average_.low();
      high_ = average_.high();
    } else {
      low_ = low_.defined() ? at::minimum(low_, low) : low;
      high_ = high_.defined() ? at::maximum(high_, high) : high;
    }
  }

  Parameters parameters() const override {
    TORCH_CHECK_VALUE(low_.defined(), no_data);
    return choose_parameters(low_, high_, scheme_);
  }

 private:
  Scheme scheme_;
  double constant_;  ///< 0: no average
  MovingRange average_;
  at::Tensor low_, high_;
};

/// Methods that need the distribution of the values.
class HistogramObserver : public Observer {
 public:
  HistogramObserver(const Scheme& scheme, const ObserverOptions& options) : scheme_(scheme), options_(options) {}

  void observe(const at::Tensor& x) override { histogram_.add(checked(x)); }

  Parameters parameters() const override {
    TORCH_CHECK_VALUE(histogram_.range() > 0, no_data);
    const auto [low, high] = chosen_range();
    return choose_parameters(at::scalar_tensor(low, at::kFloat), at::scalar_tensor(high, at::kFloat), scheme_);
  }

 private:
  std::pair<double, double> chosen_range() const {
    switch (options_.method) {
      case RangeMethod::percentile:
        return histogram_.percentile_range(options_.percentile);
      case RangeMethod::mse:
        return mse_range(histogram_, scheme_);
      default:
        return entropy_range(histogram_, scheme_);
    }
  }

  Scheme scheme_;
  ObserverOptions options_;
  Histogram histogram_;
};

constexpr std::pair<RangeMethod, const char*> methods[] = {{RangeMethod::min_max, "min_max"},
                                                           {RangeMethod::moving_average, "moving_average"},
                                                           {RangeMethod::percentile, "percentile"},
                                                           {RangeMethod::mse, "mse"},
                                                           {RangeMethod::entropy, "entropy"}};

}  // namespace

MovingRange::MovingRange(at::IntArrayRef channels, c10::Device device) {
  std::vector<int64_t> shape{2};
  shape.insert(shape.end(), channels.begin(), channels.end());
  constexpr double infinity = std::numeric_limits<double>::infinity();
  bounds_ = at::full(shape, infinity, at::TensorOptions(device).dtype(at::kFloat));
  bounds_.select(0, 1).fill_(-infinity);
}

void MovingRange::update(const at::Tensor& low, const at::Tensor& high, double weight) {
  const at::Tensor batch = at::stack({low, high});
  bounds_.copy_(at::where(at::isinf(bounds_), batch, bounds_ + weight * (batch - bounds_)));
}

std::unique_ptr<Observer> make_observer(const Scheme& scheme, const ObserverOptions& options) {
  scheme.check();
  TORCH_CHECK_VALUE(scheme.granularity == Granularity::tensor || scheme.granularity == Granularity::channel,
                    "calibration: expected a scheme per tensor or per channel, got ", scheme.to_text(),
                    ". Scales of tokens and groups are chosen when the values are known; use quantize(x, scheme).");
  const bool averages = options.method == RangeMethod::moving_average;
  TORCH_CHECK_VALUE(!averages || (options.averaging_constant > 0 && options.averaging_constant <= 1),
                    "calibration: expected an averaging_constant in (0, 1], got ", options.averaging_constant, ".");
  if (averages || options.method == RangeMethod::min_max)
    return std::make_unique<MinMaxObserver>(scheme, averages ? options.averaging_constant : 0);
  TORCH_CHECK_VALUE(options.percentile > 0 && options.percentile <= 1,
                    "calibration: expected a percentile in (0, 1], got ", options.percentile, ".");
  TORCH_CHECK_VALUE(scheme.granularity == Granularity::tensor, "calibration: the method ", name_of(options.method),
                    " needs one range for the tensor, got ", scheme.to_text(), ". Use min_max or moving_average.");
  return std::make_unique<HistogramObserver>(scheme, options);
}

const char* name_of(RangeMethod method) {
  for (const auto& [value, name] : methods) {
    if (value == method) return name;
  }
  return "";
}

RangeMethod range_method(const std::string& name) {
  for (const auto& [value, known] : methods) {
    if (name == known) return value;
  }
  TORCH_CHECK_VALUE(false, "calibration: there is no method '", name,
                    "'. Expected min_max, moving_average, percentile, mse or entropy.");
}

}  // namespace bellows::quant
