#include "bellows/optim/gradient_accumulator.h"

#include <c10/util/Exception.h>

#include "bellows/tap/gradient_tap.h"

namespace bellows::optim {

/// libtorch adds in place, in the dtype of the existing sum. It is therefore enough to convert the first gradient.
class GradientAccumulator::Sums {
 public:
  Sums(const std::vector<at::Tensor>& parameters, at::ScalarType dtype) : dtype_(dtype) {
    TORCH_CHECK_VALUE(at::isFloatingType(dtype) && c10::elementSize(dtype) > 1,
                      "GradientAccumulator: expected float32, float64, bfloat16 or float16, got ", dtype, ".");
    TORCH_CHECK_VALUE(!parameters.empty(), "GradientAccumulator: expected parameters, got none. Is the model empty?");
    taps_.reserve(parameters.size());
    for (size_t i = 0; i < parameters.size(); ++i) {
      const at::Tensor& p = parameters[i];
      TORCH_CHECK_VALUE(p.defined() && p.is_floating_point(), "GradientAccumulator: expected parameter ", i,
                        " to have a real floating-point dtype, got ",
                        p.defined() ? toString(p.scalar_type()) : "an undefined tensor", ". Leave it out.");
      if (!p.requires_grad() || p.scalar_type() == dtype) continue;
      taps_.push_back(std::make_unique<tap::GradientTap>(p, [this](const at::Tensor& arrived) { convert(arrived); }));
    }
    for (const at::Tensor& p : parameters) {
      if (p.requires_grad() && p.grad().defined()) convert(p);
    }
  }

 private:
  void convert(const at::Tensor& parameter) const {
    at::Tensor& sum = parameter.mutable_grad();
    TORCH_CHECK_VALUE(sum.layout() == at::kStrided, "GradientAccumulator: a parameter of shape ", parameter.sizes(),
                      " has a sparse gradient, which cannot be accumulated in another dtype. Leave out the parameter, "
                      "or set sparse(false) in the layer to get a dense gradient.");
    if (sum.scalar_type() != dtype_) sum = sum.to(dtype_);
  }

  const at::ScalarType dtype_;
  std::vector<std::unique_ptr<tap::GradientTap>> taps_;
};

GradientAccumulator::GradientAccumulator(const std::vector<at::Tensor>& parameters, const AccumulatorOptions& options)
    : sums_(std::make_unique<Sums>(parameters, options.dtype)) {}
GradientAccumulator::~GradientAccumulator() = default;

}  // namespace bellows::optim
