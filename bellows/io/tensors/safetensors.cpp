#include "bellows/io/tensors/safetensors.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <nlohmann/json.hpp>
#include <numeric>

#include "bellows/core/error.h"

namespace bellows::io {

namespace {

constexpr const char* kMemoryFormatKey = "bellows.memory_format";

struct SafetensorsDtype {
  std::string_view name;
  c10::ScalarType dtype;
};

constexpr std::array kTorchDtypes{
    SafetensorsDtype{"BOOL", c10::kBool},
    SafetensorsDtype{"U8", c10::kByte},
    SafetensorsDtype{"I8", c10::kChar},
    SafetensorsDtype{"F8_E5M2", c10::kFloat8_e5m2},
    SafetensorsDtype{"F8_E4M3", c10::kFloat8_e4m3fn},
    SafetensorsDtype{"F8_E8M0", c10::kFloat8_e8m0fnu},
    SafetensorsDtype{"F8_E4M3FNUZ", c10::kFloat8_e4m3fnuz},
    SafetensorsDtype{"F8_E5M2FNUZ", c10::kFloat8_e5m2fnuz},
    SafetensorsDtype{"I16", c10::kShort},
    SafetensorsDtype{"U16", c10::kUInt16},
    SafetensorsDtype{"F16", c10::kHalf},
    SafetensorsDtype{"BF16", c10::kBFloat16},
    SafetensorsDtype{"I32", c10::kInt},
    SafetensorsDtype{"U32", c10::kUInt32},
    SafetensorsDtype{"F32", c10::kFloat},
    SafetensorsDtype{"C64", c10::kComplexFloat},
    SafetensorsDtype{"F64", c10::kDouble},
    SafetensorsDtype{"I64", c10::kLong},
    SafetensorsDtype{"U64", c10::kUInt64},
};

std::string format_dtype(const std::string& name, const at::Tensor& tensor) {
  const std::string_view dtype = safetensors_dtype_name(tensor.scalar_type());
  TORCH_CHECK_VALUE(!dtype.empty(), "save_safetensors: \"", name, "\" has dtype ", tensor.scalar_type(),
                    ", which the format does not support.");
  return std::string(dtype);
}

/// "channels_last" or "channels_last_3d" if the tensor has that memory format and is not row-major; else "".
std::string_view memory_format_of(const at::Tensor& tensor) {
  if (tensor.is_contiguous()) return "";
  if (tensor.dim() == 4 && tensor.is_contiguous(c10::MemoryFormat::ChannelsLast)) return "channels_last";
  if (tensor.dim() == 5 && tensor.is_contiguous(c10::MemoryFormat::ChannelsLast3d)) return "channels_last_3d";
  return "";
}

at::Tensor with_memory_format(const at::Tensor& tensor, std::string_view format) {
  if (format == "channels_last" && tensor.dim() == 4) return tensor.contiguous(c10::MemoryFormat::ChannelsLast);
  if (format == "channels_last_3d" && tensor.dim() == 5) return tensor.contiguous(c10::MemoryFormat::ChannelsLast3d);
  return tensor;
}

/// The entry that save_safetensors writes, or {} if there is none or another program wrote it.
nlohmann::json read_note(const SafetensorsMetadata& metadata) {
  for (const auto& [key, value] : metadata) {
    if (key != kMemoryFormatKey) continue;
    nlohmann::json note = nlohmann::json::parse(value, nullptr, false);
    if (note.is_object()) return note;
  }
  return nlohmann::json::object();
}

struct PlannedTensor {
  SafetensorsEntry entry;
  const at::Tensor* tensor;
};

/// Lists the tensors in the official order; checks each of them before the file is opened.
std::vector<PlannedTensor> plan_tensors(const NamedTensors& tensors) {
  std::vector<PlannedTensor> planned;
  for (const auto& [name, tensor] : tensors) {
    TORCH_CHECK_VALUE(name != "__metadata__", "save_safetensors: \"__metadata__\" cannot be the name of a tensor.");
    TORCH_CHECK_VALUE(
        tensor.defined() && tensor.layout() == c10::kStrided && !tensor.is_quantized() && !tensor.is_meta(),
        "save_safetensors: expected a dense tensor with data for \"", name, "\", found ",
        tensor.defined() ? tensor.toString() : "an undefined tensor", ".");
    planned.push_back({{.name = name, .dtype = format_dtype(name, tensor), .shape = tensor.sizes().vec()}, &tensor});
  }
  const auto before = [](const PlannedTensor& a, const PlannedTensor& b) {
    return safetensors_before(a.entry, b.entry);
  };
  std::sort(planned.begin(), planned.end(), before);
  std::vector<std::string_view> names;
  for (const PlannedTensor& item : planned) names.push_back(item.entry.name);
  std::sort(names.begin(), names.end());
  const auto twice = std::adjacent_find(names.begin(), names.end());
  TORCH_CHECK_VALUE(twice == names.end(), "save_safetensors: the name \"", *twice, "\" occurs twice.");
  uint64_t at = 0;
  for (PlannedTensor& item : planned) {
    item.entry.begin = at;
    item.entry.end = at += item.tensor->numel() * item.tensor->element_size();
  }
  return planned;
}

}  // namespace

c10::ScalarType safetensors_dtype(const SafetensorsEntry& entry, const std::string& where) {
  for (const SafetensorsDtype& row : kTorchDtypes) {
    if (row.name == entry.dtype) return row.dtype;
  }
  TORCH_CHECK_VALUE(false, where, ": ", printable(entry.name, 200), " has dtype ", entry.dtype,
                    ", which libtorch does not support.");
}

std::string_view safetensors_dtype_name(c10::ScalarType dtype) {
  for (const SafetensorsDtype& row : kTorchDtypes) {
    if (row.dtype == dtype) return row.name;
  }
  return "";
}

SafetensorsFile::SafetensorsFile(const std::string& path)
    : file_(path), header_(parse_safetensors_header(file_.bytes(), path)) {}

ByteSpan SafetensorsFile::bytes(const SafetensorsEntry& entry) const {
  file_.check_size();
  return file_.bytes().subspan(entry.begin, entry.end - entry.begin);
}

at::Tensor SafetensorsFile::tensor(const SafetensorsEntry& entry) const {
  const at::Tensor tensor = at::empty(entry.shape, at::TensorOptions().dtype(safetensors_dtype(entry, file_.path())));
  const ByteSpan data = bytes(entry);
  if (!data.empty()) std::memcpy(tensor.data_ptr(), data.data(), data.size());
  return tensor;
}

at::Tensor SafetensorsFile::tensor(std::string_view name) const {
  std::vector<std::string> names;
  for (const SafetensorsEntry& entry : entries()) {
    if (entry.name == name) return tensor(entry);
    names.push_back(entry.name);
  }
  TORCH_CHECK_VALUE(false, file_.path(), ": no tensor has the name ", printable(name, 200), "; the file has ",
                    names.size(), ".", did_you_mean(name, names));
}

NamedTensors load_safetensors(const std::string& path) {
  const SafetensorsFile file(path);
  const nlohmann::json note = read_note(file.metadata());
  NamedTensors result;
  result.reserve(file.entries().size());
  for (const SafetensorsEntry& entry : file.entries()) {
    at::Tensor tensor = file.tensor(entry);
    const auto noted = note.find(entry.name);
    if (noted != note.end() && noted->is_string())
      tensor = with_memory_format(tensor, noted->get_ref<const std::string&>());
    result.emplace_back(entry.name, std::move(tensor));
  }
  return result;
}

void save_safetensors(const std::string& path, const NamedTensors& tensors, const SafetensorsOptions& options) {
  const std::vector<PlannedTensor> planned = plan_tensors(tensors);
  std::vector<SafetensorsEntry> entries;
  nlohmann::json note = nlohmann::json::object();
  for (const PlannedTensor& item : planned) {
    entries.push_back(item.entry);
    const std::string_view format = memory_format_of(*item.tensor);
    if (options.keep_memory_format && !format.empty()) note[item.entry.name] = format;
  }
  SafetensorsMetadata metadata;
  for (const auto& [key, value] : options.metadata) {
    if (key != kMemoryFormatKey) metadata.emplace_back(key, value);
  }
  if (!note.empty())
    metadata.emplace_back(kMemoryFormatKey, note.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  const std::string header = make_safetensors_header(entries, metadata);
  AtomicFile file(path);
  file.write(header);
  for (const PlannedTensor& item : planned) {
    const at::Tensor dense = item.tensor->detach().cpu().resolve_conj().resolve_neg().contiguous();
    file.write(ByteSpan(static_cast<const std::byte*>(dense.const_data_ptr()), static_cast<size_t>(dense.nbytes())));
  }
  file.commit();
}

}  // namespace bellows::io
