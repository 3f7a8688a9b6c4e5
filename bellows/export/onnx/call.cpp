#include "bellows/export/onnx/call.h"

#include <cmath>
#include <utility>

namespace bellows::onnx_export {

namespace {

int64_t wrapped(int64_t dim, int64_t rank) {
  return dim < 0 ? dim + std::max<int64_t>(rank, 1) : dim;
}

}  // namespace

const graph::Instruction::Argument& Call::argument(size_t index, size_t recording) const {
  return translation_.recordings().calls[recording].program.instructions[instruction_].arguments.at(index);
}

const std::string& Call::name() const {
  return translation_.recordings().calls[0].program.instructions[instruction_].op->name;
}

bool Call::has(size_t index) const {
  const auto& one = argument(index);
  if (one.is_tensors()) return !one.operands.empty() && one.operands[0].value >= 0;
  return !one.constant.isNone();
}

VariedOperand Call::operand(size_t index, size_t position) const {
  VariedOperand result;
  for (size_t i = 0; i < translation_.count(); ++i)
    result.operands.push_back(&argument(index, i).operands.at(position));
  return result;
}

size_t Call::list_size(size_t index) const {
  return argument(index).operands.size();
}

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

int64_t Call::fixed_size(size_t index, int64_t dim) const {
  const VariedSizes all = sizes(index);
  const Varied& one = all.at(wrapped(dim, static_cast<int64_t>(all.size())));
  if (!one.constant())
    fail("operator " + name() + " needs a fixed size of dim " + std::to_string(dim), "Do not let this axis vary.");
  return one.first();
}

Varied Call::varied(size_t index) const {
  Varied result;
  for (size_t i = 0; i < translation_.count(); ++i) {
    const c10::IValue& value = argument(index, i).constant;
    result.values.push_back(value.isInt()    ? value.toInt()
                            : value.isBool() ? value.toBool()
                                             : static_cast<int64_t>(value.toScalar().toDouble()));
  }
  return result;
}

int64_t Call::integer(size_t index) const {
  const Varied number = varied(index);
  if (!number.constant())
    fail("argument " + std::to_string(index) + " of operator " + name() + " varies with the sizes of the inputs",
         "ONNX needs a fixed number there.");
  return number.first();
}

VariedSizes Call::varied_list(size_t index) const {
  VariedSizes result;
  for (size_t i = 0; i < translation_.count(); ++i) {
    const c10::IValue& constant = argument(index, i).constant;
    const std::vector<int64_t> values =
        constant.isInt() ? std::vector<int64_t>{constant.toInt()} : constant.toIntVector();
    result.resize(values.size());
    for (size_t k = 0; k < values.size(); ++k) result[k].values.push_back(values[k]);
  }
  return result;
}

std::vector<int64_t> Call::integers(size_t index) const {
  std::vector<int64_t> result;
  for (const Varied& one : varied_list(index)) {
    if (!one.constant())
      fail("argument " + std::to_string(index) + " of operator " + name() + " varies with the sizes of the inputs",
           "ONNX needs fixed numbers there.");
    result.push_back(one.first());
  }
  return result;
}

double Call::number(size_t index) const {
  const auto value = [&](size_t recording) { return argument(index, recording).constant.toScalar().toDouble(); };
  for (size_t i = 1; i < translation_.count(); ++i) {
    if (value(i) != value(0))
      fail("argument " + std::to_string(index) + " of operator " + name() +
               ", a number, varies with the sizes of the "
               "inputs",
           "Compute it with operators on tensors, or do not let the axis vary.");
  }
  return value(0);
}

std::string Call::number_tensor(size_t index, c10::ScalarType dtype) {
  Varied whole;
  bool is_whole = true;
  for (size_t i = 0; i < translation_.count(); ++i) {
    const double value = argument(index, i).constant.toScalar().toDouble();
    is_whole = is_whole && value == std::floor(value) && std::abs(value) < 1e15;
    whole.values.push_back(is_whole ? static_cast<int64_t>(value) : 0);
  }
  return is_whole && !whole.constant() ? translation_.scalar_of(whole, dtype) : constant(number(index), dtype);
}

bool Call::flag(size_t index) const {
  return argument(index).constant.isBool() && argument(index).constant.toBool();
}

std::string Call::text(size_t index) const {
  return argument(index).constant.toStringRef();
}

int64_t Call::dim(size_t index, int64_t rank) const {
  return wrapped(integer(index), rank);
}

std::vector<int64_t> Call::dims(size_t index, int64_t rank) const {
  std::vector<int64_t> result;
  if (has(index)) result = integers(index);
  for (int64_t& one : result) one = wrapped(one, rank);
  return result;
}

VariedOperand Call::result_operand(size_t result, size_t index) const {
  VariedOperand all;
  for (size_t i = 0; i < translation_.count(); ++i) {
    const auto& instruction = translation_.recordings().calls[i].program.instructions[instruction_];
    all.operands.push_back(&instruction.results.at(result).operands.at(index));
  }
  return all;
}

void Call::result(size_t index, const std::string& name) {
  const VariedOperand written = result_operand(index);
  const auto& instruction = translation_.recordings().calls[0].program.instructions[instruction_];
  for (const auto& update : instruction.updates) {
    if (update.after == written.value()) {
      translation_.update(update.after, operand(static_cast<size_t>(instruction.op->writes.at(0))), name);
      return;
    }
  }
  translation_.write(written, name);
}

void Call::result_of_list(size_t index, const std::string& name) {
  translation_.write(result_operand(0, index), name);
}

}  // namespace bellows::onnx_export
