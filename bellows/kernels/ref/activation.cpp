// Activations and their derivatives, written as the formulas, in double.
#include "bellows/kernels/activation.h"

#include "bellows/kernels/activation_formula.h"
#include "bellows/kernels/ref/values.h"

namespace bellows::kernels::ref {

namespace {

ActivationPoint<double> point_at(Activation activation, double x) {
  switch (activation) {
    case Activation::gelu:
      return activation_at<Activation::gelu>(x);
    case Activation::gelu_tanh:
      return activation_at<Activation::gelu_tanh>(x);
    default:
      return activation_at<Activation::swiglu>(x);
  }
}

}  // namespace

void activation_forward(const ActivationForward& args) {
  for (int64_t i = 0; i < args.count; ++i) {
    const double y = point_at(args.activation, value_at(args.x, args.dtype, i)).value;
    const bool gated = args.activation == Activation::swiglu;
    set_value_at(args.y, args.dtype, i, gated ? y * value_at(args.up, args.dtype, i) : y);
  }
}

void activation_backward(const ActivationBackward& args) {
  const bool gated = args.activation == Activation::swiglu;
  for (int64_t i = 0; i < args.count; ++i) {
    const double dy = value_at(args.dy, args.dtype, i), up = gated ? value_at(args.up, args.dtype, i) : 1;
    const auto [value, slope] = point_at(args.activation, value_at(args.x, args.dtype, i));
    if (args.y) set_value_at(args.y, args.dtype, i, value * up);
    if (gated) set_value_at(args.dup, args.dtype, i, dy * value);
    set_value_at(args.dx, args.dtype, i, dy * up * slope);
  }
}

}  // namespace bellows::kernels::ref
