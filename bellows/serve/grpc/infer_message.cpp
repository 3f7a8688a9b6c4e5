#include "bellows/serve/grpc/infer_message_impl.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <utility>

#include "bellows/serve/protocol/request_builder.h"
#include "bellows/serve/request_error.h"
#include "bellows/serve/tensor_types.h"

namespace bellows::serve {

namespace {

using inference::InferParameter;
using inference::InferTensorContents;
using Parameters = google::protobuf::Map<std::string, InferParameter>;
using InputMessage = inference::ModelInferRequest::InferInputTensor;
using OutputMessage = inference::ModelInferRequest::InferRequestedOutputTensor;

const InferParameter* parameter(const Parameters& parameters, const char* key) {
  const auto found = parameters.find(key);
  return found == parameters.end() ? nullptr : &found->second;
}

uint64_t count_of(const InferParameter& parameter, const std::string& what) {
  if (parameter.has_uint64_param()) return parameter.uint64_param();
  require(parameter.has_int64_param() && parameter.int64_param() >= 0, what,
          ": expected an int64_param or uint64_param of at least 0.");
  return static_cast<uint64_t>(parameter.int64_param());
}

uint64_t count_or_zero(const Parameters& parameters, const char* key, const std::string& of) {
  const InferParameter* value = parameter(parameters, key);
  return value ? count_of(*value, of + ": parameters: " + key) : 0;
}

/// Returns the part of a region that the parameters name, or nothing.
RegionPart shared_part(const Parameters& parameters, const SharedMemory* memory, const std::string& what) {
  const InferParameter* region = parameter(parameters, "shared_memory_region");
  if (!region) return {};
  if (!memory)
    throw RequestError(status_unsupported, what + ": shared memory is not supported. Send the values in the request.");
  require(region->has_string_param(), what, ": parameters: shared_memory_region: expected a string_param.");
  const InferParameter* size = parameter(parameters, "shared_memory_byte_size");
  require(size, what, ": missing the parameter shared_memory_byte_size.");
  return memory->part(what, region->string_param(), count_or_zero(parameters, "shared_memory_offset", what),
                      count_of(*size, what + ": parameters: shared_memory_byte_size"));
}

/// Copies the elements of a field with values of one type.
template <class Value, class Field>
at::Tensor copied(const std::string& what, const std::vector<int64_t>& shape, int64_t count, c10::ScalarType dtype,
                  const Field& field, const char* field_name) {
  require(field.size() == count, what, ": the shape ", shape_text(shape), " has ", count, " elements, but contents.",
          field_name, " has ", field.size(), ". Values of the type ", type_name(dtype), " must be in this field.");
  at::Tensor tensor = at::empty(shape, dtype);
  auto* to = static_cast<Value*>(tensor.mutable_data_ptr());
  for (const auto value : field) {
    if constexpr (std::is_integral_v<Value> && sizeof(Value) < sizeof(value))
      require(std::in_range<Value>(value), what, ": ", value, " is out of the range of ", type_name(dtype), ".");
    *to++ = static_cast<Value>(value);
  }
  return tensor;
}

at::Tensor from_contents(const std::string& what, const std::vector<int64_t>& shape, int64_t count,
                         c10::ScalarType dtype, const InferTensorContents& from) {
  using c10::ScalarType;
  switch (dtype) {
    case ScalarType::Bool:
      return copied<bool>(what, shape, count, dtype, from.bool_contents(), "bool_contents");
    case ScalarType::Char:
      return copied<int8_t>(what, shape, count, dtype, from.int_contents(), "int_contents");
    case ScalarType::Short:
      return copied<int16_t>(what, shape, count, dtype, from.int_contents(), "int_contents");
    case ScalarType::Int:
      return copied<int32_t>(what, shape, count, dtype, from.int_contents(), "int_contents");
    case ScalarType::Long:
      return copied<int64_t>(what, shape, count, dtype, from.int64_contents(), "int64_contents");
    case ScalarType::Byte:
      return copied<uint8_t>(what, shape, count, dtype, from.uint_contents(), "uint_contents");
    case ScalarType::UInt16:
      return copied<uint16_t>(what, shape, count, dtype, from.uint_contents(), "uint_contents");
    case ScalarType::UInt32:
      return copied<uint32_t>(what, shape, count, dtype, from.uint_contents(), "uint_contents");
    case ScalarType::UInt64:
      return copied<uint64_t>(what, shape, count, dtype, from.uint64_contents(), "uint64_contents");
    case ScalarType::Float:
      return copied<float>(what, shape, count, dtype, from.fp32_contents(), "fp32_contents");
    case ScalarType::Double:
      return copied<double>(what, shape, count, dtype, from.fp64_contents(), "fp64_contents");
    default:
      throw RequestError(status_bad_request, c10::str(what, ": contents has no field for the type ", type_name(dtype),
                                                      ". Send the values in raw_input_contents."));
  }
}

/// Reads one request.
class MessageReader {
 public:
  MessageReader(std::shared_ptr<const InferMessage> message, const ModelSignature& model, const SharedMemory* memory)
      : message_(std::move(message)), model_(model), memory_(memory), builder_(model) {}

  InferRequest read() {
    const inference::ModelInferRequest& message = **message_;
    builder_.request().id = message.id();
    read_parameters(message.parameters());
    for (const InputMessage& input : message.inputs()) {
      const size_t index = builder_.input_named(input.name());
      if (model_.inputs[index].dtype == bytes_dtype)
        builder_.set_bytes(index, read_bytes(input, index));
      else
        builder_.set_input(index, read_input(input, index));
    }
    require(raw_ == message.raw_input_contents_size(), "raw_input_contents has ", message.raw_input_contents_size(),
            " elements, but ", raw_, " inputs are not in shared memory.");
    builder_.check_complete();
    for (const OutputMessage& output : message.outputs()) read_output(output);
    builder_.complete_outputs(/*binary=*/true);
    return std::move(builder_.request());
  }

 private:
  void read_parameters(const Parameters& parameters) {
    builder_.request().priority = count_or_zero(parameters, "priority", "request");
    builder_.request().timeout_us = count_or_zero(parameters, "timeout", "request");
    const InferParameter* sequence = parameter(parameters, "sequence_id");
    if (!sequence || (sequence->has_string_param() && sequence->string_param().empty())) return;
    const auto is_true = [&](const char* key) {
      const InferParameter* value = parameter(parameters, key);
      require(!value || value->has_bool_param(), "request: parameters: ", key, ": expected a bool_param.");
      return value && value->bool_param();
    };
    builder_.request().sequence = {.id = count_of(*sequence, "request: parameters: sequence_id"),
                                   .start = is_true("sequence_start"),
                                   .end = is_true("sequence_end")};
  }

  BytesTensor read_bytes(const InputMessage& input, size_t index) {
    const std::string what = input_text(model_.inputs[index]);
    BytesTensor tensor{.sizes = {input.shape().begin(), input.shape().end()}};
    const int64_t count = builder_.check_input(index, input.datatype(), tensor.sizes);
    require(!shared_part(input.parameters(), memory_, what), what,
            ": BYTES tensors are not read from shared memory. Send the values.");
    if (const std::string* raw = take_raw(input, what)) {
      tensor.values = decode_bytes(what, *raw, count);
      return tensor;
    }
    const auto& values = input.contents().bytes_contents();
    require(values.size() == count, what, ": the shape ", shape_text(tensor.sizes), " has ", count,
            " elements, but contents.bytes_contents has ", values.size(), ".");
    tensor.values.assign(values.begin(), values.end());
    return tensor;
  }

  at::Tensor read_input(const InputMessage& input, size_t index) {
    const TensorSpec& spec = model_.inputs[index];
    const std::string what = input_text(spec);
    const std::vector<int64_t> shape(input.shape().begin(), input.shape().end());
    const int64_t count = builder_.check_input(index, input.datatype(), shape);
    if (const RegionPart part = shared_part(input.parameters(), memory_, what)) {
      require(!input.has_contents(), what, " has values in the request and in shared memory.");
      check_data_size(what, shape, count, spec.dtype, part.bytes, "shared_memory_byte_size");
      return read_shared_input(what, shape, spec.dtype, part);
    }
    const std::string* raw = take_raw(input, what);
    return raw ? read_raw(what, shape, count, spec.dtype, *raw)
               : from_contents(what, shape, count, spec.dtype, input.contents());
  }

  /// Returns the element of raw_input_contents for the next input without shared memory, or null if the message has no
  /// such elements.
  const std::string* take_raw(const InputMessage& input, const std::string& what) {
    const auto& raw = (*message_)->raw_input_contents();
    if (raw.empty()) return nullptr;
    require(!input.has_contents(), what, ": contents must not be used together with raw_input_contents.");
    require(raw_ < raw.size(), what, ": raw_input_contents has only ", raw.size(), " elements.");
    return &raw[raw_++];
  }

  /// The tensor refers to the message if its elements are aligned as those of libtorch's allocations for small tensors.
  at::Tensor read_raw(const std::string& what, const std::vector<int64_t>& shape, int64_t count, c10::ScalarType dtype,
                      const std::string& bytes) {
    check_data_size(what, shape, count, dtype, bytes.size(), "the size of its element of raw_input_contents");
    constexpr uintptr_t alignment = 16;
    at::Tensor tensor;
    if (bytes.empty() || reinterpret_cast<uintptr_t>(bytes.data()) % alignment != 0) {
      tensor = at::empty(shape, dtype);
      if (!bytes.empty()) std::memcpy(tensor.mutable_data_ptr(), bytes.data(), bytes.size());
    } else {
      // The message belongs to this request, so the model may change it, as any of its inputs.
      tensor = at::from_blob(
          const_cast<char*>(bytes.data()), shape, [owner = message_](void*) {}, dtype);
    }
    check_booleans(what, tensor);
    return tensor;
  }

  void read_output(const OutputMessage& output) {
    RequestedOutput wanted = builder_.output_named(output.name());
    wanted.binary = true;
    const std::string what = "output \"" + output.name() + "\"";
    wanted.shared = shared_part(output.parameters(), memory_, what);
    set_classes(wanted, what, count_or_zero(output.parameters(), "classification", what));
    builder_.add_output(std::move(wanted));
  }

  const std::shared_ptr<const InferMessage> message_;
  const ModelSignature& model_;
  const SharedMemory* memory_;
  RequestBuilder builder_;
  int raw_ = 0;  ///< elements of raw_input_contents that are used
};

}  // namespace

InferRequest read_infer_message(const std::shared_ptr<const InferMessage>& message, const ModelSignature& model,
                                const SharedMemory* memory) {
  return MessageReader(message, model, memory).read();
}

}  // namespace bellows::serve
