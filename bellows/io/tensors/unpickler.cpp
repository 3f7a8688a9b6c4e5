#include "bellows/io/tensors/unpickler.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <bit>
#include <unordered_map>

namespace bellows::io {

namespace {

/// Returns the result of calling `function`: a container, a tensor, a device.
/// Throws: c10::ValueError if the function is not in the table or its arguments are invalid
PickleValue call_pickle_global(const PickleValue& function, const PickleValue& arguments);

struct DtypeRow {
  std::string_view name;     ///< in module torch
  std::string_view storage;  ///< its storage class; "" for dtypes of _rebuild_tensor_v3
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
    TORCH_CHECK_VALUE(values.back() >= 0, "expected sizes and strides of at least 0, found ", values.back());
  }
  TORCH_CHECK_VALUE(values.size() <= 64, "a tensor of ", values.size(), " dims is not supported; the limit is 64");
  return values;
}

/// Number of storage elements, from its start, that the view covers; throws if it does not fit into 64 bits.
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
      TORCH_CHECK_VALUE(value.kind() == PickleValue::Kind::boolean && !value.as_bool(), "a tensor has ", key.describe(),
                        " set (a lazy conjugate or negative); call resolve_conj().resolve_neg() before you save it");
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

/// str.encode("latin1"): protocol 2 writes bytes this way.
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

/// Resolves the name `module.name` in a pickle: a dtype, or a PickleGlobal.
/// Throws: c10::ValueError if the name is not in the table
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
  TORCH_CHECK_VALUE(known, "the file contains an object of ", printable(full, 200),
                    ", which is not plain data; save only tensors, numbers, text, lists and dicts (a state_dict)");
  return PickleValue(std::make_shared<PickleGlobal>(full));
}

PickleValue call_pickle_global(const PickleValue& function, const PickleValue& arguments) {
  const auto* global = dynamic_cast<const PickleGlobal*>(function.as_opaque());
  const Function* row = global ? find_function(global->name) : nullptr;
  TORCH_CHECK_VALUE(row, "expected a supported function, found ", global ? global->name : function.describe());
  return row->call(arguments);
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

namespace {

constexpr int kMaxDepth = 256;

/// The pickle machine: a stack of values, a stack of marks, a memo.
class Unpickler {
 public:
  using Load = std::function<PickleValue(const PickleValue&)>;
  Unpickler(ByteSpan bytes, const std::string& where, const Load& load) : bytes_(bytes), where_(where), load_(load) {}
  ~Unpickler() {
    // Containers of a broken pickle may refer to each other in cycles, or in chains too deep for recursive destructors.
    if (!finished_) {
      for (PickleValue& container : containers_) container.clear();
    }
  }

  /// Number of bytes that run() has read.
  size_t position() const { return position_; }

  PickleValue run() {
    for (;;) {
      const size_t at = position_;
      try {
        const auto code = static_cast<unsigned char>(*take(1).data());
        if (code == '.') return finish();
        TORCH_CHECK_VALUE(load_atom(code) || load_container(code) || load_memo(code) || load_object(code), "opcode ",
                          static_cast<int>(code), " is not an opcode that torch.save writes");
      } catch (const c10::Error& error) {
        TORCH_CHECK_VALUE(false, where_, ": byte ", at, " of the pickle: ", error.what_without_backtrace());
      }
    }
  }

 private:
  ByteSpan take(size_t count) {
    TORCH_CHECK_VALUE(count <= bytes_.size() - position_, "truncated: expected ", count, " more bytes, found ",
                      bytes_.size() - position_);
    position_ += count;
    return bytes_.subspan(position_ - count, count);
  }
  template <class T>
  T number() {
    return load_little<T>(take(sizeof(T)));
  }
  std::string line() {
    const std::string_view rest = as_text(bytes_.subspan(position_));
    const size_t end = rest.find('\n');
    TORCH_CHECK_VALUE(end != std::string_view::npos && end < 1024,
                      "truncated: expected a name that ends in a new line");
    position_ += end + 1;
    return std::string(rest.substr(0, end));
  }
  std::string text(uint64_t length) { return std::string(as_text(take(length))); }

  void push(PickleValue value) { stack_.push_back(std::move(value)); }
  void push_container(PickleValue value) {
    containers_.push_back(value);
    push(std::move(value));
  }
  PickleValue pop() {
    TORCH_CHECK_VALUE(stack_.size() > (marks_.empty() ? 0 : marks_.back()), "corrupt: the stack is empty");
    PickleValue value = std::move(stack_.back());
    stack_.pop_back();
    return value;
  }
  PickleValue& top() {
    TORCH_CHECK_VALUE(stack_.size() > (marks_.empty() ? 0 : marks_.back()), "corrupt: the stack is empty");
    return stack_.back();
  }
  PickleValue::Sequence pop_to_mark() {
    TORCH_CHECK_VALUE(!marks_.empty() && marks_.back() <= stack_.size(), "corrupt: no mark on the stack");
    const auto first = stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back());
    PickleValue::Sequence values(std::make_move_iterator(first), std::make_move_iterator(stack_.end()));
    stack_.erase(first, stack_.end());
    marks_.pop_back();
    return values;
  }
  PickleValue::Sequence pop_many(size_t count) {
    PickleValue::Sequence values(count);
    for (size_t i = count; i-- > 0;) values[i] = pop();
    return values;
  }

  bool load_atom(unsigned char code);
  bool load_text(unsigned char code);
  bool load_container(unsigned char code);
  bool load_memo(unsigned char code);
  bool load_object(unsigned char code);
  PickleValue integer(ByteSpan digits) const;
  void set_items(PickleValue::Sequence values);
  void build();
  PickleValue call(const PickleValue& function, const PickleValue& arguments);
  PickleValue finish();
  void check_shape(const PickleValue& value, int depth, bool in_result);

  ByteSpan bytes_;
  const std::string& where_;
  const Load& load_;
  size_t position_ = 0;
  PickleValue::Sequence stack_;
  std::vector<size_t> marks_;
  std::unordered_map<uint32_t, PickleValue> memo_;
  PickleValue::Sequence containers_;
  std::unordered_map<const void*, int> depth_below_;  // of a container; -1 while it is being walked
  size_t called_bytes_ = 0;
  bool finished_ = false;
};

/// Parses two's complement, little-endian.
PickleValue Unpickler::integer(ByteSpan digits) const {
  TORCH_CHECK_VALUE(digits.size() <= 8, "an int of ", digits.size(), " bytes does not fit into 64 bits");
  uint64_t value = 0;
  for (size_t i = 0; i < digits.size(); ++i) value |= std::to_integer<uint64_t>(digits[i]) << (8 * i);
  const bool negative = !digits.empty() && (digits.back() & std::byte{0x80}) != std::byte{0};
  if (negative && digits.size() < 8) value |= ~uint64_t{0} << (8 * digits.size());
  return static_cast<int64_t>(value);
}

bool Unpickler::load_atom(unsigned char code) {
  switch (code) {
    case 0x80: {  // PROTO
      const int protocol = number<uint8_t>();
      TORCH_CHECK_VALUE(protocol >= 2 && protocol <= 5, "pickle protocol ", protocol,
                        " is not supported; expected 2 to 5");
      return true;
    }
    case 0x95:  // FRAME: only a hint for reading ahead
      take(8);
      return true;
    case 'N':
      return push({}), true;
    case 0x88:
      return push(true), true;
    case 0x89:
      return push(false), true;
    case 'J':
      return push(integer(take(4))), true;
    case 'K':
      return push(static_cast<int64_t>(number<uint8_t>())), true;
    case 'M':
      return push(static_cast<int64_t>(number<uint16_t>())), true;
    case 0x8a:
      return push(integer(take(number<uint8_t>()))), true;
    case 'G': {  // big-endian
      uint64_t bits = 0;
      for (const std::byte b : take(8)) bits = bits << 8 | std::to_integer<uint64_t>(b);
      return push(std::bit_cast<double>(bits)), true;
    }
    default:
      return load_text(code);
  }
}

bool Unpickler::load_text(unsigned char code) {
  switch (code) {
    case 'X':
      return push(text(number<uint32_t>())), true;
    case 0x8c:
    case 'U':  // a str of Python 2
      return push(text(number<uint8_t>())), true;
    case 'T':
      return push(text(number<uint32_t>())), true;
    case 0x8d:
      return push(text(number<uint64_t>())), true;
    case 'B':
      return push(PickleValue::bytes(text(number<uint32_t>()))), true;
    case 'C':
      return push(PickleValue::bytes(text(number<uint8_t>()))), true;
    case 0x8e:
      return push(PickleValue::bytes(text(number<uint64_t>()))), true;
    default:
      return false;
  }
}

// NOLINTNEXTLINE(readability-function-size): one case per opcode, in the order of the format
bool Unpickler::load_container(unsigned char code) {
  switch (code) {
    case '(':
      return marks_.push_back(stack_.size()), true;
    case '}':
      return push_container(PickleValue::dict()), true;
    case ']':
    case 0x8f:  // a set, read as a list
      return push_container(PickleValue::list()), true;
    case ')':
      return push(PickleValue::tuple()), true;
    case 't':
      return push_container(PickleValue::tuple(pop_to_mark())), true;
    case 0x85:
    case 0x86:
    case 0x87:
      return push_container(PickleValue::tuple(pop_many(code - 0x84U))), true;
    case 'l':
      return push_container(PickleValue::list(pop_to_mark())), true;
    case 'd': {
      PickleValue::Sequence values = pop_to_mark();
      push_container(PickleValue::dict());
      return set_items(std::move(values)), true;
    }
    case 'a': {
      PickleValue value = pop();
      return top().push_back(std::move(value)), true;
    }
    case 'e':
    case 0x90:
      for (PickleValue::Sequence values = pop_to_mark(); PickleValue & value : values)
        top().push_back(std::move(value));
      return true;
    case 's':
      return set_items(pop_many(2)), true;
    case 'u':
      return set_items(pop_to_mark()), true;
    default:
      return false;
  }
}

void Unpickler::set_items(PickleValue::Sequence values) {
  TORCH_CHECK_VALUE(values.size() % 2 == 0, "corrupt: a key without a value");
  for (size_t i = 0; i < values.size(); i += 2) top().set(values[i], std::move(values[i + 1]));
}

bool Unpickler::load_memo(unsigned char code) {
  const auto get = [&](uint32_t index) {
    const auto found = memo_.find(index);
    TORCH_CHECK_VALUE(found != memo_.end(), "corrupt: the memo has no entry ", index);
    push(found->second);
    return true;
  };
  switch (code) {
    case 'q':
      return memo_[number<uint8_t>()] = top(), true;
    case 'r':
      return memo_[number<uint32_t>()] = top(), true;
    case 0x94:
      return memo_[static_cast<uint32_t>(memo_.size())] = top(), true;
    case 'h':
      return get(number<uint8_t>());
    case 'j':
      return get(number<uint32_t>());
    case '0':
      return pop(), true;
    case '1':
      return pop_to_mark(), true;
    default:
      return false;
  }
}

bool Unpickler::load_object(unsigned char code) {
  switch (code) {
    case 'c': {
      const std::string module = line();
      return push(resolve_pickle_global(module, line())), true;
    }
    case 0x93: {
      const PickleValue::Sequence names = pop_many(2);
      return push(resolve_pickle_global(names[0].as_string(), names[1].as_string())), true;
    }
    case 'Q':
      return push(load_(pop())), true;
    case 'R':
    case 0x81: {
      const PickleValue::Sequence parts = pop_many(2);
      return push_container(call(parts[0], parts[1])), true;
    }
    case 'b':
      return build(), true;
    default:
      return false;
  }
}

PickleValue Unpickler::call(const PickleValue& function, const PickleValue& arguments) {
  PickleValue result = call_pickle_global(function, arguments);
  // Copies made by calls are limited by the size of the pickle: more means that a small value is copied repeatedly to
  // fill the memory.
  if (result.is_dict()) called_bytes_ += result.size();
  if (result.kind() == PickleValue::Kind::bytes) called_bytes_ += result.as_string().size();
  TORCH_CHECK_VALUE(called_bytes_ <= bytes_.size(),
                    "corrupt: function calls produce more data than the pickle contains");
  return result;
}

/// Sets the attributes of an object. Those of an OrderedDict (a state dict's `_metadata`, versions of modules) are
/// ignored.
void Unpickler::build() {
  const PickleValue state = pop();
  TORCH_CHECK_VALUE(top().is_dict() || top().is_tensor(), "attributes are set on ", top().describe(),
                    "; only tensors and plain containers support attributes");
}

PickleValue Unpickler::finish() {
  PickleValue result = pop();
  TORCH_CHECK_VALUE(stack_.empty() && marks_.empty(), "corrupt: values are left on the stack at the end");
  check_shape(result, 0, true);
  // Containers outside the result may still form cycles.
  for (const PickleValue& container : containers_) check_shape(container, 0, false);
  finished_ = true;
  return result;
}

/// Checks that there are no cycles, no chains too deep for recursion and, in the result, only data.
void Unpickler::check_shape(const PickleValue& value, int depth, bool in_result) {
  TORCH_CHECK_VALUE(depth < kMaxDepth, "containers are nested deeper than ", kMaxDepth);
  if (in_result && value.as_opaque()) {
    const auto* global = dynamic_cast<const PickleGlobal*>(value.as_opaque());
    TORCH_CHECK_VALUE(false, "expected data, found ",
                      global ? "the class or function " + global->name : "a bare storage");
  }
  const void* identity = value.identity();
  if (!identity) return;
  const auto [place, is_new] = depth_below_.emplace(identity, -1);
  if (!is_new) {
    TORCH_CHECK_VALUE(place->second >= 0, "a container contains itself");
    TORCH_CHECK_VALUE(depth + place->second < kMaxDepth, "containers are nested deeper than ", kMaxDepth);
    return;
  }
  int below = 0;
  const auto visit = [&](const PickleValue& child) {
    check_shape(child, depth + 1, in_result);
    const auto found = depth_below_.find(child.identity());
    if (found != depth_below_.end()) below = std::max(below, found->second + 1);
  };
  if (value.is_dict()) {
    for (const auto& [key, child] : value.items()) visit(key), visit(child);
  } else {
    for (const PickleValue& child : value.elements()) visit(child);
  }
  depth_below_[identity] = below;
}

}  // namespace

PickleValue unpickle(ByteSpan bytes, const std::string& where,
                     const std::function<PickleValue(const PickleValue& id)>& persistent_load) {
  return Unpickler(bytes, where, persistent_load).run();
}

PickleValue unpickle_next(ByteSpan& bytes, const std::string& where,
                          const std::function<PickleValue(const PickleValue& id)>& persistent_load) {
  Unpickler unpickler(bytes, where, persistent_load);
  PickleValue value = unpickler.run();
  bytes = bytes.subspan(unpickler.position());
  return value;
}

}  // namespace bellows::io
