#include <c10/util/Exception.h>

#include "bellows/io/tensors/safetensors.h"
#include "bellows/io/tensors/torch_file.h"
#include "bellows/system/file.h"

namespace bellows::io {

namespace {

bool is_tensor_dict(const PickleValue& value) {
  if (!value.is_dict() || value.size() == 0) return false;
  for (const auto& [name, element] : value.items()) {
    if (!name.is_string() || !element.is_tensor()) return false;
  }
  return true;
}

std::string first_keys(const PickleValue& dict) {
  std::string text;
  size_t shown = 0;
  for (const auto& [key, element] : dict.items()) {
    if (shown++ == 8) return text + ", …";
    text += (text.empty() ? "" : ", ") + (key.is_string() ? printable(key.as_string()) : key.describe()) + ": " +
            element.describe();
  }
  return text;
}

NamedTensors flatten(const PickleValue& value, const std::string& path) {
  TORCH_CHECK_VALUE(value.is_dict(), path, ": expected a dict of tensors, found ", value.describe(),
                    ". torch_load reads any value.");
  const PickleValue* tensors = is_tensor_dict(value) || value.size() == 0 ? &value : nullptr;
  for (const char* key : {"state_dict", "model_state_dict", "model", "weights"}) {
    if (tensors) break;
    const PickleValue* nested = value.find(key);
    if (nested && is_tensor_dict(*nested)) tensors = nested;
  }
  TORCH_CHECK_VALUE(tensors, path,
                    ": expected a dict of tensors, at the top or under \"state_dict\", \"model_state_dict\", ",
                    "\"model\" or \"weights\"; found ", value.describe(), ": ", first_keys(value),
                    ". Pick the part you want with torch_load.");
  NamedTensors result;
  for (const auto& [name, element] : tensors->items()) result.emplace_back(name.as_string(), element.as_tensor());
  return result;
}

/// A safetensors file begins with the length of its header, and the header with a brace.
bool looks_like_safetensors(ByteSpan bytes) {
  return bytes.size() > 8 && static_cast<char>(bytes[8]) == '{';
}

}  // namespace

NamedTensors load_tensors(const std::string& path) {
  const MappedFile file(path);
  if (as_text(file.bytes()).starts_with("PK")) return flatten(torch_load_bytes(file.bytes(), path), path);
  TORCH_CHECK_VALUE(looks_like_safetensors(file.bytes()), path, ": expected a safetensors or a torch.save file, found ",
                    describe_content(file.bytes()), ".");
  return load_safetensors(path);
}

}  // namespace bellows::io
