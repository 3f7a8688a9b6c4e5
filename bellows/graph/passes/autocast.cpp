#include "bellows/graph/passes/autocast.h"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <string_view>
#include <unordered_map>

#include "bellows/graph/program/program_edit.h"

namespace bellows::graph {
namespace {

/// The operands of an operator that may run in lower precision. Bit i is argument or result i.
struct Lowered {
  uint32_t casts = 0;       ///< arguments that are passed in lower precision
  uint32_t results = 1;     ///< results that then have it
  uint32_t decides = 0;     ///< arguments that must already have it; none: the operator always runs in it
  bool arithmetic = false;  ///< users may also apply it to gradients, where it must stay in fp32
  int weight = -1;  ///< if this argument is missing or not fp32, nothing changes, because statistics have its type
};

constexpr uint32_t bits(std::initializer_list<int> places) {
  uint32_t made = 0;
  for (const int place : places) made |= 1U << place;
  return made;
}

constexpr Lowered product(uint32_t casts, uint32_t results = 1) {
  return {.casts = casts, .results = results};
}
/// Runs in lower precision if all its inputs already have it.
constexpr Lowered follows(uint32_t reads) {
  return {.casts = reads, .decides = reads};
}
/// The same, but only for results of layers.
constexpr Lowered computes(uint32_t reads) {
  return {.casts = reads, .decides = reads, .arithmetic = true};
}
/// Runs in the dtype that the forward pass read. The gradient, its first argument, is cast to it.
constexpr Lowered gradient(int input, int weight = -1) {
  return {.casts = bits({0, input}), .decides = bits({input}), .weight = weight};
}
constexpr Lowered norm(int weight) {
  return {.casts = 1, .decides = 1, .weight = weight};
}

constexpr auto with_bias = product(bits({0, 1, 2})), layer = follows(bits({0})), unary = computes(bits({0})),
               binary = computes(bits({0, 1}));

/// Matrix multiplications and convolutions of libtorch's list that arrive below autocast and autograd, and their
/// gradients.
constexpr std::pair<std::string_view, Lowered> all_lowered[] = {
    {"aten::mm", product(bits({0, 1}))},
    {"aten::bmm", product(bits({0, 1}))},
    {"aten::matmul", product(bits({0, 1}))},
    {"aten::addmm", with_bias},
    {"aten::addbmm", with_bias},
    {"aten::baddbmm", with_bias},
    {"aten::linear", with_bias},
    {"aten::conv_tbc", with_bias},
    {"aten::convolution", with_bias},
    {"aten::convolution_backward", product(bits({0, 1, 2}), bits({0, 1, 2}))},
    {"aten::scaled_dot_product_attention", product(bits({0, 1, 2, 3}))},
    {"aten::_scaled_dot_product_flash_attention_for_cpu", product(bits({0, 1, 2, 5}))},
    {"aten::_scaled_dot_product_flash_attention_for_cpu_backward", product(bits({0, 1, 2, 3, 4, 8}), bits({0, 1, 2}))},
    {"aten::relu", layer},
    {"aten::gelu", layer},
    {"aten::silu", layer},
    {"aten::tanh", layer},
    {"aten::sigmoid", layer},
    {"aten::hardtanh", layer},
    {"aten::hardswish", layer},
    {"aten::hardsigmoid", layer},
    {"aten::leaky_relu", layer},
    {"aten::elu", layer},
    {"aten::clamp", unary},
    {"aten::clamp_min", unary},
    {"aten::clamp_max", unary},
    {"aten::neg", unary},
    {"aten::abs", unary},
    {"aten::clone", unary},
    {"aten::mul.Scalar", unary},
    {"aten::div.Scalar", unary},
    {"aten::add.Scalar", unary},
    {"aten::sub.Scalar", unary},
    {"aten::add.Tensor", binary},
    {"aten::sub.Tensor", binary},
    {"aten::mul.Tensor", binary},
    {"aten::div.Tensor", binary},
    {"aten::maximum", binary},
    {"aten::minimum", binary},
    {"aten::where.self", computes(bits({1, 2}))},
    {"aten::cat", unary},
    {"aten::constant_pad_nd", layer},
    {"aten::native_batch_norm", norm(1)},
    {"aten::native_layer_norm", norm(2)},
    {"aten::native_group_norm", norm(1)},
    {"aten::max_pool2d_with_indices", layer},
    {"aten::avg_pool2d", layer},
    {"aten::_adaptive_avg_pool2d", layer},
    {"aten::upsample_nearest2d", layer},
    {"aten::upsample_nearest2d_backward", layer},
    {"aten::upsample_bilinear2d", layer},
    {"aten::upsample_bilinear2d_backward", layer},
    {"aten::threshold_backward", gradient(1)},
    {"aten::gelu_backward", gradient(1)},
    {"aten::silu_backward", gradient(1)},
    {"aten::tanh_backward", gradient(1)},
    {"aten::sigmoid_backward", gradient(1)},
    {"aten::hardtanh_backward", gradient(1)},
    {"aten::hardswish_backward", gradient(1)},
    {"aten::hardsigmoid_backward", gradient(1)},
    {"aten::leaky_relu_backward", gradient(1)},
    {"aten::elu_backward", gradient(5)},
    {"aten::native_batch_norm_backward", gradient(1, 2)},
    {"aten::native_layer_norm_backward", gradient(1, 5)},
    {"aten::native_group_norm_backward", gradient(1, 4)},
    {"aten::max_pool2d_with_indices_backward", gradient(1)},
    {"aten::avg_pool2d_backward", gradient(1)},
    {"aten::_adaptive_avg_pool2d_backward", gradient(1)},
};

const std::unordered_map<std::string_view, Lowered>& lowered_by_name() {
  static const auto* const all =
      new std::unordered_map<std::string_view, Lowered>(std::begin(all_lowered), std::end(all_lowered));
  return *all;
}

bool is_fp32(const Operand& operand) {
  return operand.value != no_value && operand.geometry.device.is_cpu() &&
         operand.geometry.dtype == caffe2::TypeMeta::Make<float>();
}

bool has(uint32_t places, size_t place) {
  return place < 32 && (places >> place & 1U);
}

/// True if the tensor has each place between the first and the last one, once.
bool is_dense(Geometry geometry) {
  geometry.offset = 0;
  return detail::covers(geometry, geometry.reach());
}

class Rewriting {
 public:
  Rewriting(Program& program, c10::ScalarType dtype)
      : program_(program),
        dtype_(dtype),
        low_(program.values.size(), no_value),
        of_layer_(program.values.size(), false),
        missing_(program.values.size(), false),
        is_output_(program.values.size(), false) {
    for (const auto& output : program.outputs) is_output_[output.value] = true;
  }

  int64_t run() {
    std::vector<Instruction> before = std::move(program_.instructions);
    made_.reserve(2 * before.size());
    for (Instruction& one : before) {
      const Lowered rule = rule_for(one);
      for (size_t i = 0; i < one.arguments.size(); ++i) {
        for (Operand& operand : one.arguments[i].operands)
          has(rule.casts, i) ? lower(operand, rule, one) : widen(operand.value, one);
      }
      for (const auto& update : one.updates) widen(update.before, one);
      std::vector<ValueId> needed;
      for (size_t i = 0; i < one.results.size(); ++i) {
        if (has(rule.results, i)) lower_result(one.results[i], is_of_layer(one), needed);
      }
      fired_ += rule.casts && !rule.decides;
      made_.push_back(std::move(one));
      for (const ValueId value : needed) widen(value, made_.back());
    }
    program_.instructions = std::move(made_);
    return fired_;
  }

 private:
  /// Returns: the rule of an instruction, or one without casts if it stays in fp32
  Lowered rule_for(const Instruction& one) const {
    constexpr Lowered stays{.results = 0};
    if (!one.op || one.kernel) return stays;
    const auto found = lowered_by_name().find(one.op->name);
    return found != lowered_by_name().end() && fits(one, found->second) ? found->second : stays;
  }

  bool fits(const Instruction& one, const Lowered& rule) const {
    const auto is_weight = [](const Instruction::Argument& argument) {  // without operands: None
      return !argument.operands.empty() && is_fp32(argument.operands[0]);
    };
    if (rule.weight >= 0 && !is_weight(one.arguments[rule.weight])) return false;
    bool all = true, any = false;
    for (size_t i = 0; i < one.arguments.size(); ++i) {
      for (const Operand& operand : one.arguments[i].operands) {
        if (operand.value == no_value || !has(rule.casts, i)) continue;
        const bool beside = rule.decides && is_beside(operand);
        all = all && (is_fp32(operand) || beside) && !is_written(one, operand.value);
        if (!has(rule.decides, i) || beside) continue;
        all = all && is_low(operand) && (of_layer_[operand.value] || !rule.arithmetic);
        any = true;
      }
    }
    for (size_t i = 0; i < one.results.size(); ++i) {
      for (const Operand& operand : one.results[i].operands)
        all = all && (!has(rule.results, i) || operand.value == no_value || can_change(one, operand));
    }
    return all && (any || !rule.decides);
  }

  /// 0-dimensional tensors do not determine the dtype of a result.
  static bool is_beside(const Operand& operand) { return operand.geometry.sizes.empty(); }
  /// True if the value was computed in lower precision, not only cast to it.
  bool is_low(const Operand& operand) const {
    return is_fp32(operand) && is_known(operand.value) && low_[operand.value] != no_value;
  }
  bool is_known(ValueId value) const { return value < static_cast<ValueId>(low_.size()); }

  static bool is_written(const Instruction& one, ValueId value) {
    return std::any_of(one.updates.begin(), one.updates.end(),
                       [&](const auto& update) { return update.before == value || update.after == value; });
  }

  /// True if the result fills a buffer of its own.
  bool can_change(const Instruction& one, const Operand& result) const {
    bool own = is_fp32(result) && !is_written(one, result.value) &&
               detail::covers(result.geometry, program_.values[result.value].nbytes);
    detail::for_each_operand(one, [&](const Operand& operand) { own = own && operand.value != result.value; });
    return own;
  }

  Geometry in_low(Geometry geometry) const {
    geometry.dtype = c10::scalarTypeToTypeMeta(dtype_);
    return geometry;
  }

  /// True in a forward pass with gradients, or in inference mode. Elsewhere, a value may be the gradient of a
  /// parameter, which is fp32 under autocast. If it were unscaled, accumulated or clipped in half, it could underflow.
  bool is_of_layer(const Instruction& one) const {
    const DispatchState& dispatch_state = program_.states[one.state].dispatch_state;
    return (dispatch_state.grad && !dispatch_state.backward) || dispatch_state.inference;
  }

  void lower_result(Instruction::Result& result, bool of_layer, std::vector<ValueId>& needed) {
    for (Operand& operand : result.operands) {
      if (operand.value == no_value) continue;
      const ValueId wide = operand.value;
      operand.geometry = in_low(operand.geometry);
      operand.value = low_[wide] = detail::add_value(program_, operand.geometry, operand.geometry.reach());
      missing_[wide] = true;
      of_layer_[wide] = of_layer;
      if (is_output_[wide]) needed.push_back(wide);
    }
  }

  /// Casts a value that was computed in lower precision back to fp32 for its first reader.
  void widen(ValueId value, const Instruction& reader) {
    if (value == no_value || !missing_[value]) return;
    missing_[value] = false;
    const Geometry& wide = program_.values[value].geometry;
    cast({low_[value], in_low(wide)}, {value, wide}, reader);
  }

  void lower(Operand& operand, const Lowered& rule, const Instruction& reader) {
    if (!is_fp32(operand) || (rule.decides && is_beside(operand))) return widen(operand.value, reader);
    if (is_low(operand)) {
      operand = {low_[operand.value], in_low(operand.geometry)};
      return;
    }
    const Geometry source = source_of(operand);
    const bool dense = is_dense(source);
    Geometry target = in_low(dense ? source : detail::row_major(source));
    target.offset = 0;
    const ValueId copy = cast_of({operand.value, source}, target, dense, reader);
    if (dense) {
      target = in_low(operand.geometry);
      target.offset -= source.offset;
    }
    operand = {copy, target};
  }

  /// Returns: the part of the buffer to cast for an operand. It is the whole buffer, to serve other views, unless most
  ///          of it would not be needed.
  Geometry source_of(const Operand& operand) const {
    const auto& facts = program_.values[operand.value];
    size_t read = sizeof(float);
    for (const int64_t size : operand.geometry.sizes) read *= static_cast<size_t>(size);
    const bool whole = is_fp32({operand.value, facts.geometry}) && detail::covers(facts.geometry, facts.nbytes);
    return whole && facts.nbytes <= 4 * read ? facts.geometry : operand.geometry;
  }

  ValueId cast_of(const Operand& from, const Geometry& target, bool dense, const Instruction& reader) {
    const std::string key =
        c10::str(from.value, " ", dense ? c10::str(from.geometry.offset, " ", target.reach()) : from.geometry.text());
    const auto [known, fresh] = casts_.emplace(key, no_value);
    if (fresh) {
      known->second = detail::add_value(program_, target, target.reach());
      cast(from, {known->second, target}, reader);
    }
    return known->second;
  }

  /// Appends the cast to the program so far. It runs in the reader's state, in which autograd would cast.
  void cast(const Operand& from, const Operand& to, const Instruction& reader) {
    static const OperatorFacts* const op = detail::operator_named("aten::_to_copy");
    Instruction made{.op = op, .state = reader.state, .default_dtype = reader.default_dtype};
    made.arguments.resize(op->arguments.size());
    for (size_t i = 0; i < made.arguments.size(); ++i) made.arguments[i].kind = op->arguments[i];
    made.arguments[0].operands = {from};
    made.arguments[1].constant = to.geometry.dtype.toScalarType();
    made.arguments[5].constant = false;  // non_blocking
    made.results = {{.operands = {to}}};
    made_.push_back(std::move(made));
  }

  Program& program_;
  const c10::ScalarType dtype_;
  std::vector<ValueId> low_;    ///< for each value that was fp32: the value that replaces it
  std::vector<bool> of_layer_;  ///< of these: results of layers, not gradients
  std::vector<bool> missing_;   ///< exists only in lower precision so far
  std::vector<bool> is_output_;
  std::unordered_map<std::string, ValueId> casts_;
  std::vector<Instruction> made_;
  int64_t fired_ = 0;
};

bool runs_under_autocast(const Program& program) {
  constexpr c10::DispatchKeySet key(c10::DispatchKey::AutocastCPU);
  return std::any_of(program.states.begin(), program.states.end(), [&](const Program::State& state) {
    return !c10::DispatchKeySet(c10::DispatchKeySet::RAW, state.dispatch_state.excluded).has_all(key);
  });
}

}  // namespace

Pass autocast_pass(c10::ScalarType dtype) {
  TORCH_CHECK_VALUE(dtype == c10::kBFloat16 || dtype == c10::kHalf, "autocast_pass: got ", dtype,
                    ", expected bf16 or half.");
  return {.name = "autocast",
          .what = c10::str("runs matmuls, convolutions and the operators after them in ",
                           dtype == c10::kHalf ? "half" : "bf16"),
          .tolerance = dtype == c10::kHalf ? 1e-3 : 8e-3,
          .run = [dtype](Program& program, const PassOptions&) -> int64_t {
            return runs_under_autocast(program) ? 0 : Rewriting(program, dtype).run();
          }};
}

}  // namespace bellows::graph
