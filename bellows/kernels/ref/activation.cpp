// Activations and their slopes as the formulas stand, in double.
#include "bellows/kernels/activation.h"

#include <cmath>

#include "bellows/kernels/ref/values_impl.h"

namespace bellows::kernels::ref {

namespace {

struct ValueAndSlope {
  double value, slope;
};

/// Of x · sigmoid(x) for swiglu.
ValueAndSlope activation_at(Activation activation, double x) {
  if (activation == Activation::gelu) {
    const double cdf = (1 + std::erf(x / std::sqrt(2))) / 2;
    return {x * cdf, cdf + x * std::exp(-x * x / 2) / std::sqrt(2 * M_PI)};
  }
  if (activation == Activation::gelu_tanh) {
    const double k = std::sqrt(2 / M_PI), t = std::tanh(k * (x + 0.044715 * x * x * x));
    return {x * (1 + t) / 2, (1 + t) / 2 + x * (1 - t * t) * k * (1 + 3 * 0.044715 * x * x) / 2};
  }
  const double s = 1 / (1 + std::exp(-x));
  return {x * s, s * (1 + x * (1 - s))};
}

}  // namespace

void activation_forward(const ActivationForward& args) {
  for (int64_t i = 0; i < args.count; ++i) {
    const double y = activation_at(args.activation, value_at(args.x, args.dtype, i)).value;
    const bool gated = args.activation == Activation::swiglu;
    set_value_at(args.y, args.dtype, i, gated ? y * value_at(args.up, args.dtype, i) : y);
  }
}

void activation_backward(const ActivationBackward& args) {
  const bool gated = args.activation == Activation::swiglu;
  for (int64_t i = 0; i < args.count; ++i) {
    const double dy = value_at(args.dy, args.dtype, i), up = gated ? value_at(args.up, args.dtype, i) : 1;
    const auto [value, slope] = activation_at(args.activation, value_at(args.x, args.dtype, i));
    if (args.y) set_value_at(args.y, args.dtype, i, value * up);
    if (gated) set_value_at(args.dup, args.dtype, i, dy * value);
    set_value_at(args.dx, args.dtype, i, dy * up * slope);
  }
}

}  // namespace bellows::kernels::ref
