#pragma once

#include <memory>

#include "bellows/core/model.h"

namespace bellows::quant {

/// While the guard exists, batch norms of the model that are in training mode normalize with their running statistics and do
/// not update them, on this thread. Their weights and biases still learn. The last part of quantization-aware training
/// usually runs with frozen batch norms, because the quantized model uses the running statistics, too.
/// Threads: as tap::ArgumentTapGuard
/// Ref:     torch.ao.nn.intrinsic.qat.freeze_bn_stats
class BatchNormFreezeGuard {
 public:
  explicit BatchNormFreezeGuard(const Model& model);
  ~BatchNormFreezeGuard();
  BatchNormFreezeGuard(const BatchNormFreezeGuard&) = delete;
  BatchNormFreezeGuard& operator=(const BatchNormFreezeGuard&) = delete;

 private:
  std::shared_ptr<void> tap_;
};

}  // namespace bellows::quant
