#include "bellows/models/exported/arguments.h"

#include <ATen/ScalarOps.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <string_view>

#include "bellows/io/tables/json_impl.h"

namespace bellows::models::exported {

namespace {

Argument constant_argument(c10::IValue value, const c10::TypePtr& type) {
  return {.constant = type ? converted(value, type) : std::move(value), .type = type};
}
Argument value_argument(const std::string& name, const c10::TypePtr& type, const ValueNames& values) {
  return {.slot = values.use(name), .type = type};
}

/// The kind of an element of a list: that of "as_ints" is "as_int". Elements of the other lists state their kind.
std::string_view element_kind(std::string_view list) {
  static const std::map<std::string_view, std::string_view> kinds{{"as_tensors", "as_tensor"},
                                                                  {"as_ints", "as_int"},
                                                                  {"as_floats", "as_float"},
                                                                  {"as_bools", "as_bool"},
                                                                  {"as_strings", "as_string"}};
  const auto found = kinds.find(list);
  return found == kinds.end() ? "" : found->second;
}

/// Returns the constant of a kind; nothing for other kinds.
std::optional<c10::IValue> constant_of(std::string_view kind, const Json& value) {
  if (kind == "as_none") return c10::IValue();
  if (kind == "as_int") return c10::IValue(integer_of(value));
  if (kind == "as_float") return c10::IValue(float_of(value));
  if (kind == "as_bool") return c10::IValue(value.get<bool>());
  if (kind == "as_string") return c10::IValue(value.get<std::string>());
  if (kind == "as_complex")
    return c10::IValue(c10::complex<double>(float_of(value.at("real")), float_of(value.at("imag"))));
  if (kind == "as_scalar_type") return c10::IValue(static_cast<int64_t>(dtype_of(value)));
  if (kind == "as_memory_format") return c10::IValue(static_cast<int64_t>(memory_format_of(value)));
  if (kind == "as_layout") return c10::IValue(static_cast<int64_t>(layout_of(value)));
  if (kind == "as_device") return c10::IValue(device_of(value));
  return std::nullopt;
}

Argument argument_of_kind(std::string_view kind, const Json& value, const c10::TypePtr& type, const ValueNames& values);

Argument list_argument(std::string_view kind, const Json& value, const c10::TypePtr& type, const ValueNames& values) {
  Argument list{.is_list = true, .type = type};
  list.elements.reserve(value.size());
  const std::string_view element = element_kind(kind);
  for (const Json& one : value)
    list.elements.push_back(element.empty() ? argument_of(one, nullptr, values)
                                            : argument_of_kind(element, one, nullptr, values));
  const bool fixed =
      std::all_of(list.elements.begin(), list.elements.end(), [](const Argument& a) { return a.fixed(); });
  if (!fixed) return list;
  c10::impl::GenericList constants(c10::AnyType::get());
  for (const Argument& one : list.elements) constants.push_back(one.constant);
  return constant_argument(c10::IValue(constants), type);
}

Argument argument_of_kind(std::string_view kind, const Json& value, const c10::TypePtr& type,
                          const ValueNames& values) {
  if (kind == "as_tensor") return value_argument(value.at("name").get<std::string>(), type, values);
  if (kind == "as_name") return value_argument(value.get<std::string>(), type, values);
  if (kind == "as_graph") return {.graph = build_graph(value.at("graph"))};
  if (kind == "as_sym_int" || kind == "as_sym_float" || kind == "as_sym_bool" || kind == "as_optional_tensor")
    return argument_of(value, type, values);
  if (const std::optional<c10::IValue> constant = constant_of(kind, value)) return constant_argument(*constant, type);
  TORCH_CHECK_VALUE(kind != "as_custom_obj" && kind != "as_operator",
                    "custom objects and operators as arguments are not supported (", std::string(kind), ").");
  TORCH_CHECK_VALUE(value.is_array(), "unknown kind of argument ", io::printable(kind), ".");
  return list_argument(kind, value, type, values);
}

}  // namespace

int ValueNames::define(const std::string& name) {
  const auto [place, is_new] = slots_.emplace(name, static_cast<int>(slots_.size()));
  TORCH_CHECK_VALUE(is_new, "the value ", io::printable(name, 100), " is defined twice.");
  return place->second;
}

int ValueNames::use(const std::string& name) const {
  const auto found = slots_.find(name);
  TORCH_CHECK_VALUE(found != slots_.end(), "the value ", io::printable(name, 100), " is used but not defined before.");
  return found->second;
}

Argument argument_of(const Json& alternative, const c10::TypePtr& type, const ValueNames& values) {
  const auto& [kind, value] = alternative_of(alternative);
  return argument_of_kind(kind, value, type, values);
}

namespace {

bool is_number(const c10::IValue& value) {
  return value.isInt() || value.isDouble() || value.isBool() || value.isComplexDouble();
}

/// libtorch expands a single number to the length that a list of numbers needs.
c10::IValue converted_list(const c10::IValue& value, const c10::TypePtr& element) {
  c10::impl::GenericList list(element);
  if (value.isList()) {
    for (const c10::IValue& one : value.toListRef()) list.push_back(converted(one, element));
  } else {
    list.push_back(converted(value, element));
  }
  return list;
}

/// Returns nothing if a parameter of this kind cannot have the value.
std::optional<c10::IValue> converted_element(const c10::IValue& value, c10::TypeKind kind) {
  using Kind = c10::TypeKind;
  const auto as_it_is = [&](bool fits) { return fits ? std::optional(value) : std::nullopt; };
  switch (kind) {
    case Kind::TensorType:
      if (value.isNone()) return at::Tensor();
      if (is_number(value)) return at::native::wrapped_scalar_tensor(value.toScalar());
      return as_it_is(value.isTensor());
    case Kind::NumberType:
      if (value.isTensor() && value.toTensor().numel() == 1) return value.toTensor().item();
      return as_it_is(is_number(value));
    case Kind::FloatType:
      if (value.isInt()) return static_cast<double>(value.toInt());
      return as_it_is(value.isDouble());
    case Kind::IntType:
      if (value.isBool()) return static_cast<int64_t>(value.toBool());
      return as_it_is(value.isInt());
    case Kind::BoolType:
      if (value.isInt()) return value.toInt() != 0;
      return as_it_is(value.isBool());
    case Kind::StringType:
      return as_it_is(value.isString());
    case Kind::DeviceObjType:
      return as_it_is(value.isDevice());
    default:
      return value;
  }
}

}  // namespace

c10::IValue converted(const c10::IValue& value, const c10::TypePtr& type) {
  if (type->kind() == c10::TypeKind::OptionalType)
    return value.isNone() ? value : converted(value, type->castRaw<c10::OptionalType>()->getElementType());
  if (type->kind() == c10::TypeKind::ListType)
    return converted_list(value, type->castRaw<c10::ListType>()->getElementType());
  std::optional<c10::IValue> result = converted_element(value, type->kind());
  TORCH_CHECK_VALUE(result, "expected ", type->str(), ", found ", value.tagKind(), ".");
  return *std::move(result);
}

}  // namespace bellows::models::exported
