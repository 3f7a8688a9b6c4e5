#include "bellows/export/onnx/call.h"

#include <utility>

namespace bellows::onnx_export {

std::string Call::tensor(size_t index) {
  return translation_.read(operand(index));
}

std::string Call::tensor(size_t index, c10::ScalarType dtype) {
  const VariedOperand one = operand(index);
  if (const auto scalar = translation_.scalar(one)) return translation_.number(*scalar, dtype);
  return translation_.cast(translation_.read(one), one.dtype(), dtype);
}

std::vector<std::string> Call::tensors(size_t index, c10::ScalarType dtype) {
  std::vector<std::string> result;
  for (size_t i = 0; i < list_size(index); ++i) {
    const VariedOperand one = operand(index, i);
    result.push_back(translation_.cast(translation_.read(one), one.dtype(), dtype));
  }
  return result;
}

std::string Call::number_tensor(size_t index, c10::ScalarType dtype) {
  const std::optional<Varied> whole = varied_number(index);
  return whole && !whole->constant() ? translation_.scalar_of(*whole, dtype) : constant(number(index), dtype);
}

void Call::result(size_t index, const std::string& name) {
  const VariedOperand written = result_operand(index);
  for (const auto& update : instruction().updates) {
    if (update.after == written.value()) {
      translation_.update(update.after, operand(static_cast<size_t>(instruction().op->writes.at(0))), name);
      return;
    }
  }
  translation_.write(written, name);
}

void Call::result_of_list(size_t index, const std::string& name) {
  translation_.write(result_operand(0, index), name);
}

}  // namespace bellows::onnx_export
