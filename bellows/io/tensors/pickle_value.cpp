#include "bellows/io/tensors/pickle_value.h"

#include <c10/util/Exception.h>

#include <cmath>
#include <unordered_map>

#include "bellows/core/error.h"
#include "bellows/io/bytes.h"

namespace bellows::io {

struct PickleValue::BytesData {
  std::string value;
};
struct PickleValue::ListData {
  Sequence values;
};
struct PickleValue::TupleData {
  Sequence values;
};
struct PickleValue::DictData {
  std::vector<Item> items;
  std::unordered_map<std::string, size_t> index;  // by hash_key
  bool ordered = false;
};

namespace {

/// Equal for keys that are equal in Python (True == 1 == 1.0), different otherwise.
std::string hash_key(const PickleValue& key) {
  using Kind = PickleValue::Kind;
  switch (key.kind()) {
    case Kind::none:
      return "n";
    case Kind::boolean:
      return key.as_bool() ? "i1" : "i0";
    case Kind::integer:
      return "i" + std::to_string(key.as_int());
    case Kind::real: {
      const double value = key.as_double();
      const bool whole = std::nearbyint(value) == value && std::abs(value) < 9e15;
      return whole ? "i" + std::to_string(static_cast<int64_t>(value))
                   : "r" + std::to_string(std::hash<double>()(value));
    }
    case Kind::string:
      return "s" + key.as_string();
    case Kind::bytes:
      return "b" + key.as_string();
    case Kind::dtype:
      return std::string("d") + c10::toString(key.as_dtype());
    case Kind::device:
      return "v" + key.as_device().str();
    case Kind::tuple: {
      std::string out = "(";
      for (const PickleValue& element : key.elements()) {
        TORCH_CHECK_VALUE(!element.is_sequence(), "PickleValue: nested tuples as keys of a dict are not supported.");
        const std::string part = hash_key(element);
        out += std::to_string(part.size()) + ":" + part;
      }
      return out;
    }
    default:
      TORCH_CHECK_VALUE(false, "PickleValue: expected a hashable key, found ", key.describe(), ".");
  }
}

const char* kind_name(PickleValue::Kind kind) {
  constexpr const char* names[] = {"None",    "a bool", "an int",   "a float", "a string", "bytes",  "a list",
                                   "a tuple", "a dict", "a tensor", "a dtype", "a device", "a class"};
  return names[static_cast<size_t>(kind)];
}

[[noreturn]] void wrong_kind(const char* expected, const PickleValue& found) {
  TORCH_CHECK_VALUE(false, "PickleValue: expected ", expected, ", found ", found.describe(), ".");
}

}  // namespace

PickleValue::PickleValue(const NamedTensors& tensors) : data_(std::make_shared<DictData>()) {
  for (const auto& [name, tensor] : tensors) {
    TORCH_CHECK_VALUE(!contains(name), "PickleValue: the name \"", name, "\" occurs twice among the tensors.");
    set(name, tensor);
  }
  std::get<std::shared_ptr<DictData>>(data_)->ordered = true;
}

PickleValue PickleValue::bytes(std::string value) {
  PickleValue result;
  result.data_ = std::make_shared<BytesData>(BytesData{std::move(value)});
  return result;
}

PickleValue PickleValue::list(Sequence values) {
  PickleValue result;
  result.data_ = std::make_shared<ListData>(ListData{std::move(values)});
  return result;
}

PickleValue PickleValue::tuple(Sequence values) {
  PickleValue result;
  result.data_ = std::make_shared<TupleData>(TupleData{std::move(values)});
  return result;
}

PickleValue PickleValue::dict(std::vector<Item> items, bool ordered) {
  PickleValue result;
  const auto data = std::make_shared<DictData>();
  data->ordered = ordered;
  result.data_ = data;
  for (Item& item : items) result.set(item.first, std::move(item.second));
  return result;
}

std::string PickleValue::describe() const {
  switch (kind()) {
    case Kind::string:
      return "the string " + printable(as_string());
    case Kind::boolean:
      return as_bool() ? "True" : "False";
    case Kind::integer:
      return "the int " + std::to_string(as_int());
    case Kind::real:
      return c10::str("the float ", as_double());
    case Kind::list:
    case Kind::tuple:
    case Kind::dict:
      return std::string(kind_name(kind())) + " of " + std::to_string(size());
    case Kind::tensor: {
      const at::Tensor& tensor = as_tensor();
      return tensor.defined() ? c10::str("a ", tensor.scalar_type(), " tensor ", tensor.sizes())
                              : "an undefined tensor";
    }
    default:
      return kind_name(kind());
  }
}

bool PickleValue::is_ordered_dict() const {
  const auto* data = std::get_if<std::shared_ptr<DictData>>(&data_);
  return data && (*data)->ordered;
}

bool PickleValue::as_bool() const {
  const bool* value = std::get_if<bool>(&data_);
  return value ? *value : (wrong_kind("a bool", *this), false);
}

int64_t PickleValue::as_int() const {
  const int64_t* value = std::get_if<int64_t>(&data_);
  return value ? *value : (wrong_kind("an int", *this), 0);
}

double PickleValue::as_double() const {
  if (const int64_t* value = std::get_if<int64_t>(&data_)) return static_cast<double>(*value);
  const double* value = std::get_if<double>(&data_);
  return value ? *value : (wrong_kind("a float", *this), 0.0);
}

const std::string& PickleValue::as_string() const {
  if (const auto* value = std::get_if<std::shared_ptr<const std::string>>(&data_)) return **value;
  if (const auto* value = std::get_if<std::shared_ptr<BytesData>>(&data_)) return (*value)->value;
  wrong_kind("a string", *this);
}

const at::Tensor& PickleValue::as_tensor() const {
  if (const auto* value = std::get_if<at::Tensor>(&data_)) return *value;
  wrong_kind("a tensor", *this);
}

c10::ScalarType PickleValue::as_dtype() const {
  if (const auto* value = std::get_if<c10::ScalarType>(&data_)) return *value;
  wrong_kind("a dtype", *this);
}

c10::Device PickleValue::as_device() const {
  if (const auto* value = std::get_if<c10::Device>(&data_)) return *value;
  wrong_kind("a device", *this);
}

const PickleValue::Opaque* PickleValue::as_opaque() const {
  const auto* value = std::get_if<std::shared_ptr<Opaque>>(&data_);
  return value ? value->get() : nullptr;
}

size_t PickleValue::size() const {
  return is_dict() ? items().size() : elements().size();
}

const PickleValue::Sequence& PickleValue::elements() const {
  if (const auto* data = std::get_if<std::shared_ptr<ListData>>(&data_)) return (*data)->values;
  if (const auto* data = std::get_if<std::shared_ptr<TupleData>>(&data_)) return (*data)->values;
  wrong_kind("a list or tuple", *this);
}

const std::vector<PickleValue::Item>& PickleValue::items() const {
  if (const auto* data = std::get_if<std::shared_ptr<DictData>>(&data_)) return (*data)->items;
  wrong_kind("a dict", *this);
}

const PickleValue* PickleValue::find(const PickleValue& key) const {
  const std::vector<Item>& entries = items();
  const auto& index = std::get<std::shared_ptr<DictData>>(data_)->index;
  const auto found = index.find(hash_key(key));
  return found == index.end() ? nullptr : &entries[found->second].second;
}

const PickleValue& PickleValue::at(const PickleValue& key) const {
  if (const PickleValue* value = find(key)) return *value;
  std::vector<std::string> names;
  for (const Item& item : items()) {
    if (item.first.is_string()) names.push_back(item.first.as_string());
  }
  TORCH_CHECK_VALUE(false, "PickleValue: the dict has ", size(), " keys, but ", key.describe(), " is not one of them.",
                    key.is_string() ? did_you_mean(key.as_string(), names) : "");
}

const PickleValue& PickleValue::at_index(size_t i) const {
  const Sequence& values = elements();
  TORCH_CHECK_VALUE(i < values.size(), "PickleValue: element ", i, " of ", describe(), " was requested.");
  return values[i];
}

void PickleValue::push_back(PickleValue value) {
  const auto* data = std::get_if<std::shared_ptr<ListData>>(&data_);
  if (!data) wrong_kind("a list", *this);
  (*data)->values.push_back(std::move(value));
}

void PickleValue::set(const PickleValue& key, PickleValue value) {
  const auto* data = std::get_if<std::shared_ptr<DictData>>(&data_);
  if (!data) wrong_kind("a dict", *this);
  const auto [place, is_new] = (*data)->index.emplace(hash_key(key), (*data)->items.size());
  if (is_new) {
    (*data)->items.emplace_back(key, std::move(value));
  } else {
    (*data)->items[place->second].second = std::move(value);
  }
}

void PickleValue::clear() {
  if (const auto* data = std::get_if<std::shared_ptr<ListData>>(&data_)) (*data)->values.clear();
  if (const auto* data = std::get_if<std::shared_ptr<TupleData>>(&data_)) (*data)->values.clear();
  if (const auto* data = std::get_if<std::shared_ptr<DictData>>(&data_)) {
    (*data)->items.clear();
    (*data)->index.clear();
  }
}

const void* PickleValue::identity() const {
  if (const auto* data = std::get_if<std::shared_ptr<ListData>>(&data_)) return data->get();
  if (const auto* data = std::get_if<std::shared_ptr<TupleData>>(&data_)) return data->get();
  if (const auto* data = std::get_if<std::shared_ptr<DictData>>(&data_)) return data->get();
  return nullptr;
}

}  // namespace bellows::io
