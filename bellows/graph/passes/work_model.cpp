#include "bellows/graph/passes/work_model.h"

#include <c10/util/accumulate.h>

#include <algorithm>
#include <string_view>

#include "bellows/graph/passes/pass.h"

namespace bellows::graph {
namespace {

// A core with 100 GFLOP/s and 10 GB/s. Only the ratio of the numbers matters.
constexpr double flops_per_us = 100e3, moved_bytes_per_us = 10e3, dispatch_us = 1;

double count_of(const Operand& operand) {
  return static_cast<double>(c10::multiply_integers(operand.geometry.sizes));
}

const Operand* operand_at(const Instruction& one, size_t argument) {
  if (argument >= one.arguments.size() || one.arguments[argument].operands.empty()) return nullptr;
  const Operand& operand = one.arguments[argument].operands[0];
  return operand.value == no_value ? nullptr : &operand;
}

/// Each element of the result is the sum of as many products as the factor's rows have elements.
double product_flops(const Instruction& one, size_t factor) {
  const Operand* const left = operand_at(one, factor);
  if (!left || left->geometry.sizes.empty()) return 0;
  return 2 * count_of(one.results[0].operands[0]) * static_cast<double>(left->geometry.sizes.back());
}

/// Params: image, weight – arguments; output – an operand with the sizes of the convolution's result
double convolution_flops(const Operand* image, const Operand* weight, const Operand& output, bool transposed) {
  if (!image || !weight || weight->geometry.sizes.empty()) return 0;
  const double first = std::max<double>(1, static_cast<double>(weight->geometry.sizes[0]));
  return 2 * count_of(transposed ? *image : output) * count_of(*weight) / first;
}

double attention_flops(const Instruction& one, size_t first) {
  const Operand *const query = operand_at(one, first), *const key = operand_at(one, first + 1);
  if (!query || !key || key->geometry.sizes.size() < 2) return 0;
  return 4 * count_of(*query) * static_cast<double>(key->geometry.sizes.end()[-2]);
}

bool name_has(std::string_view name, std::string_view part) {
  return name.find(part) != std::string_view::npos;
}

}  // namespace

double flops_of(const Instruction& one) {
  if (!one.op || one.results.empty() || one.results[0].operands.empty()) return 0;
  const std::string_view name = one.op->name;
  if (name == "aten::mm" || name == "aten::bmm" || name == "aten::linear" || name == "aten::matmul" ||
      name == "aten::mv" || name == "aten::dot")
    return product_flops(one, 0);
  if (name == "aten::addmm" || name == "aten::baddbmm" || name == "aten::addmv" || name == "aten::addbmm")
    return product_flops(one, 1);
  if (name == "aten::convolution_backward") {
    const Operand* const gradient = operand_at(one, 0);
    const bool transposed = one.arguments[7].constant.isBool() && one.arguments[7].constant.toBool();
    return gradient ? 2 * convolution_flops(operand_at(one, 1), operand_at(one, 2), *gradient, transposed) : 0;
  }
  if (name_has(name, "convolution") || name_has(name, "aten::conv")) {
    const bool transposed =
        name_has(name, "transpose") ||
        (name == "aten::convolution" && one.arguments[6].constant.isBool() && one.arguments[6].constant.toBool());
    return convolution_flops(operand_at(one, 0), operand_at(one, 1), one.results[0].operands[0], transposed);
  }
  if (name_has(name, "attention")) {
    const bool backward = name_has(name, "backward");
    return (backward ? 2.5 : 1) * attention_flops(one, backward ? 1 : 0);
  }
  return 0;
}

double work_of(const Instruction& one) {
  return dispatch_us + flops_of(one) / flops_per_us + static_cast<double>(bytes_moved(one)) / moved_bytes_per_us;
}

}  // namespace bellows::graph
