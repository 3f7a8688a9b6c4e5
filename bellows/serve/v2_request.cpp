#include <ATen/ops/empty.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>
#include <c10/util/StringUtil.h>
#include <simdjson.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#include "bellows/serve/protocol/request_builder.h"
#include "bellows/serve/request_error.h"
#include "bellows/serve/tensor_types.h"
#include "bellows/serve/v2_protocol.h"

namespace bellows::serve {

namespace {

namespace dom = simdjson::dom;

template <class... Parts>
[[noreturn]] void reject(const Parts&... parts) {
  throw RequestError(status_bad_request, c10::str(parts...));
}

const char* type_text(dom::element_type type) {
  switch (type) {
    case dom::element_type::ARRAY:
      return "an array";
    case dom::element_type::OBJECT:
      return "an object";
    case dom::element_type::INT64:
      return "an integer";
    case dom::element_type::UINT64:
      return "an integer above 2^63 - 1";
    case dom::element_type::DOUBLE:
      return "a fraction";
    case dom::element_type::STRING:
      return "a string";
    case dom::element_type::BOOL:
      return "a boolean";
    case dom::element_type::NULL_VALUE:
      return "null";
  }
  return "another value";
}

/// Members of JSON objects, with errors that name the member.
dom::element required_member(dom::object object, const char* key, const std::string& of) {
  dom::element value;
  require(object.at_key(key).get(value) == simdjson::SUCCESS, of, ": missing \"", key, "\".");
  return value;
}

std::optional<dom::element> member(dom::object object, const char* key) {
  dom::element value;
  if (object.at_key(key).get(value) != simdjson::SUCCESS || value.is_null()) return std::nullopt;
  return value;
}

template <class Type>
Type as(dom::element value, const std::string& what, const char* expected) {
  Type result{};
  require(value.get(result) == simdjson::SUCCESS, what, ": expected ", expected, ", got ", type_text(value.type()),
          ".");
  return result;
}

std::string_view string_of(dom::element value, const std::string& what) {
  return as<std::string_view>(value, what, "a string");
}
bool bool_of(dom::element value, const std::string& what) {
  return as<bool>(value, what, "true or false");
}
uint64_t count_of(dom::element value, const std::string& what) {
  return as<uint64_t>(value, what, "an integer of at least 0");
}
dom::array array_of(dom::element value, const std::string& what) {
  return as<dom::array>(value, what, "an array");
}
dom::object object_of(dom::element value, const std::string& what) {
  return as<dom::object>(value, what, "an object");
}

/// Reads the parameters of the request, an input or an output.
std::optional<dom::object> parameters_of(dom::object object, const std::string& of) {
  const auto value = member(object, "parameters");
  if (!value) return std::nullopt;
  return object_of(*value, of + ": parameters");
}

/// Fills a tensor with the elements of an array, which is flat or nested like the shape.
template <class Value>
class Filling {
 public:
  Filling(const std::string& what, c10::ScalarType dtype, std::span<const int64_t> shape, Value* to, int64_t count)
      : what_(what), dtype_(dtype), shape_(shape), to_(to), count_(count) {}

  void fill(dom::array data) {
    const auto first = data.begin();
    const bool nested = first != data.end() && (*first).is_array();
    nested ? fill_nested(data, 0) : fill_flat(data);
    require(filled_ == count_, what_, ": the shape ", shape_text(shape_), " has ", count_, " elements, but data has ",
            filled_, ".");
  }

 private:
  void fill_flat(dom::array data) {
    for (const dom::element element : data) add(element);
  }
  void fill_nested(dom::array data, size_t axis) {
    int64_t size = 0;
    for (const dom::element element : data) {
      ++size;
      if (axis + 1 == shape_.size()) {
        add(element);
      } else {
        require(element.is_array(), what_, ": data is nested to different depths. Nest it like the shape ",
                shape_text(shape_), ", or not at all.");
        fill_nested(dom::array(element), axis + 1);
      }
    }
    require(size == shape_[axis], what_, ": the shape is ", shape_text(shape_), ", but an array of axis ", axis,
            " of data has ", size, " elements.");
  }

  void add(dom::element element) {
    require(filled_ < count_, what_, ": the shape ", shape_text(shape_), " has ", count_,
            " elements, but data has more.");
    to_[filled_++] = value_of(element);
  }

  Value value_of(dom::element element) const {
    if constexpr (std::is_same_v<Value, bool>) {
      return bool_of(element, what_ + ": data");
    } else if constexpr (std::is_same_v<Value, std::string>) {
      std::string_view text;
      if (element.get(text) != simdjson::SUCCESS) wrong(element, "strings");
      return std::string(text);
    } else if constexpr (std::is_floating_point_v<Value>) {
      double number = 0;
      if (element.get(number) != simdjson::SUCCESS) wrong(element, "numbers");
      const auto value = static_cast<Value>(number);
      require(std::isfinite(value), what_, ": ", number, " is out of the range of ", type_name(dtype_), ".");
      return value;
    } else {
      return integer(element);
    }
  }

  Value integer(dom::element element) const {
    if constexpr (std::is_unsigned_v<Value>) {
      uint64_t number = 0;
      if (element.get(number) == simdjson::SUCCESS && number <= std::numeric_limits<Value>::max())
        return static_cast<Value>(number);
    } else {
      int64_t number = 0;
      if (element.get(number) == simdjson::SUCCESS && number >= std::numeric_limits<Value>::min() &&
          number <= std::numeric_limits<Value>::max())
        return static_cast<Value>(number);
    }
    const bool number = element.is_int64() || element.is_uint64();
    require(!number, what_, ": ", number ? simdjson::to_string(element) : "", " is out of the range of ",
            type_name(dtype_), ".");
    wrong(element, "integers");
  }

  [[noreturn]] void wrong(dom::element element, const char* expected) const {
    reject(what_, ": data of type ", type_name(dtype_), " must consist of ", expected, ", got ",
           type_text(element.type()), ".");
  }

  const std::string& what_;
  c10::ScalarType dtype_;
  std::span<const int64_t> shape_;
  Value* to_;
  int64_t count_, filled_ = 0;
};

template <class Value>
void fill_tensor(const std::string& what, const at::Tensor& tensor, dom::array data) {
  const auto sizes = tensor.sizes();
  Filling<Value>(what, tensor.scalar_type(), {sizes.data(), sizes.size()},
                 static_cast<Value*>(tensor.mutable_data_ptr()), tensor.numel())
      .fill(data);
}

void fill_from_json(const std::string& what, const at::Tensor& tensor, dom::array data) {
  using c10::ScalarType;
  switch (tensor.scalar_type()) {
    case ScalarType::Bool:
      return fill_tensor<bool>(what, tensor, data);
    case ScalarType::Byte:
      return fill_tensor<uint8_t>(what, tensor, data);
    case ScalarType::UInt16:
      return fill_tensor<uint16_t>(what, tensor, data);
    case ScalarType::UInt32:
      return fill_tensor<uint32_t>(what, tensor, data);
    case ScalarType::UInt64:
      return fill_tensor<uint64_t>(what, tensor, data);
    case ScalarType::Char:
      return fill_tensor<int8_t>(what, tensor, data);
    case ScalarType::Short:
      return fill_tensor<int16_t>(what, tensor, data);
    case ScalarType::Int:
      return fill_tensor<int32_t>(what, tensor, data);
    case ScalarType::Long:
      return fill_tensor<int64_t>(what, tensor, data);
    case ScalarType::Float:
      return fill_tensor<float>(what, tensor, data);
    case ScalarType::Double:
      return fill_tensor<double>(what, tensor, data);
    default:
      reject(what, ": JSON text cannot contain ", type_name(tensor.scalar_type()),
             ". Send the values as a binary tensor.");
  }
}

/// Copies a binary tensor.
void fill_from_bytes(const std::string& what, const at::Tensor& tensor, std::string_view bytes) {
  if (!bytes.empty()) std::memcpy(tensor.mutable_data_ptr(), bytes.data(), bytes.size());
  check_booleans(what, tensor);
}

/// Reads one request.
class Reader {
 public:
  Reader(std::string_view body, size_t header_bytes, const ModelSignature& model, const SharedMemory* memory)
      : model_(model),
        memory_(memory),
        header_(body.substr(0, header_bytes)),
        rest_(body.substr(header_bytes)),
        builder_(model) {}

  InferRequest read() {
    dom::parser parser;
    dom::element document;
    const auto problem = parser.parse(header_.data(), header_.size()).get(document);
    require(problem == simdjson::SUCCESS, "the request is not valid JSON: ", simdjson::error_message(problem), ".");
    const dom::object object = object_of(document, "request");
    if (const auto id = member(object, "id")) builder_.request().id = string_of(*id, "id");
    read_parameters(object);
    read_inputs(object);
    require(rest_.empty(), "the binary data after the JSON text has ", rest_.size(),
            " bytes more than the sum of binary_data_size.");
    read_outputs(object);
    return std::move(builder_.request());
  }

 private:
  void read_parameters(dom::object object) {
    const auto parameters = parameters_of(object, "request");
    if (!parameters) return;
    if (const auto value = member(*parameters, "binary_data_output"))
      binary_output_ = bool_of(*value, "parameters: binary_data_output");
    if (const auto value = member(*parameters, "priority"))
      builder_.request().priority = count_of(*value, "parameters: priority");
    if (const auto value = member(*parameters, "timeout"))
      builder_.request().timeout_us = count_of(*value, "parameters: timeout");
    read_sequence(*parameters);
  }

  void read_sequence(dom::object parameters) {
    SequenceFlags& sequence = builder_.request().sequence;
    if (const auto value = member(parameters, "sequence_id"))
      sequence.id = as<uint64_t>(*value, "parameters: sequence_id", "an integer of at least 1");
    if (const auto value = member(parameters, "sequence_start"))
      sequence.start = bool_of(*value, "parameters: sequence_start");
    if (const auto value = member(parameters, "sequence_end"))
      sequence.end = bool_of(*value, "parameters: sequence_end");
  }

  void read_inputs(dom::object object) {
    for (const dom::element element : array_of(required_member(object, "inputs", "request"), "inputs")) {
      const dom::object input = object_of(element, "inputs: element");
      const size_t index =
          builder_.input_named(string_of(required_member(input, "name", "inputs: element"), "inputs: name"));
      read_input(input, index);
    }
    builder_.check_complete();
  }

  void read_input(dom::object input, size_t index) {
    const TensorSpec& spec = model_.inputs[index];
    const std::string what = input_text(spec);
    const std::string_view datatype = string_of(required_member(input, "datatype", what), what + ": datatype");
    const std::vector<int64_t> shape = read_shape(input, what);
    const int64_t count = builder_.check_input(index, datatype, shape);
    const auto parameters = parameters_of(input, what);
    const auto size = parameters ? member(*parameters, "binary_data_size") : std::nullopt;
    const auto data = member(input, "data");
    require(!size || !data, what, " has both data and binary_data_size.");
    if (const RegionPart part = read_part(parameters, what)) {
      require(!size && !data, what, " has values in the request and in shared memory.");
      require(spec.dtype != bytes_dtype, what, ": BYTES tensors are not read from shared memory. Send the values.");
      check_data_size(what, shape, count, spec.dtype, part.bytes, "shared_memory_byte_size");
      return builder_.set_input(index, read_shared_input(what, shape, spec.dtype, part));
    }
    require(size || data, what, ": missing \"data\", or \"binary_data_size\" in its parameters.");
    std::optional<uint64_t> bytes;
    if (size) bytes = count_of(*size, what + ": binary_data_size");
    if (spec.dtype == bytes_dtype) return builder_.set_bytes(index, read_bytes(what, shape, count, bytes, data));
    builder_.set_input(index, bytes ? read_binary(what, shape, count, spec.dtype, *bytes)
                                    : read_json(what, shape, count, spec.dtype, *data));
  }

  at::Tensor read_json(const std::string& what, const std::vector<int64_t>& shape, int64_t count, c10::ScalarType dtype,
                       dom::element data) const {
    // Each element takes at least two characters of the text, so the size of the tensor is bounded before memory is used.
    require(static_cast<uint64_t>(count) <= header_.size(), what, ": the shape ", shape_text(shape), " has ", count,
            " elements, but data has fewer.");
    at::Tensor tensor = at::empty(shape, dtype);
    fill_from_json(what, tensor, array_of(data, what + ": data"));
    return tensor;
  }

  BytesTensor read_bytes(const std::string& what, const std::vector<int64_t>& shape, int64_t count,
                         std::optional<uint64_t> size, std::optional<dom::element> data) {
    BytesTensor tensor{.sizes = shape};
    if (size) {
      tensor.values = decode_bytes(what, take_binary(what, *size), count);
      return tensor;
    }
    // Each element takes at least two quotation marks.
    require(static_cast<uint64_t>(count) <= header_.size() / 2, what, ": the shape ", shape_text(shape), " has ", count,
            " elements, but data has fewer.");
    tensor.values.resize(static_cast<size_t>(count));
    Filling<std::string>(what, bytes_dtype, shape, tensor.values.data(), count).fill(array_of(*data, what + ": data"));
    return tensor;
  }

  /// Removes the data of the next binary tensor.
  std::string_view take_binary(const std::string& what, uint64_t size) {
    require(size <= rest_.size(), what, ": binary_data_size is ", size, ", but only ", rest_.size(),
            " bytes of binary data are left in the request.");
    const std::string_view taken = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return taken;
  }

  at::Tensor read_binary(const std::string& what, const std::vector<int64_t>& shape, int64_t count,
                         c10::ScalarType dtype, uint64_t size) {
    const std::string_view bytes = take_binary(what, size);
    check_data_size(what, shape, count, dtype, size, "binary_data_size");
    at::Tensor tensor = at::empty(shape, dtype);
    fill_from_bytes(what, tensor, bytes);
    return tensor;
  }

  /// Returns the part of a region that the parameters name, or nothing.
  RegionPart read_part(const std::optional<dom::object>& parameters, const std::string& what) const {
    const auto region = parameters ? member(*parameters, "shared_memory_region") : std::nullopt;
    if (!region) return {};
    if (!memory_)
      throw RequestError(status_unsupported,
                         what + ": shared memory is not supported. Send the values in the request.");
    const auto offset = member(*parameters, "shared_memory_offset");
    return memory_->part(
        what, std::string(string_of(*region, what + ": shared_memory_region")),
        offset ? count_of(*offset, what + ": shared_memory_offset") : 0,
        count_of(required_member(*parameters, "shared_memory_byte_size", what), what + ": shared_memory_byte_size"));
  }

  static std::vector<int64_t> read_shape(dom::object input, const std::string& what) {
    std::vector<int64_t> shape;
    for (const dom::element size : array_of(required_member(input, "shape", what), what + ": shape"))
      shape.push_back(as<int64_t>(size, what + ": shape", "integers from 0 to 2^63 - 1"));
    return shape;
  }

  void read_outputs(dom::object object) {
    const auto outputs = member(object, "outputs");
    if (outputs) {
      for (const dom::element element : array_of(*outputs, "outputs"))
        read_output(object_of(element, "outputs: element"));
    }
    builder_.complete_outputs(binary_output_);
  }

  void read_output(dom::object output) {
    const std::string name(string_of(required_member(output, "name", "outputs: element"), "outputs: name"));
    RequestedOutput wanted = builder_.output_named(name);
    wanted.binary = binary_output_;
    const std::string what = "output \"" + name + "\"";
    if (const auto parameters = parameters_of(output, what)) {
      if (const auto value = member(*parameters, "binary_data"))
        wanted.binary = bool_of(*value, what + ": binary_data");
      wanted.shared = read_part(parameters, what);
      if (const auto value = member(*parameters, "classification"))
        set_classes(wanted, what, count_of(*value, what + ": classification"));
    }
    builder_.add_output(std::move(wanted));
  }

  const ModelSignature& model_;
  const SharedMemory* memory_;
  std::string_view header_, rest_;  ///< JSON text; binary data that no input has used yet
  RequestBuilder builder_;
  bool binary_output_ = false;
};

/// Reads a body that is one element of the model's only input, a BYTES tensor.
InferRequest read_raw_bytes(const std::string& what, std::string_view body, const ModelSignature& model) {
  std::vector<int64_t> shape = model.inputs[0].dims;
  if (model.max_batch_size > 0) shape.insert(shape.begin(), 1);
  std::ranges::replace(shape, -1, 1);
  require(element_count(shape) == 1, what, ": a request without JSON text is one text, but the shape is ",
          shape_text(model.inputs[0].dims), ".");
  RequestBuilder builder(model);
  builder.set_bytes(0, {.sizes = shape, .values = {std::string(body)}});
  builder.complete_outputs(/*binary=*/true);
  return std::move(builder.request());
}

/// Reads a body that is only the data of the model's only input. At most one of its sizes may vary.
InferRequest read_raw(std::string_view body, const ModelSignature& model) {
  require(model.inputs.size() == 1, "a request without JSON text needs a model with one input, but model \"",
          model.name, "\" has ", model.inputs.size(), ".");
  const TensorSpec& spec = model.inputs[0];
  const std::string what = input_text(spec);
  if (spec.dtype == bytes_dtype) return read_raw_bytes(what, body, model);
  std::vector<int64_t> shape = spec.dims;
  if (model.max_batch_size > 0) shape.insert(shape.begin(), 1);
  require(std::ranges::count(shape, -1) <= 1, what,
          ": a request without JSON text is possible only if at most one size of ", shape_text(spec.dims),
          " may vary.");
  uint64_t bytes = c10::elementSize(spec.dtype);
  for (const int64_t size : shape)
    require(size < 0 || !__builtin_mul_overflow(bytes, static_cast<uint64_t>(size), &bytes), what, ": the shape ",
            shape_text(shape), " is too large.");
  const auto open = std::ranges::find(shape, -1);
  if (open != shape.end() && bytes > 0) *open = static_cast<int64_t>(body.size() / bytes);
  const auto expected = open != shape.end() && bytes > 0 ? bytes * static_cast<uint64_t>(*open) : bytes;
  require(open == shape.end() || bytes > 0, what, ": the size of the shape ", shape_text(shape), " is not known.");
  require(body.size() == expected, what, ": the shape ", shape_text(shape), " needs ", expected, " bytes, got ",
          body.size(), ".");
  at::Tensor tensor = at::empty(shape, spec.dtype);
  fill_from_bytes(what, tensor, body);
  RequestBuilder builder(model);
  builder.set_input(0, std::move(tensor));
  builder.complete_outputs(/*binary=*/true);
  return std::move(builder.request());
}

}  // namespace

InferRequest parse_infer_request(std::string_view body, std::optional<size_t> header_bytes, const ModelSignature& model,
                                 const SharedMemory* memory) {
  if (header_bytes && *header_bytes == 0) return read_raw(body, model);
  const size_t header = header_bytes.value_or(body.size());
  require(header <= body.size(), "Inference-Header-Content-Length is ", header, ", but the body has only ", body.size(),
          " bytes.");
  return Reader(body, header, model, memory).read();
}

}  // namespace bellows::serve
