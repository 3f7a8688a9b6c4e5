#include <ATen/core/Tensor.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <numeric>
#include <type_traits>

#include "bellows/report/json_text.h"
#include "bellows/serve/request_error.h"
#include "bellows/serve/tensor_types.h"
#include "bellows/serve/v2_protocol.h"

namespace bellows::serve {

namespace {

template <class Value>
void append_number(std::string& json, Value value) {
  if constexpr (std::is_floating_point_v<Value>) {
    // Triton writes these values in the same way, and Python's parser reads them.
    if (std::isnan(value)) return void(json += "NaN");
    if (std::isinf(value)) return void(json += value < 0 ? "-Infinity" : "Infinity");
  }
  std::array<char, 32> text;
  json.append(text.data(), std::to_chars(text.data(), text.data() + text.size(), value).ptr);
}

template <class Value>
void append_values(std::string& json, const at::Tensor& tensor) {
  const auto* data = static_cast<const Value*>(tensor.const_data_ptr());
  const int64_t count = tensor.numel();
  json.reserve(json.size() + static_cast<size_t>(count) * 12);
  for (int64_t i = 0; i < count; ++i) {
    if (i > 0) json += ',';
    if constexpr (std::is_same_v<Value, bool>)
      json += data[i] ? "true" : "false";
    else
      append_number(json, data[i]);
  }
}

void append_data(std::string& json, const TensorSpec& spec, const at::Tensor& tensor) {
  using c10::ScalarType;
  switch (tensor.scalar_type()) {
    case ScalarType::Bool:
      return append_values<bool>(json, tensor);
    case ScalarType::Byte:
      return append_values<uint8_t>(json, tensor);
    case ScalarType::UInt16:
      return append_values<uint16_t>(json, tensor);
    case ScalarType::UInt32:
      return append_values<uint32_t>(json, tensor);
    case ScalarType::UInt64:
      return append_values<uint64_t>(json, tensor);
    case ScalarType::Char:
      return append_values<int8_t>(json, tensor);
    case ScalarType::Short:
      return append_values<int16_t>(json, tensor);
    case ScalarType::Int:
      return append_values<int32_t>(json, tensor);
    case ScalarType::Long:
      return append_values<int64_t>(json, tensor);
    case ScalarType::Float:
      return append_values<float>(json, tensor);
    case ScalarType::Double:
      return append_values<double>(json, tensor);
    default:
      throw RequestError(status_bad_request,
                         c10::str("output \"", spec.name, "\": JSON text cannot contain ", type_name(spec.dtype),
                                  ". Request the output with the parameter binary_data."));
  }
}

template <class Value>
double number_at(const at::Tensor& tensor, int64_t index) {
  return static_cast<double>(static_cast<const Value*>(tensor.const_data_ptr())[index]);
}

double value_at(const at::Tensor& tensor, int64_t index) {
  using c10::ScalarType;
  switch (tensor.scalar_type()) {
    case ScalarType::Bool:
      return number_at<bool>(tensor, index);
    case ScalarType::Byte:
      return number_at<uint8_t>(tensor, index);
    case ScalarType::UInt16:
      return number_at<uint16_t>(tensor, index);
    case ScalarType::UInt32:
      return number_at<uint32_t>(tensor, index);
    case ScalarType::UInt64:
      return number_at<uint64_t>(tensor, index);
    case ScalarType::Char:
      return number_at<int8_t>(tensor, index);
    case ScalarType::Short:
      return number_at<int16_t>(tensor, index);
    case ScalarType::Int:
      return number_at<int32_t>(tensor, index);
    case ScalarType::Long:
      return number_at<int64_t>(tensor, index);
    case ScalarType::Half:
      return number_at<c10::Half>(tensor, index);
    case ScalarType::BFloat16:
      return number_at<c10::BFloat16>(tensor, index);
    case ScalarType::Double:
      return number_at<double>(tensor, index);
    default:
      return number_at<float>(tensor, index);
  }
}

}  // namespace

ClassTexts class_texts(const TensorSpec& spec, const at::Tensor& tensor, int64_t count, bool batched) {
  const int64_t rows = batched ? tensor.size(0) : 1, width = rows == 0 ? 0 : tensor.numel() / rows;
  count = std::min(count, width);
  ClassTexts classes{.shape = batched ? std::vector<int64_t>{rows, count} : std::vector<int64_t>{count}};
  std::vector<int64_t> order(static_cast<size_t>(width));
  for (int64_t row = 0; row < rows; ++row) {
    std::iota(order.begin(), order.end(), int64_t{0});
    const auto rank = [&](int64_t index) {
      const double value = value_at(tensor, row * width + index);
      return std::isnan(value) ? -INFINITY : value;  // a NaN would break the order
    };
    std::partial_sort(order.begin(), order.begin() + count, order.end(), [&](int64_t a, int64_t b) {
      const double left = rank(a), right = rank(b);
      return left != right ? left > right : a < b;
    });
    for (int64_t i = 0; i < count; ++i) {
      const auto index = order[static_cast<size_t>(i)];
      std::array<char, 64> value;
      std::snprintf(value.data(), value.size(), "%f", value_at(tensor, row * width + index));
      const bool named = static_cast<size_t>(index) < spec.labels.size();
      classes.texts.push_back(std::string(value.data()) + ":" + std::to_string(index) +
                              (named ? ":" + spec.labels[static_cast<size_t>(index)] : ""));
    }
  }
  return classes;
}

void ClassTexts::append_bytes(std::string& data) const {
  encode_bytes(data, texts);
}

void check_output_count(const ModelSignature& model, std::span<const at::Tensor> outputs) {
  if (outputs.size() != model.outputs.size())
    throw RequestError(status_internal, c10::str("model \"", model.name, "\" returned ", outputs.size(),
                                                 " outputs, expected ", model.outputs.size(), "."));
}

void check_output(const ModelSignature& model, const TensorSpec& spec, const at::Tensor& given) {
  const auto fail = [&](const std::string& what) {
    throw RequestError(status_internal,
                       "model \"" + model.name + "\" returned the output \"" + spec.name + "\" " + what);
  };
  if (!given.defined() || !given.device().is_cpu()) fail("without values on the CPU.");
  if (given.scalar_type() != spec.dtype)
    fail(c10::str("with the dtype ", given.scalar_type(), ", but its configuration states ", type_name(spec.dtype),
                  "."));
  check_output_sizes(model, spec, {given.sizes().data(), given.sizes().size()});
}

void check_output_sizes(const ModelSignature& model, const TensorSpec& spec, std::span<const int64_t> sizes) {
  const bool batched = model.max_batch_size > 0;
  if (sizes_fit(spec, batched, sizes)) return;
  throw RequestError(
      status_internal,
      c10::str("model \"", model.name, "\" returned the output \"", spec.name, "\" with the shape ", shape_text(sizes),
               ", but its configuration states ", shape_text(spec.dims), batched ? " after the batch axis." : "."));
}

void check_bytes_output(const ModelSignature& model, const TensorSpec& spec, const RequestedOutput& wanted,
                        const BytesTensor& given) {
  check_output_sizes(model, spec, given.sizes);
  if (wanted.classes > 0 || wanted.shared)
    throw RequestError(status_bad_request, "output \"" + spec.name +
                                               "\": a BYTES tensor has no classes, and is not sent through shared "
                                               "memory. Request the output without these parameters.");
}

void write_shared_output(const TensorSpec& spec, const at::Tensor& tensor, const RegionPart& part) {
  if (tensor.nbytes() > part.bytes)
    throw RequestError(status_bad_request, c10::str("output \"", spec.name, "\" has ", tensor.nbytes(),
                                                    " bytes, but shared_memory_byte_size is ", part.bytes, "."));
  if (tensor.nbytes() > 0) part.region->write(part.offset, tensor.const_data_ptr(), tensor.nbytes());
}

namespace {

/// Writes one response.
class Writer {
 public:
  Writer(const ModelSignature& model, const std::string& id) : model_(model) {
    json_ = "{";
    if (!id.empty()) {
      json_ += "\"id\":";
      append_json_string(json_, id);
      json_ += ',';
    }
    json_ += "\"model_name\":";
    append_json_string(json_, model.name);
    json_ += ",\"model_version\":";
    append_json_string(json_, model.version);
    json_ += ",\"outputs\":[";
  }

  void add(const RequestedOutput& wanted, const at::Tensor& given) {
    const TensorSpec& spec = model_.outputs[wanted.index];
    check_output(model_, spec, given);
    const at::Tensor tensor = given.contiguous();
    if (json_.back() == '}') json_ += ',';
    if (wanted.classes > 0) return add_classes(spec, tensor, wanted);
    begin(spec, type_name(spec.dtype), {tensor.sizes().data(), tensor.sizes().size()});
    if (wanted.shared) {
      write_shared_output(spec, tensor, wanted.shared);
      shared(wanted.shared, tensor.nbytes());
    } else if (wanted.binary) {
      binary(tensor.nbytes());
      const auto* data = static_cast<const char*>(tensor.const_data_ptr());
      if (tensor.nbytes() > 0) data_.append(data, tensor.nbytes());
    } else {
      json_ += ",\"data\":[";
      append_data(json_, spec, tensor);
      json_ += "]}";
    }
  }

  void add(const RequestedOutput& wanted, const BytesTensor& given) {
    const TensorSpec& spec = model_.outputs[wanted.index];
    check_bytes_output(model_, spec, wanted, given);
    if (json_.back() == '}') json_ += ',';
    begin(spec, type_name(spec.dtype), given.sizes);
    add_texts(given.values, wanted.binary);
  }

  InferResponse finish() {
    json_ += "]}";
    InferResponse response;
    if (any_binary_) response.header_bytes = json_.size();
    response.body = std::move(json_);
    response.body += data_;
    return response;
  }

 private:
  void begin(const TensorSpec& spec, std::string_view datatype, std::span<const int64_t> shape) {
    json_ += "{\"name\":";
    append_json_string(json_, spec.name);
    json_.append(",\"datatype\":\"").append(datatype).append("\",\"shape\":[");
    for (size_t i = 0; i < shape.size(); ++i) {
      if (i > 0) json_ += ',';
      append_number(json_, shape[i]);
    }
    json_ += ']';
  }

  void binary(size_t size) {
    any_binary_ = true;
    json_ += ",\"parameters\":{\"binary_data_size\":" + std::to_string(size) + "}}";
  }

  void shared(const RegionPart& part, size_t size) {
    json_ += ",\"parameters\":{\"shared_memory_region\":";
    append_json_string(json_, part.region->name());
    json_ += ",\"shared_memory_offset\":" + std::to_string(part.offset) +
             ",\"shared_memory_byte_size\":" + std::to_string(size) + "}}";
  }

  void add_classes(const TensorSpec& spec, const at::Tensor& tensor, const RequestedOutput& wanted) {
    const ClassTexts classes = class_texts(spec, tensor, wanted.classes, model_.max_batch_size > 0);
    begin(spec, type_name(bytes_dtype), classes.shape);
    add_texts(classes.texts, wanted.binary);
  }

  void add_texts(const std::vector<std::string>& texts, bool as_binary) {
    if (as_binary) {
      const size_t before = data_.size();
      encode_bytes(data_, texts);
      return binary(data_.size() - before);
    }
    json_ += ",\"data\":[";
    for (size_t i = 0; i < texts.size(); ++i) {
      if (i > 0) json_ += ',';
      append_json_string(json_, texts[i]);
    }
    json_ += "]}";
  }

  const ModelSignature& model_;
  std::string json_, data_{};
  bool any_binary_ = false;
};

}  // namespace

InferResponse format_infer_response(const ModelSignature& model, const std::string& id,
                                    std::span<const RequestedOutput> requested, std::span<const at::Tensor> outputs,
                                    const BytesTensors& bytes) {
  check_output_count(model, outputs);
  Writer writer(model, id);
  for (const RequestedOutput& wanted : requested) {
    if (wanted.index < bytes.size() && bytes[wanted.index])
      writer.add(wanted, *bytes[wanted.index]);
    else
      writer.add(wanted, outputs[wanted.index]);
  }
  return writer.finish();
}

void append_json_string(std::string& json, std::string_view text) {
  const bool plain = std::ranges::all_of(text, [](char c) { return c >= ' ' && c < 127 && c != '"' && c != '\\'; });
  if (plain)
    json.append("\"").append(text).append("\"");
  else
    json += json_text(nlohmann::json(std::string(text)));
}

std::string error_json(std::string_view message) {
  std::string json = "{\"error\":";
  append_json_string(json, message);
  return json + "}";
}

}  // namespace bellows::serve
