#include "bellows/compile/flash_attention.h"

#include <vector>

#include "bellows/compile/attention_heads.h"
#include "bellows/graph/program/program_edit.h"
#include "bellows/kernels/attention.h"

namespace bellows::compile_detail {
namespace {

using graph::Geometry;
using graph::Instruction;
using graph::Operand;
using graph::detail::operand_of;

constexpr int64_t most_keys = 512, widest_head = 256;

enum Argument : size_t { query, key, value, dropout, is_causal, mask, scale };

class FlashAttention final : public graph::Kernel {
 public:
  explicit FlashAttention(const Instruction& one)
      : query_(operand_of(one, query).geometry),
        key_(operand_of(one, key).geometry),
        value_(operand_of(one, value).geometry),
        result_(one.results[0].operands[0].geometry),
        scale_(logit_factor(one.arguments[scale].constant, query_.sizes[3])) {}

  std::string name() const override { return "attention"; }

  void run(std::span<void* const> operands, std::span<void* const> results, std::span<const c10::IValue>,
           void*) const override {
    kernels::Attention of{.batch = query_.sizes[0] * query_.sizes[1],
                          .rows = query_.sizes[2],
                          .columns = key_.sizes[2],
                          .width = query_.sizes[3],
                          .value_width = value_.sizes[3],
                          .query = heads_of<const float>(query_, operands[0]),
                          .key = heads_of<const float>(key_, operands[1]),
                          .value = heads_of<const float>(value_, operands[2]),
                          .scale = static_cast<float>(scale_)};
    std::swap(of.key.row, of.key.column);
    kernels::attention_forward({.of = of, .placed = heads_of<float>(result_, results[0])});
  }

 private:
  Geometry query_, key_, value_, result_;
  double scale_;
};

bool is_supported(const Instruction& one, const std::vector<bool>& read) {
  if (!one.op || one.kernel || one.op->name != "aten::_scaled_dot_product_flash_attention_for_cpu" ||
      !one.updates.empty() || one.results.size() != 2 || one.results[0].list || one.results[1].list)
    return false;
  for (const auto& argument : one.arguments) {
    if (argument.number >= 0) return false;
  }
  const Operand &result = one.results[0].operands[0], &sums = one.results[1].operands[0];
  const Geometry &q = operand_of(one, query).geometry, &k = operand_of(one, key).geometry,
                 &v = operand_of(one, value).geometry;
  const auto& masks = one.arguments[mask].operands;
  const bool plain = has_fp32_heads(operand_of(one, query)) && has_fp32_heads(operand_of(one, key)) &&
                     has_fp32_heads(operand_of(one, value)) && has_fp32_heads(result);
  return plain && (sums.value < 0 || !read[sums.value]) && (masks.empty() || masks[0].value < 0) &&
         one.arguments[dropout].constant.toDouble() == 0 && !one.arguments[is_causal].constant.toBool() &&
         q.sizes[0] == k.sizes[0] && q.sizes[1] == k.sizes[1] && q.sizes[3] == k.sizes[3] && k.sizes == v.sizes &&
         q.sizes[0] * q.sizes[1] * q.sizes[2] > 0 && k.sizes[2] > 0 && k.sizes[2] <= most_keys &&
         q.sizes[3] <= widest_head;
}

/// For each value, whether an instruction or the caller reads it.
std::vector<bool> read_values(const graph::Program& program) {
  std::vector<bool> read(program.values.size());
  for (const auto& output : program.outputs) read[output.value] = true;
  for (const Instruction& one : program.instructions) {
    for (const auto& argument : one.arguments) {
      for (const Operand& operand : argument.operands) {
        if (operand.value >= 0) read[operand.value] = true;
      }
    }
    for (const auto& update : one.updates) read[update.before] = true;
  }
  return read;
}

}  // namespace

int64_t replace_flash_attention(graph::Program& program) {
  const std::vector<bool> read = read_values(program);
  int64_t replaced = 0;
  for (Instruction& one : program.instructions) {
    if (!is_supported(one, read)) continue;
    one = graph::detail::kernel_instruction(one, std::make_shared<FlashAttention>(one), "attention",
                                            {operand_of(one, query), operand_of(one, key), operand_of(one, value)},
                                            {one.results[0].operands[0]});
    ++replaced;
  }
  return replaced;
}

}  // namespace bellows::compile_detail
