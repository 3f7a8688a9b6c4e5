// The program of a `.pt2` file. torch/_export/serde/schema.py describes its fields.
#include "bellows/export/aten/pt2_json_impl.h"

#include <torch/version.h>

#include <cctype>
#include <cmath>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>

namespace bellows::aten_export {

namespace {

using c10::TypeKind;
using export_detail::SizeExpression;
using export_detail::SizeFormulas;
using export_detail::Varied;

Json device_json(const c10::Device& device) {
  return {{"type", c10::DeviceTypeName(device.type(), /*lower_case=*/true)},
          {"index", device.has_index() ? Json(device.index()) : Json(nullptr)}};
}

Json float_json(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  return value;
}

/// Names of values are variables of Python.
class Names {
 public:
  std::string fresh(const std::string& wanted) {
    std::string name = wanted.empty() || std::isdigit(static_cast<unsigned char>(wanted[0])) ? "_" + wanted : wanted;
    for (char& one : name) {
      if (!std::isalnum(static_cast<unsigned char>(one))) one = '_';
    }
    std::string result = name;
    for (int i = 1; !used_.insert(result).second; ++i) result = name + "_" + std::to_string(i);
    return result;
  }

 private:
  std::set<std::string> used_;
};

class ProgramWriter {
 public:
  ProgramWriter(const AtenGraph& graph, const std::vector<ValueFacts>& facts)
      : graph_(graph), facts_(facts), formulas_(graph.symbols), names_of_(graph.values) {
    for (const ValueFacts& fact : facts) {
      for (const Varied& size : fact.sizes) formulas_.add_size(size);
    }
  }

  Pt2Program write() {
    const Json signature = add_signature();
    const Json graph{{"inputs", std::move(inputs_)},
                     {"outputs", std::move(outputs_)},
                     {"nodes", std::move(nodes_)},
                     {"tensor_values", std::move(tensors_)},
                     {"sym_int_values", std::move(integers_)},
                     {"sym_bool_values", Json::object()},
                     {"is_single_tensor_return", false},
                     {"custom_obj_values", Json::object()},
                     {"sym_float_values", Json::object()}};
    const Json root{{"fqn", ""}, {"signature", call_signature()}};
    return {.program = {{"graph_module",
                         {{"graph", graph},
                          {"signature", signature},
                          {"module_call_graph", Json::array({root})},
                          {"metadata", Json::object()},
                          {"treespec_namedtuple_fields", Json::object()}}},
                        {"opset_version", {{"aten", 10}}},
                        {"range_constraints", ranges()},
                        {"schema_version", {{"major", 8}, {"minor", 17}}},
                        {"verifiers", Json::array({"ATEN"})},
                        {"torch_version", TORCH_VERSION},
                        {"guards_code", Json::array()}},
            .constant_names = std::move(constants_)};
  }

 private:
  // Sizes. SymPy parses the texts.

  static std::string symbol_name(size_t symbol) { return "s" + std::to_string(symbol); }
  static std::string symbol_text(size_t symbol) {
    return "Symbol('" + symbol_name(symbol) + "', positive=True, integer=True)";
  }
  static std::string integer_text(int64_t value) { return "Integer(" + std::to_string(value) + ")"; }
  static std::string apply(const std::string& function, const std::vector<std::string>& arguments) {
    if (arguments.size() == 1) return arguments[0];
    std::string text = function + "(";
    for (size_t i = 0; i < arguments.size(); ++i) text += (i == 0 ? "" : ", ") + arguments[i];
    return text + ")";
  }

  static std::string text_of(const SizeExpression& one) {
    const bool product = one.form == SizeExpression::Form::product;
    std::vector<std::string> parts;
    if (one.constant != (product ? 1 : 0)) parts.push_back(integer_text(one.constant));
    for (const auto& term : one.terms)
      parts.push_back(term.factor == 1 || product
                          ? symbol_text(term.symbol)
                          : apply("Mul", {integer_text(term.factor), symbol_text(term.symbol)}));
    const std::string text = apply(product ? "Mul" : "Add", parts);
    return one.form == SizeExpression::Form::quotient ? apply("FloorDiv", {text, integer_text(one.divisor)}) : text;
  }

  static std::string text_of(const SizeFormula& formula) {
    std::vector<std::string> parts;
    if (formula.factor != 1) parts.push_back(integer_text(formula.factor));
    for (const SizeExpression& part : formula.parts) parts.push_back(text_of(part));
    return apply("Mul", parts);
  }

  Json size_json(const SizeFormula& formula) const {
    if (formula.constant()) return {{"as_int", formula.factor}};
    std::vector<int64_t> hints;
    for (const auto& symbol : graph_.symbols) hints.push_back(symbol.sizes.first());
    return {{"as_expr", {{"expr_str", text_of(formula)}, {"hint", {{"as_int", formula.value(hints)}}}}}};
  }

  /// Properties of values are descriptions only. A number without a formula becomes its first value.
  Json size_json(const Varied& number) {
    const auto formula = formulas_.of(number);
    return formula ? size_json(*formula) : Json{{"as_int", number.first()}};
  }

  Json ranges() const {
    Json result = Json::object();
    for (size_t i = 0; i < graph_.symbols.size(); ++i) result[symbol_name(i)] = {{"min_val", 1}, {"max_val", nullptr}};
    return result;
  }

  // Values.

  const std::string& name_of_value(Value value) const { return names_of_[index_of(value)]; }
  Json tensor_name(Value value) const { return {{"name", name_of_value(value)}}; }
  Json tensor_json(Value value) const { return {{"as_tensor", tensor_name(value)}}; }

  void add_meta(Value value, bool requires_grad = false) {
    const ValueFacts& fact = facts_[index_of(value)];
    Json sizes = Json::array(), strides = Json::array();
    for (const Varied& size : fact.sizes) sizes.push_back(size_json(size));
    for (const Varied& stride : fact.strides) strides.push_back(size_json(stride));
    tensors_[name_of_value(value)] = {{"dtype", pt2_number(fact.dtype)},
                                      {"sizes", std::move(sizes)},
                                      {"requires_grad", requires_grad},
                                      {"device", {{"type", "cpu"}, {"index", nullptr}}},
                                      {"strides", std::move(strides)},
                                      {"storage_offset", {{"as_int", 0}}},
                                      {"layout", 7}};
  }

  /// Adds inputs, nodes and outputs. Returns what the inputs and outputs are.
  Json add_signature() {
    Json input_specs = Json::array(), output_specs = Json::array();
    for (const NamedValue& input : graph_.inputs) names_of_[index_of(input.value)] = names_.fresh(input.name);
    add_weights(input_specs);
    for (const NamedValue& input : graph_.inputs) {
      inputs_.push_back(tensor_json(input.value));
      input_specs.push_back({{"user_input", {{"arg", tensor_json(input.value)}}}});
      add_meta(input.value);
    }
    for (const Call& call : graph_.calls) add(call);
    for (const NamedValue& output : graph_.outputs) {
      outputs_.push_back(tensor_json(output.value));
      output_specs.push_back({{"user_output", {{"arg", tensor_json(output.value)}}}});
    }
    return {{"input_specs", std::move(input_specs)}, {"output_specs", std::move(output_specs)}};
  }

  void add_weights(Json& specs) {
    const auto add = [&](Value value, const std::string& wanted, bool requires_grad) {
      names_of_[index_of(value)] = names_.fresh(wanted);
      inputs_.push_back(tensor_json(value));
      add_meta(value, requires_grad);
    };
    for (const bool parameters : {true, false}) {
      for (const Weight& weight : graph_.weights) {
        if (weight.parameter != parameters) continue;
        add(weight.value, (parameters ? "p_" : "b_") + weight.name, parameters && weight.tensor.is_floating_point());
        Json spec{{"arg", tensor_name(weight.value)}, {parameters ? "parameter_name" : "buffer_name", weight.name}};
        if (!parameters) spec["persistent"] = true;
        specs.push_back({{parameters ? "parameter" : "buffer", std::move(spec)}});
      }
    }
    for (const Weight& constant : graph_.constants) {
      constants_.push_back("lifted_tensor_" + std::to_string(constants_.size()));
      add(constant.value, "c_" + constants_.back(), false);
      specs.push_back(
          {{"tensor_constant", {{"arg", tensor_name(constant.value)}, {"tensor_constant_name", constants_.back()}}}});
    }
  }

  // Integers of the graph.

  Json integer_argument(const std::string& name) const { return {{"as_sym_int", {{"as_name", name}}}}; }

  /// Adds a node that computes an integer, or returns an equal one.
  std::string integer(const std::string& target, const std::string& base, Json inputs, const SizeFormula& value) {
    const std::string key = target + inputs.dump();
    const auto known = known_.find(key);
    if (known != known_.end()) return known->second;
    const std::string name = names_.fresh(base);
    integers_[name] = size_json(value);
    add_node(target, std::move(inputs), Json::array({integer_argument(name)}), name);
    known_.emplace(key, name);
    return name;
  }

  struct Integer {
    std::string name{};
    SizeFormula value{};
  };

  std::string symbol(size_t index) {
    const auto& [input, axis] = graph_.places[index];
    return integer("torch.ops.aten.sym_size.int", "sym_size_int",
                   Json::array({input_json("self", tensor_json(graph_.inputs[input].value)),
                                input_json("dim", {{"as_int", axis}})}),
                   formula_of({.terms = {{.symbol = index}}}));
  }

  static SizeFormula formula_of(SizeExpression one) { return {.factor = 1, .parts = {std::move(one)}}; }

  std::string arithmetic(const std::string& name, const std::string& a, Json b, const SizeFormula& value) {
    return integer("_operator." + name, name,
                   Json::array({input_json("a", integer_argument(a)), input_json("b", std::move(b))}), value);
  }

  std::string expression(const SizeExpression& one) {
    const bool product = one.form == SizeExpression::Form::product;
    SizeExpression so_far{.form = product ? one.form : SizeExpression::Form::sum, .constant = product ? 1 : 0};
    std::string result;
    for (const auto& term : one.terms) {
      std::string part = symbol(term.symbol);
      if (!product && term.factor != 1)
        part = arithmetic("mul", part, {{"as_int", term.factor}}, formula_of({.terms = {term}}));
      so_far.terms.push_back(term);
      result = result.empty() ? part
                              : arithmetic(product ? "mul" : "add", result, integer_argument(part), formula_of(so_far));
    }
    so_far.constant = one.constant;
    if (one.constant != (product ? 1 : 0))
      result = arithmetic(product ? "mul" : "add", result, {{"as_int", one.constant}}, formula_of(so_far));
    if (one.form == SizeExpression::Form::quotient)
      result = arithmetic("floordiv", result, {{"as_int", one.divisor}}, formula_of(one));
    return result;
  }

  std::string number(const SizeFormula& formula) {
    SizeFormula so_far;
    std::string result;
    for (const SizeExpression& part : formula.parts) {
      const std::string name = expression(part);
      so_far.parts.push_back(part);
      result = result.empty() ? name : arithmetic("mul", result, integer_argument(name), so_far);
    }
    return formula.factor == 1 ? result : arithmetic("mul", result, {{"as_int", formula.factor}}, formula);
  }

  // Calls.

  static Json input_json(const std::string& name, Json argument, bool keyword = false) {
    return {{"name", name}, {"arg", std::move(argument)}, {"kind", keyword ? 2 : 1}};
  }

  void add_node(const std::string& target, Json inputs, Json outputs, const std::string& name) {
    nodes_.push_back({{"target", target},
                      {"inputs", std::move(inputs)},
                      {"outputs", std::move(outputs)},
                      // All calls belong to the outermost module.
                      {"metadata", {{"nn_module_stack", "L__self__,,torch.nn.modules.module.Module"}}},
                      {"is_hop_single_tensor_return", nullptr},
                      {"name", name}});
  }

  static Json list_json(const c10::IValue& list) {
    if (list.isIntList()) return {{"as_ints", list.toIntVector()}};
    Json values = Json::array();
    const auto& elements = list.toListRef();
    for (const c10::IValue& one : elements) {
      if (one.isDouble())
        values.push_back(float_json(one.toDouble()));
      else if (one.isBool())
        values.push_back(one.toBool());
      else if (one.isInt())
        values.push_back(one.toInt());
      else
        values.push_back(one.toStringRef());
    }
    if (elements.empty()) return {{"as_ints", values}};
    return {{elements[0].isDouble() ? "as_floats"
             : elements[0].isBool() ? "as_bools"
             : elements[0].isInt()  ? "as_ints"
                                    : "as_strings",
             values}};
  }

  static Json constant_json(const c10::IValue& value, const c10::Argument& formal) {
    c10::TypePtr type = formal.real_type();
    if (const auto optional = type->cast<c10::OptionalType>()) type = optional->getElementType();
    if (value.isNone()) return {{"as_none", true}};
    if (value.isDevice()) return {{"as_device", device_json(value.toDevice())}};
    if (value.isInt() && type->kind() == TypeKind::ScalarTypeType)
      return {{"as_scalar_type", pt2_number(static_cast<c10::ScalarType>(value.toInt()))}};
    if (value.isInt() && type->kind() == TypeKind::MemoryFormatType)
      return {{"as_memory_format", pt2_number(static_cast<c10::MemoryFormat>(value.toInt()))}};
    if (value.isInt() && type->kind() == TypeKind::LayoutType) return {{"as_layout", 7}};
    if (value.isInt() && type->kind() == TypeKind::FloatType) return {{"as_float", static_cast<double>(value.toInt())}};
    if (value.isInt()) return {{"as_int", value.toInt()}};
    if (value.isBool()) return {{"as_bool", value.toBool()}};
    if (value.isDouble()) return {{"as_float", float_json(value.toDouble())}};
    if (value.isString()) return {{"as_string", value.toStringRef()}};
    TORCH_CHECK_VALUE(value.isList(), "export_pt2: an argument ", formal.name(), " of type ", value.tagKind(),
                      " cannot be written. Express the computation with other operators.");
    return list_json(value);
  }

  Json argument_json(const Argument& one, const c10::Argument& formal) {
    switch (one.kind) {
      case Argument::Kind::constant:
        return constant_json(one.constant, formal);
      case Argument::Kind::tensor:
        return tensor_json(one.values[0]);
      case Argument::Kind::size:
        return integer_argument(number(one.sizes[0]));
      case Argument::Kind::tensors: {
        const bool optional =
            formal.type()->expectRef<c10::ListType>().getElementType()->kind() == TypeKind::OptionalType;
        Json list = Json::array();
        for (const Value value : one.values) {
          if (!optional)
            list.push_back(tensor_name(value));
          else
            list.push_back(value == Value::none ? Json{{"as_none", true}} : tensor_json(value));
        }
        return {{optional ? "as_optional_tensors" : "as_tensors", std::move(list)}};
      }
      case Argument::Kind::sizes:
        break;
    }
    Json list = Json::array();
    for (const SizeFormula& formula : one.sizes) {
      if (formula.constant())
        list.push_back({{"as_int", formula.factor}});
      else
        list.push_back({{"as_name", number(formula)}});
    }
    return {{"as_sym_ints", std::move(list)}};
  }

  static bool is_default(const Argument& one, const c10::Argument& formal) {
    if (one.kind != Argument::Kind::constant || !formal.default_value()) return false;
    const c10::IValue& value = *formal.default_value();
    return value.tagKind() == one.constant.tagKind() && c10::str(value) == c10::str(one.constant);
  }

  Json inputs_of(const Call& call) {
    const auto& formal = call.op.schema().arguments();
    size_t positional = 0;  // arguments before this one are written by position
    for (size_t i = 0; i < formal.size(); ++i) {
      if (!formal[i].kwarg_only() && !is_default(call.arguments[i], formal[i])) positional = i + 1;
    }
    Json inputs = Json::array();
    for (size_t i = 0; i < formal.size(); ++i) {
      const bool keyword = formal[i].kwarg_only();
      if (keyword ? is_default(call.arguments[i], formal[i]) : i >= positional) continue;
      inputs.push_back(input_json(formal[i].name(), argument_json(call.arguments[i], formal[i]), keyword));
    }
    return inputs;
  }

  void add(const Call& call) {
    const auto& full = call.op.operator_name();
    const size_t colons = full.name.find("::");
    const std::string base = full.name.substr(colons + 2);
    Json inputs = inputs_of(call), outputs = Json::array();
    const bool single = call.results.size() == 1 && call.op.schema().returns()[0].type()->kind() != TypeKind::ListType;
    const std::string node = names_.fresh(base + "_0");
    for (size_t i = 0; i < call.results.size(); ++i) {
      Json list = Json::array();
      for (const Value value : call.results[i]) {
        names_of_[index_of(value)] = single ? node : names_.fresh(base + "_0");
        if (facts_[index_of(value)].sizes.empty() && facts_[index_of(value)].dtype == c10::ScalarType::Undefined) {
          outputs.push_back({{"as_none", true}});
          continue;
        }
        add_meta(value);
        list.push_back(tensor_name(value));
      }
      if (call.op.schema().returns()[i].type()->kind() == TypeKind::ListType)
        outputs.push_back({{"as_tensors", std::move(list)}});
      else if (!list.empty())
        outputs.push_back({{"as_tensor", list[0]}});
    }
    add_node("torch.ops." + full.name.substr(0, colons) + "." + base + "." +
                 (full.overload_name.empty() ? "default" : full.overload_name),
             std::move(inputs), std::move(outputs), node);
  }

  // How Python calls the program: a tuple of positional arguments, and a tensor or a tuple of tensors as result.

  static Json tuple_spec(size_t count) {
    Json leaf{{"type", nullptr}, {"context", nullptr}, {"children_spec", Json::array()}};
    return {{"type", "builtins.tuple"}, {"context", "null"}, {"children_spec", std::vector<Json>(count, leaf)}};
  }

  Json call_signature() const {
    const Json keywords{{"type", "builtins.dict"}, {"context", "[]"}, {"children_spec", Json::array()}};
    const Json in{{"type", "builtins.tuple"},
                  {"context", "null"},
                  {"children_spec", Json::array({tuple_spec(graph_.inputs.size()), keywords})}};
    const Json out = graph_.outputs.size() == 1 ? tuple_spec(1)["children_spec"][0] : tuple_spec(graph_.outputs.size());
    Json names = Json::array();
    for (const NamedValue& input : graph_.inputs) names.push_back(input.name);
    return {{"inputs", Json::array()},
            {"outputs", Json::array()},
            {"in_spec", Json::array({1, in}).dump()},
            {"out_spec", Json::array({1, out}).dump()},
            {"forward_arg_names", std::move(names)}};
  }

  const AtenGraph& graph_;
  const std::vector<ValueFacts>& facts_;
  SizeFormulas formulas_;
  Names names_;
  std::vector<std::string> names_of_;  ///< of values
  std::vector<std::string> constants_;
  std::unordered_map<std::string, std::string> known_;
  Json inputs_ = Json::array(), outputs_ = Json::array(), nodes_ = Json::array();
  Json tensors_ = Json::object(), integers_ = Json::object();
};

}  // namespace

int pt2_number(c10::ScalarType dtype) {
  switch (dtype) {
    case c10::kBFloat16:
      return 13;
    case c10::kUInt16:
      return 28;
    case c10::kFloat8_e4m3fn:
      return 29;
    case c10::kFloat8_e5m2:
      return 30;
    default:
      break;
  }
  const int number = static_cast<int>(dtype);  // uint8 to bool have the order of c10
  TORCH_CHECK_VALUE(number <= static_cast<int>(c10::kBool), "export_pt2: .pt2 files have no tensors of dtype ", dtype,
                    ". Convert the tensor to another dtype.");
  return number + 1;
}

int pt2_number(c10::MemoryFormat format) {
  switch (format) {
    case c10::MemoryFormat::ChannelsLast:
      return 2;
    case c10::MemoryFormat::ChannelsLast3d:
      return 3;
    case c10::MemoryFormat::Preserve:
      return 4;
    default:
      return 1;
  }
}

Pt2Program pt2_program(const AtenGraph& graph, const std::vector<ValueFacts>& facts) {
  return ProgramWriter(graph, facts).write();
}

Json pt2_tensor_meta(const at::Tensor& tensor, bool requires_grad) {
  Json sizes = Json::array(), strides = Json::array();
  for (int64_t i = 0; i < tensor.dim(); ++i) {
    sizes.push_back({{"as_int", tensor.size(i)}});
    strides.push_back({{"as_int", tensor.stride(i)}});
  }
  return {{"dtype", pt2_number(tensor.scalar_type())},
          {"sizes", std::move(sizes)},
          {"requires_grad", requires_grad},
          {"device", device_json(tensor.device())},
          {"strides", std::move(strides)},
          {"storage_offset", {{"as_int", 0}}},
          {"layout", 7}};
}

}  // namespace bellows::aten_export
