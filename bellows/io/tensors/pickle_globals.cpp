#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <array>

#include "bellows/io/tensors/unpickler.h"

namespace bellows::io {

namespace {

struct DtypeRow {
  std::string_view name;     ///< in module torch
  std::string_view storage;  ///< its storage class, "" for those that _rebuild_tensor_v3 handles
  c10::ScalarType dtype;
};

constexpr std::array kDtypes{
    DtypeRow{"float32", "FloatStorage", c10::kFloat},
    DtypeRow{"float64", "DoubleStorage", c10::kDouble},
    DtypeRow{"float16", "HalfStorage", c10::kHalf},
    DtypeRow{"bfloat16", "BFloat16Storage", c10::kBFloat16},
    DtypeRow{"uint8", "ByteStorage", c10::kByte},
    DtypeRow{"int8", "CharStorage", c10::kChar},
    DtypeRow{"int16", "ShortStorage", c10::kShort},
    DtypeRow{"int32", "IntStorage", c10::kInt},
    DtypeRow{"int64", "LongStorage", c10::kLong},
    DtypeRow{"bool", "BoolStorage", c10::kBool},
    DtypeRow{"complex64", "ComplexFloatStorage", c10::kComplexFloat},
    DtypeRow{"complex128", "ComplexDoubleStorage", c10::kComplexDouble},
    DtypeRow{"uint16", "", c10::kUInt16},
    DtypeRow{"uint32", "", c10::kUInt32},
    DtypeRow{"uint64", "", c10::kUInt64},
    DtypeRow{"float8_e4m3fn", "", c10::kFloat8_e4m3fn},
    DtypeRow{"float8_e5m2", "", c10::kFloat8_e5m2},
    DtypeRow{"float8_e4m3fnuz", "", c10::kFloat8_e4m3fnuz},
    DtypeRow{"float8_e5m2fnuz", "", c10::kFloat8_e5m2fnuz},
};

constexpr std::string_view kUntypedStorage = "torch.storage.UntypedStorage";

const PickleValue::Sequence& arguments_of(const PickleValue& arguments, size_t at_least, size_t at_most) {
  const PickleValue::Sequence& values = arguments.elements();
  TORCH_CHECK_VALUE(values.size() >= at_least && values.size() <= at_most, "expected ", at_least, " to ", at_most,
                    " arguments, found ", values.size());
  return values;
}

std::vector<int64_t> integers(const PickleValue& sequence) {
  std::vector<int64_t> values;
  for (const PickleValue& element : sequence.elements()) {
    values.push_back(element.as_int());
    TORCH_CHECK_VALUE(values.back() >= 0, "expected sizes and strides from 0 on, found ", values.back());
  }
  TORCH_CHECK_VALUE(values.size() <= 64, "a tensor of ", values.size(), " dims; libtorch has at most 64");
  return values;
}

/// Elements of the storage that the view reaches, counted from its start; throws when they do not fit into 64 bits.
int64_t reach(const std::vector<int64_t>& sizes, const std::vector<int64_t>& strides, int64_t offset) {
  bool overflow = false;
  int64_t last = offset, count = 1;
  for (size_t i = 0; i < sizes.size(); ++i) {
    int64_t step = 0;
    overflow |= __builtin_mul_overflow(count, sizes[i], &count);
    if (sizes[i] == 0) return 0;
    overflow |= __builtin_mul_overflow(sizes[i] - 1, strides[i], &step) || __builtin_add_overflow(last, step, &last);
  }
  int64_t end = 0;
  overflow |= __builtin_add_overflow(last, int64_t{1}, &end);
  TORCH_CHECK_VALUE(!overflow, "sizes ", c10::IntArrayRef(sizes), " and strides ", c10::IntArrayRef(strides),
                    " overflow");
  return end;
}

at::Tensor view_storage(const PickleStorage& from, c10::ScalarType dtype, const PickleValue::Sequence& values) {
  const int64_t offset = values[1].as_int();
  const std::vector<int64_t> sizes = integers(values[2]), strides = integers(values[3]);
  const auto held = static_cast<int64_t>(from.storage.nbytes() / c10::elementSize(dtype));
  TORCH_CHECK_VALUE(sizes.size() == strides.size(), sizes.size(), " sizes but ", strides.size(), " strides");
  TORCH_CHECK_VALUE(offset >= 0 && reach(sizes, strides, offset) <= held, "a tensor of sizes ", c10::IntArrayRef(sizes),
                    ", strides ", c10::IntArrayRef(strides), " and offset ", offset,
                    " does not fit into its storage of ", held, " elements");
  at::Tensor tensor = at::empty({0}, at::TensorOptions().dtype(dtype));
  return tensor.set_(from.storage, offset, sizes, strides);
}

/// (storage, offset, sizes, strides, requires_grad, hooks [, dtype] [, metadata])
PickleValue rebuild_tensor(const PickleValue& arguments, bool has_dtype) {
  const PickleValue::Sequence& values = arguments_of(arguments, has_dtype ? 7 : 4, has_dtype ? 8 : 7);
  const auto* from = dynamic_cast<const PickleStorage*>(values[0].as_opaque());
  TORCH_CHECK_VALUE(from, "expected a storage, found ", values[0].describe());
  const size_t metadata = has_dtype ? 7 : 6;
  if (values.size() > metadata && values[metadata].is_dict()) {
    for (const auto& [key, value] : values[metadata].items()) {
      TORCH_CHECK_VALUE(value.kind() == PickleValue::Kind::boolean && !value.as_bool(), "a tensor with ",
                        key.describe(),
                        " set (a lazy conjugate or negative): call resolve_conj().resolve_neg() on it before saving");
    }
  }
  at::Tensor tensor = view_storage(*from, has_dtype ? values[6].as_dtype() : from->dtype, values);
  if (values.size() > 4 && values[4].as_bool()) tensor.set_requires_grad(true);
  return tensor;
}

PickleValue rebuild_parameter(const PickleValue& arguments) {
  const PickleValue::Sequence& values = arguments_of(arguments, 3, 4);
  const at::Tensor tensor = values[0].as_tensor().detach();
  if (values[1].as_bool()) tensor.set_requires_grad(true);
  return tensor;
}

/// str.encode("latin1"): how protocol 2 writes bytes.
PickleValue encode_latin1(const PickleValue& arguments) {
  const PickleValue::Sequence& values = arguments_of(arguments, 1, 2);
  const std::string& text = values[0].as_string();
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    auto code = static_cast<unsigned char>(text[i]);
    if (code >= 0x80) {
      const auto next = i + 1 < text.size() ? static_cast<unsigned char>(text[++i]) : 0U;
      TORCH_CHECK_VALUE((code == 0xc2 || code == 0xc3) && (next & 0xc0) == 0x80,
                        "expected Latin-1 text for bytes, found ", printable(text));
      code = static_cast<unsigned char>((code & 3) << 6 | (next & 0x3f));
    }
    out += static_cast<char>(code);
  }
  return PickleValue::bytes(std::move(out));
}

PickleValue make_dict(const PickleValue& arguments, bool ordered) {
  const PickleValue::Sequence& values = arguments_of(arguments, 0, 1);
  PickleValue dict = PickleValue::dict({}, ordered);
  if (values.empty()) return dict;
  if (values[0].is_dict()) {
    for (const auto& [key, value] : values[0].items()) dict.set(key, value);
  } else {
    for (const PickleValue& pair : values[0].elements()) dict.set(pair.at_index(0), pair.at_index(1));
  }
  return dict;
}

PickleValue make_device(const PickleValue& arguments) {
  const PickleValue::Sequence& values = arguments_of(arguments, 1, 2);
  c10::Device device(values[0].as_string());
  if (values.size() == 2) {
    const int64_t index = values[1].as_int();
    TORCH_CHECK_VALUE(index >= -1 && index < 128, "expected the index of a device, found ", index);
    device.set_index(static_cast<c10::DeviceIndex>(index));
  }
  return device;
}

/// (function, type, arguments, state): a tensor of a subclass, or with attributes. Only the tensor is kept.
PickleValue rebuild_from_type(const PickleValue& arguments) {
  const PickleValue::Sequence& values = arguments_of(arguments, 4, 4);
  const auto* function = dynamic_cast<const PickleGlobal*>(values[0].as_opaque());
  TORCH_CHECK_VALUE(function && function->name.starts_with("torch._utils._rebuild_"),
                    "expected a function that rebuilds a tensor, found ", values[0].describe());
  return call_pickle_global(values[0], values[2]);
}

PickleValue first_or_empty(const PickleValue& arguments) {
  const PickleValue::Sequence& values = arguments_of(arguments, 0, 1);
  return values.empty() ? PickleValue::tuple() : PickleValue::tuple(values[0].elements());
}

struct Function {
  std::string_view name;
  PickleValue (*call)(const PickleValue& arguments);
};

constexpr std::array kFunctions{
    Function{"torch._utils._rebuild_tensor_v2", [](const PickleValue& a) { return rebuild_tensor(a, false); }},
    Function{"torch._utils._rebuild_tensor", [](const PickleValue& a) { return rebuild_tensor(a, false); }},
    Function{"torch._utils._rebuild_tensor_v3", [](const PickleValue& a) { return rebuild_tensor(a, true); }},
    Function{"torch._utils._rebuild_parameter", rebuild_parameter},
    Function{"torch._utils._rebuild_parameter_with_state", rebuild_parameter},
    Function{"torch._tensor._rebuild_from_type_v2", rebuild_from_type},
    Function{"collections.OrderedDict", [](const PickleValue& a) { return make_dict(a, true); }},
    Function{"collections.Counter", [](const PickleValue& a) { return make_dict(a, false); }},
    Function{"_codecs.encode", encode_latin1},
    Function{"builtins.bytes", [](const PickleValue& a) { return arguments_of(a, 0, 0), PickleValue::bytes(""); }},
    Function{"builtins.set", first_or_empty},
    Function{"torch.Size", first_or_empty},
    Function{"torch.device", make_device},
};

const Function* find_function(std::string_view name) {
  for (const Function& function : kFunctions) {
    if (function.name == name) return &function;
  }
  return nullptr;
}

}  // namespace

c10::ScalarType storage_dtype(const std::string& class_name) {
  if (class_name == kUntypedStorage) return c10::kByte;
  for (const DtypeRow& row : kDtypes) {
    if (!row.storage.empty() && class_name == "torch." + std::string(row.storage)) return row.dtype;
  }
  TORCH_CHECK_VALUE(false, "expected a storage class, found ", class_name);
}

std::string storage_class(c10::ScalarType dtype) {
  for (const DtypeRow& row : kDtypes) {
    if (row.dtype == dtype) return std::string(row.storage);
  }
  TORCH_CHECK_VALUE(false, "torch_save: tensors of dtype ", dtype, " cannot be written");
}

PickleValue resolve_pickle_global(const std::string& module, const std::string& name) {
  const std::string full = (module == "__builtin__" ? "builtins" : module) + "." + name;
  bool known = find_function(full) || full == kUntypedStorage;
  // Only named as the type of a tensor, never called.
  known = known || full == "torch.nn.parameter.Parameter" || full == "torch.Tensor";
  for (const DtypeRow& row : kDtypes) {
    if (module != "torch") break;
    if (name == row.name) return row.dtype;
    known = known || (name == row.storage && !name.empty());
  }
  TORCH_CHECK_VALUE(known, "the file holds an object of ", printable(full, 200),
                    ", which is not plain data; save tensors, numbers, text, lists and dicts only (a state_dict)");
  return PickleValue(std::make_shared<PickleGlobal>(full));
}

PickleValue call_pickle_global(const PickleValue& function, const PickleValue& arguments) {
  const auto* global = dynamic_cast<const PickleGlobal*>(function.as_opaque());
  const Function* row = global ? find_function(global->name) : nullptr;
  TORCH_CHECK_VALUE(row, "expected a function that may be called, found ", global ? global->name : function.describe());
  return row->call(arguments);
}

}  // namespace bellows::io
