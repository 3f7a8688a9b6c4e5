#include "bellows/quant/training/batch_norm_freeze.h"

#include <span>

#include "bellows/quant/layer_table.h"
#include "bellows/tap/argument_tap.h"

namespace bellows::quant {

namespace {

/// Turns training batch norms of a model into evaluating ones.
class BatchNormTap : public tap::ArgumentTap {
 public:
  explicit BatchNormTap(const Model& model) : buffers_(model.named_buffers()) {}

  void call(const tap::OpRef& op, std::span<c10::IValue> arguments) override {
    if (op.name() != "aten::batch_norm") return;
    constexpr size_t running_mean = 3, training = 5;
    if (arguments[running_mean].isTensor() && buffers_.find(arguments[running_mean].toTensor()))
      arguments[training] = false;
  }

 private:
  const TensorNames buffers_;
};

}  // namespace

BatchNormFreezeGuard::BatchNormFreezeGuard(const Model& model)
    : tap_(std::make_shared<tap::ArgumentTapGuard>(std::make_shared<BatchNormTap>(model))) {}

BatchNormFreezeGuard::~BatchNormFreezeGuard() = default;

}  // namespace bellows::quant
