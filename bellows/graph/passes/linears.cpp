#include "bellows/graph/passes/linears.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>

#include <algorithm>
#include <map>
#include <sstream>

#include "bellows/graph/passes/known_values.h"
#include "bellows/graph/passes/passes.h"
#include "bellows/graph/program/constant_store.h"

namespace bellows::graph::detail {
namespace {

/// Converts a view of rows of `width` into a view of the same columns in rows of `wider`, from column `first` on.
/// Returns false if this is not possible.
bool widen(Geometry& seen, int64_t width, int64_t wider, int64_t first) {
  int64_t column = seen.offset % width;
  for (size_t i = 0; i < seen.sizes.size(); ++i) {
    const int64_t stride = seen.strides[i];
    if (stride % width == 0) {
      seen.strides[i] = stride / width * wider;
    } else if (stride < width) {
      column += (seen.sizes[i] - 1) * stride;
    } else {
      return false;
    }
  }
  if (column >= width) return false;
  seen.offset = seen.offset / width * wider + seen.offset % width + first;
  return true;
}

class LinearJoiner {
 public:
  explicit LinearJoiner(Program& program) : program_(program), known_(program), uses_(program) {}

  int64_t run() {
    if (!known_.any()) return 0;
    std::map<std::string, std::vector<int>> alike;
    for (size_t i = 0; i < program_.instructions.size(); ++i) {
      if (const std::string key = key_of(program_.instructions[i]); !key.empty())
        alike[key].push_back(static_cast<int>(i));
    }
    gone_.assign(program_.instructions.size(), false);
    int64_t fired = 0;
    for (const auto& each : alike) fired += each.second.size() > 1 && join(each.second);
    erase_instructions(program_, gone_);
    return fired;
  }

 private:
  /// Returns: a key that is equal for linears that can be joined; "" for other instructions, and for linears whose
  ///          weights may change
  std::string key_of(const Instruction& one) const {
    const auto where = linear_of(one);
    if (!where) return "";
    const Operand& weight = one.arguments[where->weight].operands[0];
    const Operand& result = one.results[0].operands[0];
    const bool free = uses_.is_free(result.value) && is_row_major(result.geometry) &&
                      result.geometry.sizes.size() > 1 && result.geometry.sizes.back() > 1;
    if (!free || !known_.contains(weight) || weight.geometry.sizes.size() != 2) return "";
    const bool biased = where->bias >= 0 && one.arguments[where->bias].is_tensors() &&
                        one.arguments[where->bias].operands[0].value != no_value;
    if (biased) {
      const Operand& bias = one.arguments[where->bias].operands[0];
      if (!known_.contains(bias) || bias.geometry.sizes.size() != 1 ||
          bias.geometry.sizes[0] != result.geometry.sizes.back())
        return "";
    }
    for (const int reader : uses_.readers[result.value]) {
      bool fits = true;
      for_each_operand(program_.instructions[reader], [&](const Operand& operand) {
        Geometry seen = operand.geometry;
        const int64_t width = result.geometry.sizes.back();
        fits = fits && (operand.value != result.value || widen(seen, width, width + 1, 0));
      });
      if (!fits) return "";
    }
    const Operand& input = one.arguments[where->input].operands[0];
    return c10::str(one.op->name, " ", one.state, " ", biased, " ", input.value, " ", input.geometry.text());
  }

  static at::Tensor joined_rows(const std::vector<at::Tensor>& parts) {
    Geometry made = Geometry::of(parts[0]);
    made.sizes[0] = 0;
    for (const at::Tensor& part : parts) made.sizes[0] += part.size(0);
    made.strides = row_major(made).strides;
    made.offset = 0;
    return stored_or_computed("cat", parts, {&made, 1}, [&] { return std::vector{at::cat(parts)}; })[0];
  }

  bool join(const std::vector<int>& linears) {
    const c10::InferenceMode plain(false);
    const at::NoGradGuard no_grad;
    std::vector<at::Tensor> weights, biases;
    const Linear where = *linear_of(program_.instructions[linears[0]]);
    int64_t columns = 0;
    for (const int at : linears) {
      const Instruction& one = program_.instructions[at];
      const at::Tensor weight = known_[one.arguments[where.weight].operands[0]];
      weights.push_back(where.transposed ? weight.t() : weight);
      if (where.bias >= 0 && one.arguments[where.bias].is_tensors())
        biases.push_back(known_[one.arguments[where.bias].operands[0]]);
      columns += one.results[0].operands[0].geometry.sizes.back();
    }
    Instruction& all = program_.instructions[linears[0]];
    Operand& weight = all.arguments[where.weight].operands[0];
    Operand joined = known_.add(joined_rows(weights), weight.geometry.keys);
    if (where.transposed) {
      std::swap(joined.geometry.sizes[0], joined.geometry.sizes[1]);
      std::swap(joined.geometry.strides[0], joined.geometry.strides[1]);
    }
    weight = joined;
    if (!biases.empty() && biases[0].defined()) {
      Operand& bias = all.arguments[where.bias].operands[0];
      bias = known_.add(joined_rows(biases), bias.geometry.keys);
    }
    give_results(linears, columns);
    return true;
  }

  void give_results(const std::vector<int>& linears, int64_t columns) {
    Geometry geometry = program_.instructions[linears[0]].results[0].operands[0].geometry;
    geometry.sizes.back() = columns;
    int64_t stride = 1;
    for (size_t i = geometry.sizes.size(); i-- > 0; stride *= geometry.sizes[i]) geometry.strides[i] = stride;
    const ValueId made = add_value(program_, geometry, geometry.reach());
    int64_t first = 0;
    for (const int at : linears) {
      const Operand old = program_.instructions[at].results[0].operands[0];
      const int64_t width = old.geometry.sizes.back();
      for (Instruction& one : program_.instructions)
        for_each_operand(one, [&](Operand& operand) {
          if (operand.value != old.value) return;
          operand.value = made;
          widen(operand.geometry, width, columns, first);
        });
      first += width;
      gone_[at] = at != linears[0];
    }
    program_.instructions[linears[0]].results[0].operands[0] = {.value = made, .geometry = geometry};
  }

  Program& program_;
  KnownValues known_;
  Uses uses_;
  std::vector<bool> gone_;
};

}  // namespace

int64_t join_linears(Program& program, const PassOptions&) {
  return LinearJoiner(program).run();
}

}  // namespace bellows::graph::detail

namespace bellows::graph {

std::optional<Linear> linear_of(const Instruction& one) {
  if (!detail::is_pure(one) || one.results.size() != 1) return std::nullopt;
  const auto is_one = [&](int argument) {
    const auto& number = one.arguments[argument];
    return number.number < 0 && number.constant.isInt() && number.constant.toInt() == 1;
  };
  if (one.op->name == "aten::linear") return Linear{0, 1, 2, false};
  if (one.op->name == "aten::mm") return Linear{0, 1, -1, true};
  if (one.op->name == "aten::addmm" && is_one(3) && is_one(4)) return Linear{1, 2, 0, true};
  return std::nullopt;
}

}  // namespace bellows::graph
