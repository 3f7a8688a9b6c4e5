#include "bellows/io/tensors/pickler.h"

#include <c10/util/Exception.h>

#include <bit>

#include "bellows/core/text.h"
#include "bellows/io/bytes.h"
#include "bellows/io/tensors/unpickler.h"

namespace bellows::io {

namespace {

constexpr int kMaxWriteDepth = 256;

void check_writable(const at::Tensor& tensor) {
  TORCH_CHECK_VALUE(tensor.defined(), "torch_save: expected tensors with data, found an undefined tensor.");
  TORCH_CHECK_VALUE(
      tensor.layout() == c10::kStrided && !tensor.is_quantized() && tensor.has_storage() && !tensor.is_meta(),
      "torch_save: expected a dense tensor with data, found ", tensor.toString(), " ", tensor.sizes(),
      ". Call to_dense() or dequantize() first.");
}

/// Converts bytes to a str with the same code points, in UTF-8.
std::string latin1_as_utf8(const std::string& bytes) {
  std::string out;
  for (const char c : bytes) {
    const auto code = static_cast<unsigned char>(c);
    if (code < 0x80) {
      out += c;
    } else {
      out += {static_cast<char>(0xc0 | code >> 6), static_cast<char>(0x80 | (code & 0x3f))};
    }
  }
  return out;
}

std::string dtype_name(c10::ScalarType dtype) {
  switch (dtype) {
    case c10::kFloat:
      return "float32";
    case c10::kDouble:
      return "float64";
    case c10::kHalf:
      return "float16";
    case c10::kBFloat16:
      return "bfloat16";
    case c10::kByte:
      return "uint8";
    case c10::kChar:
      return "int8";
    case c10::kShort:
      return "int16";
    case c10::kInt:
      return "int32";
    case c10::kLong:
      return "int64";
    case c10::kBool:
      return "bool";
    case c10::kComplexFloat:
      return "complex64";
    case c10::kComplexDouble:
      return "complex128";
    default:  // UInt16, Float8_e4m3fn: Python's name is the C++ name in lower case
      return lower_case(c10::toString(dtype));
  }
}

}  // namespace

Pickler::Pickler(const PickleValue& value) {
  out_ = "\x80\x02";
  write(value, 0);
  opcode('.');
}

bool Pickler::recall(const std::string& key) {
  const auto found = memo_.find(key);
  if (found == memo_.end()) return false;
  opcode('j');
  append_little<uint32_t>(out_, found->second);
  return true;
}

void Pickler::remember(const std::string& key) {
  const auto number = static_cast<uint32_t>(memo_.size());
  memo_.emplace(key, number);
  opcode('r');
  append_little<uint32_t>(out_, number);
}

void Pickler::write(const PickleValue& value, int depth) {
  using Kind = PickleValue::Kind;
  TORCH_CHECK_VALUE(depth < kMaxWriteDepth, "torch_save: containers are nested deeper than ", kMaxWriteDepth,
                    ", or one contains itself.");
  switch (value.kind()) {
    case Kind::none:
      return opcode('N');
    case Kind::boolean:
      return opcode(value.as_bool() ? '\x88' : '\x89');
    case Kind::integer:
      return write_integer(value.as_int());
    case Kind::real: {
      const auto bits = std::bit_cast<uint64_t>(value.as_double());
      opcode('G');
      for (int shift = 56; shift >= 0; shift -= 8) out_ += static_cast<char>(bits >> shift & 0xff);
      return;
    }
    case Kind::string:
      return write_string(value.as_string());
    case Kind::bytes:
      return write_bytes(value.as_string());
    case Kind::tensor:
      return write_tensor(value.as_tensor());
    case Kind::dtype:
      return write_global("torch", dtype_name(value.as_dtype()));
    case Kind::device:
      write_global("torch", "device");
      write_string(value.as_device().str());
      out_ += "\x85R";
      return;
    case Kind::opaque:
      TORCH_CHECK_VALUE(false, "torch_save: expected data, found ", value.describe(), ".");
    default:
      return write_container(value, depth);
  }
}

void Pickler::write_container(const PickleValue& value, int depth) {
  const std::string key = "c" + std::to_string(reinterpret_cast<uintptr_t>(value.identity()));
  if (recall(key)) return;
  if (value.kind() == PickleValue::Kind::tuple) {
    write_elements(value.elements(), depth);
    opcode('t');
    return remember(key);
  }
  if (value.kind() == PickleValue::Kind::list) {
    opcode(']');
    remember(key);
    write_elements(value.elements(), depth);
    return opcode('e');
  }
  if (value.is_ordered_dict()) {
    write_global("collections", "OrderedDict");
    out_ += ")R";
  } else {
    opcode('}');
  }
  remember(key);
  opcode('(');
  for (const auto& [name, element] : value.items()) {
    write(name, depth + 1);
    write(element, depth + 1);
  }
  opcode('u');
}

void Pickler::write_elements(const PickleValue::Sequence& values, int depth) {
  opcode('(');
  for (const PickleValue& element : values) write(element, depth + 1);
}

void Pickler::write_integer(int64_t value) {
  if (value >= INT32_MIN && value <= INT32_MAX) {
    opcode('J');
    return append_little(out_, static_cast<uint32_t>(value));
  }
  out_ += "\x8a\x08";
  append_little(out_, static_cast<uint64_t>(value));
}

void Pickler::write_string(std::string_view text) {
  TORCH_CHECK_VALUE(text.size() <= 0xffffffff, "torch_save: a string of ", text.size(),
                    " bytes exceeds the limit of 4 GiB.");
  const std::string key = "s" + std::string(text);
  if (recall(key)) return;
  opcode('X');
  append_little(out_, static_cast<uint32_t>(text.size()));
  out_ += text;
  remember(key);
}

void Pickler::write_bytes(const std::string& bytes) {
  write_global("_codecs", "encode");
  write_string(latin1_as_utf8(bytes));
  write_string("latin1");
  out_ += "\x86R";
}

void Pickler::write_integers(c10::IntArrayRef values) {
  opcode('(');
  for (const int64_t value : values) write_integer(value);
  opcode('t');
}

void Pickler::write_global(std::string_view module, std::string_view name) {
  const std::string text = std::string(module) + "\n" + std::string(name) + "\n";
  if (recall("g" + text)) return;
  opcode('c');
  out_ += text;
  remember("g" + text);
}

/// The persistent id of the tensor's storage: ("storage", class, number, device, elements).
void Pickler::write_storage(const at::Tensor& tensor, const std::string& type) {
  const c10::Storage storage = tensor.storage();
  const c10::ScalarType dtype = type.empty() ? c10::kByte : tensor.scalar_type();
  const auto [place, is_new] =
      storage_numbers_.try_emplace(storage.unsafeGetStorageImpl(), storages_.size(), tensor.scalar_type());
  if (is_new) storages_.push_back(storage);
  TORCH_CHECK_VALUE(place->second.second == tensor.scalar_type(), "torch_save: one storage is used as ",
                    place->second.second, " and as ", tensor.scalar_type(),
                    ", which the format does not support. Clone one of the tensors.");
  opcode('(');
  write_string("storage");
  write_global(type.empty() ? "torch.storage" : "torch", type.empty() ? "UntypedStorage" : type);
  write_string(std::to_string(place->second.first));
  write_string(tensor.device().str());
  write_integer(static_cast<int64_t>(storage.nbytes() / c10::elementSize(dtype)));
  out_ += "tQ";
}

void Pickler::write_tensor(const at::Tensor& given) {
  check_writable(given);
  const at::Tensor tensor = given.is_conj() || given.is_neg() ? given.resolve_conj().resolve_neg() : given;
  const std::string type = storage_class(tensor.scalar_type());
  write_global("torch._utils", type.empty() ? "_rebuild_tensor_v3" : "_rebuild_tensor_v2");
  opcode('(');
  write_storage(tensor, type);
  write_integer(tensor.storage_offset());
  write_integers(tensor.sizes());
  write_integers(tensor.strides());
  opcode(tensor.requires_grad() ? '\x88' : '\x89');
  write_global("collections", "OrderedDict");
  out_ += ")R";
  if (type.empty()) write_global("torch", dtype_name(tensor.scalar_type()));
  out_ += "tR";
}

}  // namespace bellows::io
