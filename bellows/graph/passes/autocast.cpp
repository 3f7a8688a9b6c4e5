#include "bellows/graph/passes/autocast.h"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <string_view>
#include <unordered_map>

#include "bellows/graph/passes/work_model.h"
#include "bellows/graph/program/program_edit.h"

namespace bellows::graph {
namespace {

/// The operands of an operator whose dtype may change. Bit i is argument or result i.
struct Change {
  uint32_t casts = 0;       ///< arguments that are passed in the new dtype
  uint32_t results = 1;     ///< results that then have it
  uint32_t decides = 0;     ///< arguments that must already have it; none: the operator always runs in it
  bool arithmetic = false;  ///< users may also apply it to gradients, which autocast leaves in fp32
  int weight = -1;     ///< if this argument is missing or not fp32, nothing changes, because statistics have its type
  int type_name = -1;  ///< argument that names the dtype of the result, unless it is None
};

constexpr uint32_t bits(std::initializer_list<int> places) {
  uint32_t made = 0;
  for (const int place : places) made |= 1U << place;
  return made;
}

constexpr Change product(uint32_t casts, uint32_t results = 1) {
  return {.casts = casts, .results = results};
}
/// Runs in the new dtype if all its inputs already have it.
constexpr Change follows(uint32_t reads) {
  return {.casts = reads, .decides = reads};
}
/// The same, but only for results of layers.
constexpr Change computes(uint32_t reads) {
  return {.casts = reads, .decides = reads, .arithmetic = true};
}
/// Runs in the dtype that the forward pass read. The gradient, its first argument, is cast to it.
constexpr Change gradient(int input, int weight = -1) {
  return {.casts = bits({0, input}), .decides = bits({input}), .weight = weight};
}
constexpr Change norm(int weight) {
  return {.casts = 1, .decides = 1, .weight = weight};
}

constexpr auto with_bias = product(bits({0, 1, 2})), layer = follows(bits({0})), unary = computes(bits({0})),
               binary = computes(bits({0, 1}));

/// Matrix multiplications and convolutions of libtorch's list that arrive below autocast and autograd, and their
/// gradients.
constexpr std::pair<std::string_view, Change> all_changes[] = {
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
    {"bellows::instance_norm", norm(1)},
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
    {"bellows::instance_norm_backward", gradient(1, 2)},
    {"aten::native_layer_norm_backward", gradient(1, 5)},
    {"aten::native_group_norm_backward", gradient(1, 4)},
    {"aten::max_pool2d_with_indices_backward", gradient(1)},
    {"aten::avg_pool2d_backward", gradient(1)},
    {"aten::_adaptive_avg_pool2d_backward", gradient(1)},
};

constexpr Change naming_type(Change change, int argument) {
  change.type_name = argument;
  return change;
}

/// Operators that autocast leaves alone, but that should not narrow values again after matmuls run in fp32.
constexpr std::pair<std::string_view, Change> all_widened[] = {
    {"aten::sum", naming_type(unary, 1)},
    {"aten::sum.dim_IntList", naming_type(unary, 3)},
    {"aten::mean", naming_type(unary, 1)},
    {"aten::mean.dim", naming_type(unary, 3)},
    {"aten::_softmax", unary},
    {"aten::_softmax_backward_data", naming_type(gradient(1), 3)},
    {"aten::native_dropout", layer},
    {"aten::native_dropout_backward", layer},
    {"aten::masked_fill.Scalar", layer},
};

using Changes = std::unordered_map<std::string_view, Change>;

const Changes& changes_when(bool widening) {
  static const auto* const lowering = new Changes(std::begin(all_changes), std::end(all_changes));
  static const auto* const all = [] {
    auto* const both = new Changes(*lowering);
    both->insert(std::begin(all_widened), std::end(all_widened));
    return both;
  }();
  return widening ? *all : *lowering;
}

bool has_type(const Operand& operand, c10::ScalarType type) {
  return operand.value != no_value && operand.geometry.device.is_cpu() &&
         operand.geometry.dtype == c10::scalarTypeToTypeMeta(type);
}

bool has(uint32_t places, size_t place) {
  return place < 32 && (places >> place & 1U);
}

/// True if the tensor has each place between the first and the last one, once.
bool is_dense(Geometry geometry) {
  geometry.offset = 0;
  return detail::covers(geometry, geometry.reach());
}

/// Floating-point operations per byte of fp32 operands from which computing takes longer than reading.
constexpr double compute_bound_from = 10;
/// Operands of this size stay in the caches between two operators.
constexpr double cached_bytes = 1 << 20;

/// Changes the dtype of operators from fp32 to a lower precision, or back.
class Rewriting {
 public:
  Rewriting(Program& program, c10::ScalarType from, c10::ScalarType to)
      : program_(program),
        from_(from),
        to_(to),
        widening_(to == c10::kFloat),
        changed_(program.values.size(), no_value),
        of_layer_(program.values.size(), false),
        missing_(program.values.size(), false),
        is_output_(program.values.size(), false) {
    for (const auto& output : program.outputs) is_output_[output.value] = true;
  }

  int64_t run() {
    if (widening_) find_factors();
    std::vector<Instruction> before = std::move(program_.instructions);
    made_.reserve(2 * before.size());
    for (Instruction& one : before) {
      if (widening_ && is_cast(one)) {
        take_cast(one);
      } else {
        rewrite(one);
      }
    }
    program_.instructions = std::move(made_);
    return fired_;
  }

 private:
  /// Finds the values that only matmuls, convolutions and attention read.
  void find_factors() {
    is_factor_.assign(program_.values.size(), true);
    for (const auto& output : program_.outputs) is_factor_[output.value] = false;
    for (const Instruction& one : program_.instructions) {
      const Change* const change = change_of(one);
      for (size_t i = 0; i < one.arguments.size(); ++i) {
        for (const Operand& operand : one.arguments[i].operands) {
          if (operand.value != no_value && !(change && !change->decides && has(change->casts, i)))
            is_factor_[operand.value] = false;
        }
      }
      for (const auto& update : one.updates) is_factor_[update.before] = is_factor_[update.after] = false;
    }
  }

  void rewrite(Instruction& one) {
    const Change rule = rule_for(one);
    for (size_t i = 0; i < one.arguments.size(); ++i) {
      for (Operand& operand : one.arguments[i].operands)
        has(rule.casts, i) ? change(operand, rule, one) : restore(operand.value, one);
    }
    for (const auto& update : one.updates) {
      restore(update.before, one);
      forget_copies_of(update.before);
    }
    std::vector<ValueId> needed;
    for (size_t i = 0; i < one.results.size(); ++i) {
      if (has(rule.results, i)) change_result(one.results[i], is_of_layer(one), needed);
    }
    if (rule.type_name >= 0 && one.arguments[rule.type_name].constant.isInt())
      one.arguments[rule.type_name].constant = to_;
    fired_ += rule.casts && !rule.decides;
    made_.push_back(std::move(one));
    for (const ValueId value : needed) restore(value, made_.back());
  }

  /// Returns: the rule of an instruction, or one without casts if it keeps its dtype
  Change rule_for(const Instruction& one) const {
    constexpr Change stays{.results = 0};
    const Change* const change = change_of(one);
    return change && fits(one, *change) ? *change : stays;
  }

  const Change* change_of(const Instruction& one) const {
    if (!one.op || one.kernel) return nullptr;
    const Changes& changes = changes_when(widening_);
    const auto found = changes.find(one.op->name);
    return found == changes.end() ? nullptr : &found->second;
  }

  bool fits(const Instruction& one, const Change& rule) const {
    const auto is_weight = [](const Instruction::Argument& argument) {  // without operands: None
      return !argument.operands.empty() && has_type(argument.operands[0], c10::kFloat);
    };
    if (rule.weight >= 0 && !is_weight(one.arguments[rule.weight])) return false;
    bool all = true, any = false;
    for (size_t i = 0; i < one.arguments.size(); ++i) {
      for (const Operand& operand : one.arguments[i].operands) {
        if (operand.value == no_value || !has(rule.casts, i)) continue;
        const bool beside = rule.decides && is_beside(operand);
        all = all && (has_type(operand, from_) || beside) && !is_written(one, operand.value);
        if (beside) continue;
        if (widening_) any = any || is_changed(operand);
        if (widening_ || !has(rule.decides, i)) continue;
        all = all && is_changed(operand) && (of_layer_[operand.value] || !rule.arithmetic);
        any = true;
      }
    }
    for (size_t i = 0; i < one.results.size(); ++i) {
      for (const Operand& operand : one.results[i].operands)
        all = all && (!has(rule.results, i) || operand.value == no_value || can_change(one, operand));
    }
    if (!rule.decides) return all && (!widening_ || is_worth_widening(one, any));
    return all && any;
  }

  /// Operands that exist in fp32 already cost nothing.
  /// Params: any – there is such an operand
  bool is_worth_widening(const Instruction& one, bool any) const {
    double bytes = 0, all_bytes = 0;
    const auto bytes_of = [](const Operand& operand) {
      return sizeof(float) * static_cast<double>(c10::multiply_integers(operand.geometry.sizes));
    };
    detail::for_each_operand(one, [&](const Operand& operand) {
      all_bytes += bytes_of(operand);
      if (!is_changed(operand)) bytes += bytes_of(operand);
    });
    detail::for_each_result(one, [&](const Operand& operand) {
      all_bytes += bytes_of(operand);
      bytes += bytes_of(operand);
    });
    // In fp32, batched matmuls become part of kernels for attention.
    const bool cheap = all_bytes <= cached_bytes || one.op->name == "aten::bmm" || one.op->name == "aten::baddbmm";
    return flops_of(one) >= compute_bound_from * bytes || (any && cheap);
  }

  /// 0-dimensional tensors do not determine the dtype of a result.
  static bool is_beside(const Operand& operand) { return operand.geometry.sizes.empty(); }
  /// True if the value exists in the new dtype: if autocast lowers, only if it was computed in it, not cast to it.
  bool is_changed(const Operand& operand) const {
    return has_type(operand, from_) && is_known(operand.value) && changed_[operand.value] != no_value;
  }
  bool is_known(ValueId value) const { return value < static_cast<ValueId>(changed_.size()); }

  static bool is_written(const Instruction& one, ValueId value) {
    return std::any_of(one.updates.begin(), one.updates.end(),
                       [&](const auto& update) { return update.before == value || update.after == value; });
  }

  /// True if the result fills a buffer of its own.
  bool can_change(const Instruction& one, const Operand& result) const {
    bool own = has_type(result, from_) && !is_written(one, result.value) && is_whole(result);
    detail::for_each_operand(one, [&](const Operand& operand) { own = own && operand.value != result.value; });
    return own;
  }
  bool is_whole(const Operand& operand) const {
    return detail::covers(operand.geometry, program_.values[operand.value].nbytes);
  }

  Geometry changed(Geometry geometry) const {
    geometry.dtype = c10::scalarTypeToTypeMeta(to_);
    return geometry;
  }

  /// True in a forward pass with gradients, or in inference mode. Elsewhere, a value may be the gradient of a
  /// parameter, which is fp32 under autocast. If it were unscaled, accumulated or clipped in half, it could underflow.
  bool is_of_layer(const Instruction& one) const {
    const DispatchState& dispatch_state = program_.states[one.state].dispatch_state;
    return (dispatch_state.grad && !dispatch_state.backward) || dispatch_state.inference;
  }

  void change_result(Instruction::Result& result, bool of_layer, std::vector<ValueId>& needed) {
    for (Operand& operand : result.operands) {
      if (operand.value == no_value) continue;
      const ValueId old = operand.value;
      operand.geometry = changed(operand.geometry);
      operand.value = changed_[old] = detail::add_value(program_, operand.geometry, operand.geometry.reach());
      missing_[old] = true;
      of_layer_[old] = of_layer;
      if (is_output_[old]) needed.push_back(old);
    }
  }

  /// Casts a value that was computed in the new dtype back for its first reader.
  void restore(ValueId value, const Instruction& reader) {
    if (value == no_value || !is_known(value) || !missing_[value]) return;
    missing_[value] = false;
    const Geometry old = program_.values[value].geometry;
    cast({changed_[value], changed(old)}, {value, old}, reader);
  }

  void change(Operand& operand, const Change& rule, const Instruction& reader) {
    if (!has_type(operand, from_) || (rule.decides && is_beside(operand))) return restore(operand.value, reader);
    if (is_changed(operand)) {
      operand = {changed_[operand.value], changed(operand.geometry)};
      return;
    }
    const Geometry source = source_of(operand);
    const bool dense = is_dense(source);
    Geometry target = changed(dense ? source : detail::row_major(source));
    target.offset = 0;
    const ValueId copy = cast_of({operand.value, source}, target, dense, reader);
    if (dense) {
      target = changed(operand.geometry);
      target.offset -= source.offset;
    }
    operand = {copy, target};
  }

  /// Returns: the part of the buffer to cast for an operand. It is the whole buffer, to serve other views, unless most
  ///          of it would not be needed.
  Geometry source_of(const Operand& operand) const {
    const auto& facts = program_.values[operand.value];
    size_t read = operand.geometry.dtype.itemsize();
    for (const int64_t size : operand.geometry.sizes) read *= static_cast<size_t>(size);
    const bool whole = has_type({operand.value, facts.geometry}, from_) && detail::covers(facts.geometry, facts.nbytes);
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

  static bool is_cast(const Instruction& one) {
    return one.op && !one.kernel && one.op->name == "aten::_to_copy" && one.updates.empty() &&
           one.arguments[0].operands.size() == 1 && one.results.size() == 1;
  }

  /// Keeps a cast of the recorded code. If only matmuls and the like read what it narrows, as under autocast, they read
  /// its source in fp32. All other readers see the rounded values. The values that it widens are not rounded before.
  void take_cast(Instruction& one) {
    Operand& source = one.arguments[0].operands[0];
    const Operand& result = one.results[0].operands[0];
    if (has_type(result, from_) && has_type(source, to_) && is_factor_[result.value] && is_whole(source) &&
        is_whole(result) && source.geometry.strides == result.geometry.strides) {
      changed_[result.value] = source.value;
      copies_.emplace_back(source.value, result.value);
    } else if (has_type(result, to_) && is_changed(source)) {
      source = {changed_[source.value], changed(source.geometry)};
    } else {
      restore(source.value, one);
    }
    made_.push_back(std::move(one));
  }

  /// After its source is overwritten, what was narrowed from it exists in the old dtype only.
  void forget_copies_of(ValueId source) {
    for (const auto& [from, copy] : copies_) {
      if (from == source) changed_[copy] = no_value;
    }
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
  const c10::ScalarType from_, to_;
  const bool widening_;
  std::vector<ValueId> changed_;  ///< for each value of the old dtype: the value in the new one
  std::vector<bool> of_layer_;    ///< of these: results of layers, not gradients
  std::vector<bool> missing_;     ///< exists only in the new dtype so far
  std::vector<bool> is_output_, is_factor_;
  std::vector<std::pair<ValueId, ValueId>> copies_;  ///< sources of recorded casts to the old dtype, and their results
  std::unordered_map<std::string, ValueId> casts_;
  std::vector<Instruction> made_;
  int64_t fired_ = 0;
};

void check_low(const char* pass, c10::ScalarType dtype) {
  TORCH_CHECK_VALUE(dtype == c10::kBFloat16 || dtype == c10::kHalf, pass, ": got ", dtype, ", expected bf16 or half.");
}

const char* name_of(c10::ScalarType dtype) {
  return dtype == c10::kHalf ? "half" : "bf16";
}

bool runs_under_autocast(const Program& program) {
  constexpr c10::DispatchKeySet key(c10::DispatchKey::AutocastCPU);
  return std::any_of(program.states.begin(), program.states.end(), [&](const Program::State& state) {
    return !c10::DispatchKeySet(c10::DispatchKeySet::RAW, state.dispatch_state.excluded).has_all(key);
  });
}

}  // namespace

Pass autocast_pass(c10::ScalarType dtype) {
  check_low("autocast_pass", dtype);
  return {.name = "autocast",
          .what = c10::str("runs matmuls, convolutions and the operators after them in ", name_of(dtype)),
          .tolerance = dtype == c10::kHalf ? 1e-3 : 8e-3,
          .run = [dtype](Program& program, const PassOptions&) -> int64_t {
            return runs_under_autocast(program) ? 0 : Rewriting(program, c10::kFloat, dtype).run();
          }};
}

Pass widening_pass(c10::ScalarType dtype) {
  check_low("widening_pass", dtype);
  return {
      .name = "widening",
      .what = c10::str("runs matmuls, convolutions and the operators after them in fp32 instead of ", name_of(dtype)),
      .tolerance = dtype == c10::kHalf ? 1e-3 : 8e-3,
      .run = [dtype](Program& program, const PassOptions&) -> int64_t {
        return Rewriting(program, dtype, c10::kFloat).run();
      }};
}

}  // namespace bellows::graph
