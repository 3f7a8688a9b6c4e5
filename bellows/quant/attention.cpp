#include "bellows/quant/attention.h"

#include <ATen/core/dispatch/Dispatcher.h>

namespace bellows::quant {

std::optional<AttentionCall> attention_call(const tap::OpRef& op, std::span<c10::IValue> arguments) {
  static const auto handle =
      c10::Dispatcher::singleton().findSchemaOrThrow("aten::_scaled_dot_product_flash_attention_for_cpu", "");
  constexpr size_t dropout = 3, is_causal = 4, mask = 5, scale = 6;
  if (op.handle() != handle || arguments[dropout].toDouble() != 0 || arguments[is_causal].toBool() ||
      !arguments[mask].isNone())
    return {};
  AttentionCall call{
      .query = arguments[0].toTensor(), .key = arguments[1].toTensor(), .value = arguments[2].toTensor()};
  if (call.query.scalar_type() != at::kFloat || call.query.dim() != 4 || call.query.size(1) != call.key.size(1))
    return {};
  if (!arguments[scale].isNone()) call.scale = arguments[scale].toDouble();
  return call;
}

}  // namespace bellows::quant
