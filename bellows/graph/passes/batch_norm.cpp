#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/rsqrt.h>

#include <algorithm>

#include "bellows/graph/passes/known_values.h"
#include "bellows/graph/passes/passes.h"
#include "bellows/graph/program/constant_store.h"

namespace bellows::graph::detail {
namespace {

/// The arguments of a linear or convolution that are its weight and bias, and the weight's dim of the outputs.
struct Product {
  int weight = -1, bias = -1;
  int64_t dim = 0;
};

std::optional<Product> product_of(const Instruction& one) {
  if (calls(one, "aten::linear") || calls(one, "aten::conv1d") || calls(one, "aten::conv2d") ||
      calls(one, "aten::conv3d"))
    return Product{1, 2, 0};
  if (calls(one, "aten::convolution") && !one.arguments[6].constant.toBool()) return Product{1, 2, 0};
  const auto is_one = [&](int argument) {
    const auto& number = one.arguments[argument];
    return number.number < 0 && number.constant.isInt() && number.constant.toInt() == 1;
  };
  if (calls(one, "aten::addmm") && is_one(3) && is_one(4)) return Product{2, 0, 1};
  return std::nullopt;
}

class BatchNormFolder {
 public:
  explicit BatchNormFolder(Program& program) : program_(program), known_(program) {}

  int64_t run() {
    if (!known_.any()) return 0;
    std::vector<bool> gone(program_.instructions.size(), false);
    int64_t fired = 0;
    for (size_t i = 0; i < gone.size(); ++i) {
      const Instruction& one = program_.instructions[i];
      gone[i] = calls(one, "aten::_native_batch_norm_legit_no_training") && fold(static_cast<int>(i));
      fired += gone[i];
    }
    erase_instructions(program_, gone);
    return fired;
  }

 private:
  /// Returns: an operand; undefined for an omitted argument
  const Operand& operand(const Instruction& one, int argument) const {
    static const Operand none;
    const auto& operands = one.arguments[argument].operands;
    return operands.empty() ? none : operands[0];
  }

  bool known_or_none(const Operand& one) const { return one.value == no_value || known_.contains(one); }

  bool fold(int at) {
    const Uses uses(program_);
    const Instruction& norm = program_.instructions[at];
    const Operand& input = operand(norm, 0);
    const int maker = uses.maker[input.value];
    if (maker < 0 || !uses.read_only_by(input.value, at)) return false;
    Instruction& product = program_.instructions[maker];
    const auto where = product_of(product);
    if (!where || product.results.size() != 1 || !product.updates.empty()) return false;
    const Operand& made = product.results[0].operands[0];
    const Operand& result = norm.results[0].operands[0];
    if (!same_places(made.geometry, input.geometry) || !same_places(made.geometry, result.geometry)) return false;
    if (!known_.contains(operand(product, where->weight)) || !known_or_none(operand(product, where->bias)))
      return false;
    for (int i = 1; i < 5; ++i) {
      if (!known_or_none(operand(norm, i))) return false;
    }
    if (operand(norm, 3).value == no_value || operand(norm, 4).value == no_value || is_read(uses, norm)) return false;
    if (!replace_value(program_, uses, result.value, input.value)) return false;
    put_weights(product, *where, norm);
    return true;
  }

  /// True if another instruction reads the other results, which are empty.
  bool is_read(const Uses& uses, const Instruction& norm) const {
    for (size_t i = 1; i < norm.results.size(); ++i) {
      const ValueId value = norm.results[i].operands[0].value;
      if (value != no_value && (!uses.readers[value].empty() || uses.outputs[value])) return true;
    }
    return false;
  }

  /// Params: from – weight and bias of the product; weight, bias, mean and variance of the norm
  static std::vector<at::Tensor> folded_weights(const std::vector<at::Tensor>& from, int64_t dim, double eps) {
    const at::Tensor& w = from[0];
    at::Tensor scale = at::rsqrt(from[5] + eps);
    if (from[2].defined()) scale = scale * from[2];
    std::vector<int64_t> along(w.dim(), 1);
    along[dim] = w.size(dim);
    const at::Tensor scaled = at::empty_strided(w.sizes(), w.strides(), w.options());
    scaled.copy_(w * scale.view(along));
    at::Tensor bias = (from[1].defined() ? from[1] - from[4] : -from[4]) * scale;
    if (from[3].defined()) bias = bias + from[3];
    return {scaled, bias.to(w.scalar_type()).contiguous()};
  }

  void put_weights(Instruction& product, const Product& where, const Instruction& norm) {
    const c10::InferenceMode plain(false);
    const at::NoGradGuard no_grad;
    Operand& weight = product.arguments[where.weight].operands[0];
    const std::vector<at::Tensor> from = {known_[weight],           known_[operand(product, where.bias)],
                                          known_[operand(norm, 1)], known_[operand(norm, 2)],
                                          known_[operand(norm, 3)], known_[operand(norm, 4)]};
    const double eps = norm.arguments[6].constant.toDouble();
    Geometry of_weight = Geometry::of(from[0]), of_bias = of_weight;
    of_weight.offset = 0;
    of_bias.sizes = {from[0].size(where.dim)};
    of_bias.strides = {1};
    of_bias.offset = 0;
    const Geometry made[] = {of_weight, of_bias};
    const std::string what = c10::str("batch norm ", where.dim, " ", c10::IValue(eps));
    const auto folded = stored_or_computed(what, from, made, [&] { return folded_weights(from, where.dim, eps); });
    const auto keys = weight.geometry.keys;
    weight = known_.add(folded[0], keys);
    product.arguments[where.bias] = {.kind = OperatorFacts::Kind::tensor, .operands = {known_.add(folded[1], keys)}};
  }

  Program& program_;
  KnownValues known_;
};

/// Replaces a batch norm that writes nothing by the operator that declares this.
bool say_evaluation(Program& program, Instruction& norm, const OperatorFacts& op) {
  const bool composite = calls(norm, "aten::batch_norm");  // composite in inference mode
  if (!(composite || calls(norm, "aten::native_batch_norm")) || norm.arguments[5].constant.toBool()) return false;
  for (const int statistics : {3, 4}) {
    const auto& operands = norm.arguments[statistics].operands;
    if (operands.empty() || operands[0].value == no_value) return false;
  }
  for (const auto& update : norm.updates) {
    for (Instruction& one : program.instructions) {
      for_each_operand(one, [&](Operand& operand) {
        if (operand.value == update.after) operand.value = update.before;
      });
      for (auto& each : one.updates) {
        if (each.before == update.after) each.before = update.before;
      }
    }
    for (auto& output : program.outputs) {
      if (output.value == update.after) output.value = update.before;
    }
  }
  norm.updates.clear();
  norm.arguments.erase(norm.arguments.begin() + 5);
  norm.arguments.resize(op.arguments.size());
  norm.results.resize(op.results, {.operands = {Operand{}}});  // nothing reads results that a composite does not return
  norm.op = &op;
  return true;
}

}  // namespace

int64_t say_evaluations(Program& program, const PassOptions&) {
  const OperatorFacts* const op = operator_named("aten::_native_batch_norm_legit_no_training");
  int64_t fired = 0;
  for (Instruction& one : program.instructions) fired += op && say_evaluation(program, one, *op);
  return fired;
}

int64_t fold_batch_norm(Program& program, const PassOptions&) {
  return BatchNormFolder(program).run();
}

}  // namespace bellows::graph::detail
