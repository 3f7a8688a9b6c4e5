#include "bellows/graph/passes/functionalize.h"
#include "bellows/graph/program/program_edit.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <unordered_map>

namespace bellows::graph {
namespace {

using Kind = OperatorFacts::Kind;
using std::string_view;

/// Each of these has an in-place form with an underscore that is bit-identical if the results have one dtype.
constexpr std::array<string_view, 41> pure_operators = {
    "abs",  "add",   "addcdiv", "addcmul", "ceil",        "clamp", "clamp_max", "clamp_min", "cos",
    "copy", "div",   "erf",     "exp",     "expm1",       "fill",  "floor",     "hardtanh",  "leaky_relu",
    "lerp", "log",   "log1p",   "log2",    "masked_fill", "mul",   "neg",       "pow",       "reciprocal",
    "relu", "round", "rsqrt",   "sigmoid", "sign",        "silu",  "sin",       "sqrt",      "square",
    "sub",  "tanh",  "trunc",   "zero",    "maximum"};
/// The result has the dtype of the written tensor, whatever the other operands are.
constexpr std::array<string_view, 4> own_dtype = {"copy", "fill", "zero", "masked_fill"};

template <size_t count>
bool among(const std::array<string_view, count>& names, string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

/// "aten::add_.Tensor" in three parts.
struct OperatorName {
  explicit OperatorName(string_view name) {
    const size_t colons = name.find("::"), dot = name.find('.');
    if (colons == string_view::npos) return;
    library = name.substr(0, colons);
    base = name.substr(colons + 2, dot == string_view::npos ? dot : dot - colons - 2);
    overload = dot == string_view::npos ? "" : name.substr(dot + 1);
  }
  string_view library, base, overload;
};

/// Overload names of pow that differ between the pure and the in-place form.
constexpr std::array<std::pair<string_view, string_view>, 2> pow_overloads = {
    {{"Tensor_Scalar", "Scalar"}, {"Tensor_Tensor", "Tensor"}}};

string_view pure_overload(string_view base, string_view overload) {
  for (const auto& [pure, in_place] : pow_overloads) {
    if (base == "pow" && overload == in_place) return pure;
  }
  return overload;
}
string_view in_place_overload(string_view base, string_view overload) {
  for (const auto& [pure, in_place] : pow_overloads) {
    if (base == "pow" && overload == pure) return in_place;
  }
  return overload;
}

const OperatorFacts* find(const std::string& base, string_view overload) {
  const auto found = c10::Dispatcher::singleton().findSchema({"aten::" + base, std::string(overload)});
  return found ? &operator_facts(*found) : nullptr;
}

/// True if the result of a pure operator on these operands has the dtype of the first one.
bool keeps_dtype(const std::vector<Instruction::Argument>& arguments, string_view base) {
  if (among(own_dtype, base)) return true;
  const Geometry& own = arguments[0].operands[0].geometry;
  if (!detail::is_floating(own)) return false;
  for (size_t i = 1; i < arguments.size(); ++i) {
    if (arguments[i].constant.isComplexDouble()) return false;
    for (const Operand& operand : arguments[i].operands) {
      if (operand.value == no_value || operand.geometry.dtype == own.dtype) continue;
      const bool weaker = operand.geometry.wrapped_number || (operand.geometry.sizes.empty() && !own.sizes.empty());
      if (!weaker || c10::isComplexType(c10::typeMetaToScalarType(operand.geometry.dtype))) return false;
    }
  }
  return true;
}

/// libtorch's `mul_` by a number swaps its operands, so its kernel first rounds the number to 16 bits.
bool rounds_number_first(string_view base, string_view overload, const Operand& own) {
  return base == "mul" && overload == "Scalar" && own.geometry.dtype.itemsize() == 2;
}

/// Returns: the pure form with the same arguments, or null
const OperatorFacts* pure_form(const OperatorFacts& op, const std::vector<Instruction::Argument>& arguments) {
  const OperatorName name(op.name);
  if (name.library != "aten" || !name.base.ends_with('_')) return nullptr;
  const string_view base = name.base.substr(0, name.base.size() - 1);
  if (!among(pure_operators, base) || op.writes != std::vector<int>{0} || !keeps_dtype(arguments, base) ||
      rounds_number_first(base, name.overload, arguments[0].operands[0]))
    return nullptr;
  const OperatorFacts* const pure = find(std::string(base), pure_overload(base, name.overload));
  const bool fits = pure && pure->writes.empty() && pure->arguments == op.arguments && pure->results == 1;
  return fits ? pure : nullptr;
}

/// Returns: the operator on tensors that corresponds to one on lists. The overload names differ.
const OperatorFacts* single_form(const OperatorName& name) {
  std::string base(name.base.substr(string_view("_foreach_").size()));
  const bool in_place = base.ends_with('_');
  if (in_place) base.pop_back();
  if (!among(pure_operators, base)) return nullptr;
  const string_view given = name.overload == "ScalarList" ? "Scalar"
                            : name.overload == "List"     ? "Tensor"
                                                          : name.overload;
  const string_view none;
  const bool plain = base == "addcmul" || base == "addcdiv" || base == "maximum" || base == "copy";
  const string_view overload = plain ? none : given;
  return in_place ? find(base + "_", overload) : find(base, pure_overload(base, overload));
}

/// Picks the argument for tensor number `at`. Returns false if this is not possible.
bool pick(const Instruction::Argument& all, size_t at, Kind kind, Instruction::Argument& one) {
  one = all;
  one.kind = kind;
  if (all.is_tensors()) {
    if (all.kind != Kind::tensor && at >= all.operands.size()) return false;
    if (all.kind != Kind::tensor) one.operands = {all.operands[at]};
    return kind == Kind::tensor;
  }
  if (!all.constant.isList()) return true;
  if (all.number >= 0 || at >= all.constant.toListRef().size()) return false;
  one.constant = all.constant.toListRef()[at];
  return true;
}

/// Returns: the operator on tensor number `at` of an operator on lists; its `op` is null if there is none
Instruction single(const Instruction& all, const OperatorFacts& op, size_t at) {
  Instruction one{.op = &op, .state = all.state, .default_dtype = all.default_dtype};
  const c10::FunctionSchema& schema = op.handle->schema();
  for (size_t i = 0; i < op.arguments.size(); ++i) {
    Instruction::Argument argument;
    if (i < all.arguments.size()) {
      if (!pick(all.arguments[i], at, op.arguments[i], argument)) return {};
    } else {
      if (!schema.arguments()[i].default_value()) return {};
      argument = {.kind = op.arguments[i], .constant = *schema.arguments()[i].default_value()};
    }
    one.arguments.push_back(std::move(argument));
  }
  const Operand& own = all.arguments[0].operands[at];
  if (op.writes.empty()) {
    one.results = {{.operands = {all.results[0].operands[at]}}};
    return one;
  }
  const auto update = std::find_if(all.updates.begin(), all.updates.end(),
                                   [&](const auto& written) { return written.before == own.value; });
  if (update == all.updates.end()) return {};
  one.updates = {*update};
  one.results = {{.operands = {{.value = update->after, .geometry = own.geometry}}}};
  return one;
}

/// Operators on lists process the tensors in order, so later ones read the results of earlier ones.
void read_after_updates(std::vector<Instruction>& all) {
  std::unordered_map<ValueId, ValueId> now;
  for (Instruction& one : all) {
    for (auto& argument : one.arguments) {
      for (Operand& operand : argument.operands) {
        if (const auto found = now.find(operand.value); found != now.end()) operand.value = found->second;
      }
    }
    for (const auto& update : one.updates) now[update.before] = update.after;
  }
}

/// Returns: operators on tensors that replace one on lists; empty if this is not possible
std::vector<Instruction> singles(const Instruction& all) {
  const OperatorName name(all.op->name);
  if (!name.base.starts_with("_foreach_") || all.arguments.empty()) return {};
  const OperatorFacts* const op = single_form(name);
  const size_t count = all.arguments[0].operands.size();
  const bool pure = op && op->writes.empty() && all.results.size() == 1 && all.results[0].operands.size() == count;
  const bool in_place = op && op->writes == std::vector<int>{0} && all.updates.size() == count;
  if (!op || op->arguments.size() < all.arguments.size() || op->results != 1 || !(pure || in_place)) return {};
  std::vector<Instruction> result;
  result.reserve(count);
  for (size_t at = 0; at < count; ++at) {
    result.push_back(single(all, *op, at));
    if (!result.back().op) return {};
  }
  read_after_updates(result);
  return result;
}

/// Turns the operator into its pure form. The result shows what is written, because the operator writes all of it.
void make_pure(Instruction& one) {
  if (!one.op || one.updates.size() != 1 || one.results.size() != 1 || one.results[0].operands.size() != 1) return;
  const auto& own = one.arguments[0].operands;
  const Operand& result = one.results[0].operands[0];
  if (own.size() != 1 || own[0].value != one.updates[0].before || result.value != one.updates[0].after ||
      !(own[0].geometry == result.geometry))
    return;
  if (const OperatorFacts* const pure = pure_form(*one.op, one.arguments)) one.op = pure;
}

}  // namespace

void functionalize(Program& program) {
  std::vector<Instruction> all;
  all.reserve(program.instructions.size());
  for (Instruction& one : program.instructions) {
    auto split = one.op && !one.kernel ? singles(one) : std::vector<Instruction>();
    if (split.empty()) split.push_back(std::move(one));
    for (Instruction& part : split) {
      make_pure(part);
      all.push_back(std::move(part));
    }
  }
  program.instructions = std::move(all);
}

const OperatorFacts* in_place_of(const Instruction& one) {
  if (!one.op || one.updates.size() != 1 || one.results.size() != 1 || one.results[0].operands.size() != 1 ||
      one.arguments.empty() || one.arguments[0].operands.size() != 1)
    return nullptr;
  const Operand& own = one.arguments[0].operands[0];
  const Operand& result = one.results[0].operands[0];
  if (own.value != one.updates[0].before || result.value != one.updates[0].after || !(own.geometry == result.geometry))
    return nullptr;
  const OperatorName name(one.op->name);
  if (rounds_number_first(name.base, name.overload, own)) return nullptr;
  const OperatorFacts* const in_place = find(std::string(name.base) + "_", in_place_overload(name.base, name.overload));
  const bool fits = in_place && in_place->writes == std::vector<int>{0} && in_place->arguments == one.op->arguments;
  return fits ? in_place : nullptr;
}

const OperatorFacts* out_form_of(const Instruction& one) {
  constexpr std::array<string_view, 4> products = {"mm", "addmm", "bmm", "baddbmm"};
  if (!one.op || one.kernel || !one.updates.empty()) return nullptr;
  const OperatorName name(one.op->name);
  if (name.library != "aten" || !name.overload.empty() || !among(products, name.base)) return nullptr;
  const Geometry& made = one.results[0].operands[0].geometry;
  return made.offset == 0 && made.device.is_cpu() && made.is_contiguous() ? find(std::string(name.base), "out")
                                                                          : nullptr;
}

}  // namespace bellows::graph
