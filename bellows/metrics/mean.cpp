#include "bellows/metrics/mean.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <c10/util/Exception.h>

namespace bellows::metrics {

namespace {

class WeightedSum : public Totals {
 public:
  WeightedSum() : Totals("Mean", "weighted sum", {{"sum", {}, at::kDouble}, {"weight", {}, at::kDouble}}) {}

  using Totals::update;
  void update(const at::Tensor& value, double weight) {
    with_batch(value, {}, [&] {
      total(0).add_(value.dim() == 0 ? value : value.sum(at::kDouble), weight);
      total(1).add_(static_cast<double>(value.numel()) * weight);
    });
  }

  at::Tensor mean() const { return read(0) / read(1); }
  std::unique_ptr<Accumulator> clone() const override { return std::make_unique<WeightedSum>(*this); }

 protected:
  void add(const at::Tensor& value, const at::Tensor& weight) override {
    if (!weight.defined()) return update(value, 1);
    const at::Tensor weights = weight.to(at::kDouble).expand(value.sizes());
    total(0).add_((weights * value).sum());
    total(1).add_(weights.sum());
  }
};

}  // namespace

Mean::Mean() : Metric(std::make_unique<WeightedSum>(), [](const WeightedSum& sums) { return sums.mean(); }) {}

void Mean::update(const at::Tensor& value, double weight) {
  static_cast<WeightedSum&>(seen()).update(value, weight);
}

void Mean::update(double value, double weight) {
  update(at::full({}, value, at::TensorOptions(at::kDouble).device(seen().device())), weight);
}

}  // namespace bellows::metrics
