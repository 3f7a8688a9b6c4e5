// Operators in general: nearly all are called as they were recorded, in their functional form.
#include <torch/csrc/jit/runtime/operator.h>

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "bellows/export/aten/translation.h"

namespace bellows::aten_export {

namespace {

using c10::FunctionSchema;
using c10::OperatorHandle;

bool is_out(const c10::Argument& argument) {
  return argument.is_out();
}

/// Returns the overloads of an operator.
std::vector<OperatorHandle> overloads_of(const std::string& name) {
  std::vector<OperatorHandle> result;
  for (const auto& one : torch::jit::getAllOperatorsFor(c10::Symbol::fromQualString(name))) {
    auto handle = c10::Dispatcher::singleton().findSchema({one->schema().name(), one->schema().overload_name()});
    if (handle && !handle->schema().is_mutable()) result.push_back(*handle);
  }
  return result;
}

bool same_type(const c10::Argument& a, const c10::Argument& b) {
  return *a.type() == *b.type();
}

/// Returns whether an operator has these arguments, except those that `skip` describes.
template <class Skip>
bool has_arguments(const FunctionSchema& candidate, const FunctionSchema& wanted, const Skip& skip) {
  size_t next = 0;
  for (const c10::Argument& one : wanted.arguments()) {
    if (is_out(one)) continue;
    if (next == candidate.arguments().size()) return false;
    if (!skip(next) && !same_type(candidate.arguments()[next], one)) return false;
    ++next;
  }
  return next == candidate.arguments().size();
}

/// Returns the operator that computes the same without writing its arguments: add.Tensor for add_.Tensor and add.out.
std::optional<OperatorHandle> pure_form(const OperatorHandle& op) {
  const FunctionSchema& schema = op.schema();
  if (!schema.is_mutable()) return op;
  std::string name = schema.name();
  if (name.ends_with('_')) name.pop_back();
  for (const OperatorHandle& candidate : overloads_of(name)) {
    if (has_arguments(candidate.schema(), schema, [](size_t) { return false; })) return candidate;
  }
  return {};
}

/// Returns the overload that takes a number for one of the tensors: mul.Scalar for mul.Tensor.
std::optional<OperatorHandle> with_number(const OperatorHandle& op, size_t argument) {
  for (const OperatorHandle& candidate : overloads_of(op.schema().name())) {
    const auto& formal = candidate.schema().arguments();
    if (argument < formal.size() && formal[argument].type()->kind() == c10::TypeKind::NumberType &&
        has_arguments(candidate.schema(), op.schema(), [&](size_t i) { return i == argument; }))
      return candidate;
  }
  return {};
}

/// The plain call that replaces the operator, before its numbers find their place.
struct PlainCall {
  OperatorHandle op;
  std::vector<Argument> arguments{};
  std::vector<bool> numbers{};                  ///< whether an argument is a number instead of a tensor
  std::vector<c10::ScalarType> number_types{};  ///< dtypes of these numbers
};

bool is_number(const VariedOperand& operand) {
  return operand.defined() && operand.operands[0]->geometry.wrapped_number && operand.sizes().empty();
}

/// Numbers as tensors of no dims take part in type promotion only by their kind (integer or floating point), as numbers
/// do. Among tensors without dims, they need the dtype of the result.
c10::ScalarType type_of_number(OperatorCall& call, c10::ScalarType number) {
  const c10::ScalarType result = call.result_dtype();
  const auto floating = [](c10::ScalarType type) { return c10::isFloatingType(type) || c10::isComplexType(type); };
  const auto& arguments = call.instruction().arguments;
  for (size_t i = 0; i < arguments.size(); ++i) {
    for (size_t k = 0; k < arguments[i].operands.size(); ++k) {
      const VariedOperand one = call.operand(i, k);
      if (one.defined() && !one.sizes().empty() && (floating(one.dtype()) || !floating(number))) return number;
    }
  }
  return floating(number) == floating(result) ? result : number;
}

/// Gives numbers instead of tensors a form that all formats have.
void place_numbers(OperatorCall& call, PlainCall& plain) {
  const auto count = std::count(plain.numbers.begin(), plain.numbers.end(), true);
  if (count == 0) return;
  const auto first =
      static_cast<size_t>(std::find(plain.numbers.begin(), plain.numbers.end(), true) - plain.numbers.begin());
  const std::string name = name_of(plain.op);
  const auto is_one = [](const Argument& argument) {
    return argument.kind == Argument::Kind::constant && argument.constant.isScalar() &&
           argument.constant.toScalar().toDouble() == 1;
  };
  if (count == 1 && first == 0 &&
      (name == "aten::mul.Tensor" || (name == "aten::add.Tensor" && is_one(plain.arguments[2])))) {
    std::swap(plain.arguments[0], plain.arguments[1]);
    plain.op = *with_number(plain.op, 1);
    return;
  }
  if (count == 1 && first == 0 && name == "aten::sub.Tensor") {
    std::swap(plain.arguments[0], plain.arguments[1]);
    plain.op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::rsub", "Scalar");
    return;
  }
  if (count == 1) {
    if (const auto op = with_number(plain.op, first)) {
      plain.op = *op;
      return;
    }
  }
  for (size_t i = 0; i < plain.numbers.size(); ++i) {
    if (plain.numbers[i])
      plain.arguments[i] =
          call.call("aten::scalar_tensor", {plain.arguments[i], type_of_number(call, plain.number_types[i])});
  }
}

/// The value of a number instead of a tensor.
Argument number_of(OperatorCall& call, const VariedOperand& operand) {
  const auto& recorded = call.translation().recorded();
  const std::optional<size_t> input = recorded.input_of(operand.value());
  if (!input) return call.translation().read(operand);
  if (recorded.is_same(*input)) {
    const at::Scalar number = recorded.recordings().calls[0].sources[*input].tensor.item();
    return c10::IValue(number);
  }
  if (const auto whole = recorded.integers(*input)) return call.translation().size(*whole);
  call.fail("a number varies with the sizes of the inputs, and it is no integer",
            "Compute it with operators on tensors, or do not let the axis vary.");
}

PlainCall plain_call(OperatorCall& call, const OperatorHandle& pure) {
  PlainCall plain{.op = pure};
  const FunctionSchema& schema = call.instruction().op->handle->schema();
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    if (is_out(schema.arguments()[i])) continue;
    const auto kind = call.instruction().arguments[i].kind;
    const bool number = kind == graph::OperatorFacts::Kind::tensor && call.has(i) && is_number(call.operand(i));
    Argument argument = number ? number_of(call, call.operand(i)) : call.argument_of(i);
    plain.numbers.push_back(number && argument.kind != Argument::Kind::tensor);
    plain.number_types.push_back(number ? call.dtype(i) : c10::ScalarType::Undefined);
    plain.arguments.push_back(std::move(argument));
  }
  return plain;
}

/// A write converts the new elements to the dtype of the tensor.
bool may_change_dtype(OperatorCall& call) {
  const auto& arguments = call.instruction().arguments;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].kind == graph::OperatorFacts::Kind::tensor && call.has(i) && !is_number(call.operand(i)) &&
        call.dtype(i) != call.result_dtype())
      return true;
  }
  static const std::set<std::string> logical{
      "aten::eq", "aten::ne",          "aten::lt",         "aten::le",          "aten::gt",
      "aten::ge", "aten::logical_and", "aten::logical_or", "aten::logical_xor", "aten::logical_not"};
  std::string name = call.instruction().op->handle->schema().name();
  if (name.ends_with('_')) name.pop_back();
  return logical.contains(name) || is_out(call.instruction().op->handle->schema().arguments().back());
}

bool is_random(const OperatorCall& call) {
  const graph::OperatorFacts& facts = *call.instruction().op;
  if (!facts.random) return false;
  if (facts.dropout_argument >= 0 && call.has(facts.dropout_argument) && call.number(facts.dropout_argument) == 0)
    return false;
  return facts.train_argument < 0 || call.flag(facts.train_argument) || !call.has(facts.train_argument);
}

void check_supported(OperatorCall& call) {
  const graph::OperatorFacts& facts = *call.instruction().op;
  if (is_random(call))
    call.fail("operator " + call.name() + " draws random numbers, which cannot be exported",
              "Call eval() before the export.");
  if (!call.name().starts_with("aten::"))
    call.fail("operator " + call.name() + " does not belong to PyTorch, so Python cannot run it",
              "Express the computation with operators of libtorch.");
  if (facts.writes.size() > 1 ||
      (facts.writes.size() == 1 &&
       call.instruction().arguments[facts.writes[0]].kind != graph::OperatorFacts::Kind::tensor) ||
      facts.changes_metadata)
    call.fail("operator " + call.name() + " writes several tensors or changes sizes in place",
              "Use the operator without the underscore.");
}

/// Calls the operator as it was recorded.
void translate_plain(OperatorCall& call) {
  check_supported(call);
  const graph::Instruction& instruction = call.instruction();
  const bool writes = !instruction.op->writes.empty();
  const auto pure = pure_form(*instruction.op->handle);
  if (!pure)
    call.fail("operator " + call.name() + " has no form that returns its result instead of writing it",
              "Use an operator that returns its result.");
  PlainCall plain = plain_call(call, *pure);
  place_numbers(call, plain);
  std::vector<int64_t> lists;
  for (size_t i = 0; i < plain.op.schema().returns().size(); ++i) {
    const bool list = plain.op.schema().returns()[i].type()->kind() == c10::TypeKind::ListType;
    lists.push_back(list && !writes ? static_cast<int64_t>(instruction.results.at(i).operands.size()) : -1);
  }
  const auto made = call.translation().builder().call_all(plain.op, std::move(plain.arguments), lists);
  if (writes) {
    const Value value = made[0][0];
    call.result(may_change_dtype(call) ? call.call("aten::_to_copy", {value, call.result_dtype()}) : value);
    return;
  }
  for (size_t i = 0; i < instruction.results.size(); ++i) {
    for (size_t k = 0; k < instruction.results[i].operands.size(); ++k) {
      if (instruction.results[i].operands[k].value >= 0)
        call.translation().write(call.result_operand(i, k), made.at(i).at(k));
    }
  }
}

const std::map<std::string, SpecialOperator>& special_table() {
  static const std::map<std::string, SpecialOperator> table = [] {
    std::map<std::string, SpecialOperator> result;
    for (const auto& part : {special_operators(), quantized_operators()}) {
      for (const SpecialOperator& one : part) result.emplace(one.name, one);
    }
    return result;
  }();
  return table;
}

}  // namespace

void translate_operator(OperatorCall& call) {
  const auto special = special_table().find(call.name());
  if (special == special_table().end())
    translate_plain(call);
  else
    special->second.translate(call);
}

Value OperatorCall::tensor(size_t index) {
  return has(index) ? translation_.read(operand(index)) : Value::none;
}

Value OperatorCall::tensor(size_t index, c10::ScalarType dtype) {
  return has(index) ? cast(tensor(index), this->dtype(index), dtype) : Value::none;
}

Argument OperatorCall::argument_of(size_t index) {
  const auto& given = argument(index);
  if (given.kind == graph::OperatorFacts::Kind::tensor) return tensor(index);
  if (given.is_tensors()) {
    std::vector<Value> values;
    for (size_t i = 0; i < given.operands.size(); ++i) values.push_back(translation_.read(operand(index, i)));
    return values;
  }
  if (given.constant.isInt()) return translation_.size(varied(index));
  if (given.constant.isIntList()) return translation_.sizes(varied_list(index));
  if (given.constant.isDouble()) {
    const auto whole = varied_number(index);
    const bool takes_numbers =
        instruction().op->handle->schema().arguments()[index].type()->kind() == c10::TypeKind::NumberType;
    if (whole && !whole->constant() && takes_numbers) return translation_.size(*whole);
    return number(index);
  }
  if (given.constant.isGenerator())
    fail("operator " + name() + " has a generator of random numbers, which cannot be exported",
         "Call eval() before the export.");
  return given.constant;
}

void OperatorCall::result(size_t index, Value value) {
  for (const auto& update : instruction().updates) {
    const VariedOperand region = operand(static_cast<size_t>(instruction().op->writes.at(0)));
    if (update.before == region.value()) return translation_.update(update.after, region, value);
  }
  translation_.write(result_operand(index), value);
}

}  // namespace bellows::aten_export
