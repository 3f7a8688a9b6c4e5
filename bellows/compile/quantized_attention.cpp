#include "bellows/compile/quantized_attention.h"

#include <algorithm>

#include "bellows/compile/attention_heads.h"
#include "bellows/graph/program/program_edit.h"
#include "bellows/kernels/int8_attention.h"
#include "bellows/kernels/int8_linear.h"

namespace bellows::compile_detail {
namespace {

using graph::Geometry;
using graph::Instruction;
using graph::Operand;
using graph::detail::operand_of;

// Arguments of bellows::quantized_attention.
enum QuantizedAttentionArgument : size_t { int8_query, int8_key, int8_value, scales, logit_scale = scales + 3 };

class QuantizedAttention final : public graph::Kernel {
 public:
  explicit QuantizedAttention(const Instruction& one)
      : query_(operand_of(one, int8_query).geometry),
        key_(operand_of(one, int8_key).geometry),
        value_(operand_of(one, int8_value).geometry),
        result_(one.results[0].operands[0].geometry),
        scale_(logit_factor(one.arguments[logit_scale].constant, query_.sizes[3])) {}

  std::string name() const override { return "int8 attention"; }

  void run(std::span<void* const> operands, std::span<void* const> results, std::span<const c10::IValue>,
           void*) const override {
    const auto number = [&](size_t i) { return *static_cast<const float*>(operands[i]); };
    kernels::int8_attention({.batch = query_.sizes[0] * query_.sizes[1],
                             .rows = query_.sizes[2],
                             .columns = key_.sizes[2],
                             .width = query_.sizes[3],
                             .value_width = value_.sizes[3],
                             .query = heads_of<const float>(query_, operands[0]),
                             .key = heads_of<const float>(key_, operands[1]),
                             .value = heads_of<const float>(value_, operands[2]),
                             .query_scale = number(3),
                             .key_scale = number(4),
                             .value_scale = number(5),
                             .scale = static_cast<float>(scale_),
                             .result = heads_of<float>(result_, results[0])});
  }

 private:
  Geometry query_, key_, value_, result_;
  double scale_;
};

bool is_fast_here(const Instruction& one) {
  if (!one.op || one.kernel || one.op->name != "bellows::quantized_attention" || !one.updates.empty() ||
      std::any_of(one.arguments.begin(), one.arguments.end(),
                  [](const auto& argument) { return argument.number >= 0; }))
    return false;
  for (size_t i = scales; i < logit_scale; ++i) {
    const Geometry& seen = operand_of(one, i).geometry;
    if (!seen.sizes.empty() || seen.offset != 0) return false;
  }
  const auto heads = [&](size_t i) { return has_fp32_heads(operand_of(one, i)); };
  return heads(int8_query) && heads(int8_key) && heads(int8_value) && has_fp32_heads(one.results[0].operands[0]);
}

}  // namespace

int64_t replace_quantized_attention(graph::Program& program) {
  if (!kernels::has_fast_int8_linear()) return 0;
  int64_t replaced = 0;
  for (Instruction& one : program.instructions) {
    if (!is_fast_here(one)) continue;
    std::vector<Operand> operands;
    operands.reserve(logit_scale);
    for (size_t i = 0; i < logit_scale; ++i) operands.push_back(operand_of(one, i));
    one = graph::detail::kernel_instruction(one, std::make_shared<QuantizedAttention>(one), "attention", operands,
                                            {one.results[0].operands[0]});
    ++replaced;
  }
  return replaced;
}

}  // namespace bellows::compile_detail
