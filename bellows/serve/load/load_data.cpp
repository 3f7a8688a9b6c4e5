#include "bellows/serve/load/load_data.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>
#include <random>

#include "bellows/serve/tensor_types.h"
#include "bellows/system/file.h"

namespace bellows::serve {

namespace {

using Json = nlohmann::json;
using nlohmann::ordered_json;
using Input = LoadMetadata::Input;

constexpr int64_t random_requests = 8;

template <class Value>
void append(std::string& bytes, Value value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
}

/// Adds one number in the dtype. Halves are made by rounding towards zero, which suffices for values between 0 and 1.
void append_number(std::string& bytes, std::string_view datatype, double value) {
  if (datatype == "FP32") return append(bytes, static_cast<float>(value));
  if (datatype == "FP64") return append(bytes, value);
  if (datatype == "BF16")
    return append(bytes, static_cast<uint16_t>(std::bit_cast<uint32_t>(static_cast<float>(value)) >> 16));
  if (datatype == "FP16") return append(bytes, c10::Half(static_cast<float>(value)).x);
  const auto whole = static_cast<int64_t>(value);
  bytes.append(reinterpret_cast<const char*>(&whole), element_bytes(datatype));  // little endian
}

void append_text(std::string& bytes, std::string_view text) {
  append(bytes, static_cast<uint32_t>(text.size()));
  bytes += text;
}

bool is_float(std::string_view datatype) {
  return datatype.starts_with("FP") || datatype == "BF16";
}

std::string random_values(const Input& input, const std::vector<int64_t>& shape, int64_t vocabulary,
                          std::mt19937_64& random) {
  const int64_t count = element_count(shape).value_or(-1);
  TORCH_CHECK_VALUE(count >= 0, "input \"", input.name, "\": the sizes ", shape_text(shape), " are too large.");
  std::uniform_real_distribution<double> unit(0, 1);
  const int64_t most = input.datatype == "BOOL"                                 ? 2
                       : element_bytes(input.datatype) == 1 && vocabulary > 128 ? 128
                                                                                : vocabulary;
  std::uniform_int_distribution<int64_t> whole(0, most - 1);
  std::string bytes;
  bytes.reserve(static_cast<size_t>(count) * std::max<size_t>(element_bytes(input.datatype), 4));
  for (int64_t i = 0; i < count; ++i) {
    if (input.datatype == "BYTES")
      append_text(bytes, "text " + std::to_string(whole(random)));
    else
      append_number(bytes, input.datatype,
                    is_float(input.datatype) ? unit(random) : static_cast<double>(whole(random)));
  }
  return bytes;
}

/// Returns the sizes of an input without given data.
std::vector<int64_t> shape_of(const Input& input, const LoadOptions& options) {
  const auto given = options.shapes.find(input.name);
  std::vector<int64_t> shape = given == options.shapes.end() ? input.shape : given->second;
  if (given == options.shapes.end()) {
    if (!shape.empty() && shape[0] < 0) shape[0] = options.batch_size;
    std::string example;
    for (const int64_t size : shape) example += (example.empty() ? ":" : ",") + std::to_string(size < 0 ? 16 : size);
    TORCH_CHECK_VALUE(std::ranges::none_of(shape, [](int64_t size) { return size < 0; }), "input \"", input.name,
                      "\" has the sizes ", shape_text(input.shape),
                      ", and -1 may vary. Pass all sizes, such as --shape ", input.name, example, ".");
  }
  bool fits = shape.size() == input.shape.size();
  for (size_t i = 0; fits && i < shape.size(); ++i) fits = input.shape[i] < 0 || input.shape[i] == shape[i];
  TORCH_CHECK_VALUE(fits, "--shape ", input.name, ": expected sizes ", shape_text(input.shape),
                    ", where -1 is any size, got ", shape_text(shape), ".");
  return shape;
}

void check_names(const LoadMetadata& metadata, const LoadOptions& options) {
  for (const auto& [name, shape] : options.shapes) {
    std::string list;
    for (const Input& input : metadata.inputs) list += (list.empty() ? "" : ", ") + input.name;
    TORCH_CHECK_VALUE(std::ranges::any_of(metadata.inputs, [&](const Input& input) { return input.name == name; }),
                      "--shape: the model has no input \"", name, "\". Inputs: ", list, ".");
  }
}

/// The values of one tensor in a data file: a list, which may be nested, or an object with "content" and "shape".
class FileTensor {
 public:
  FileTensor(const Input& input, const Json& value, const LoadOptions& options, const std::string& where)
      : input_(input), where_(where + ": input \"" + input.name + "\"") {
    const bool described = value.is_object();
    TORCH_CHECK_VALUE(!described || value.contains("content"), where_,
                      ": expected a list, or an object with \"content\".");
    const Json& content = described ? value["content"] : value;
    read(content.is_array() ? content : Json::array({content}));
    tensor_.name = input.name;
    tensor_.datatype = input.datatype;
    tensor_.shape = described && value.contains("shape") ? value["shape"].get<std::vector<int64_t>>() : shape(options);
    TORCH_CHECK_VALUE(element_count(tensor_.shape) == count_, where_, ": the sizes ", shape_text(tensor_.shape),
                      " do not match the ", count_, " values.");
  }
  LoadTensor take() { return std::move(tensor_); }

 private:
  void read(const Json& value) {
    for (const Json& one : value) {
      if (one.is_array()) {
        read(one);
        continue;
      }
      ++count_;
      const bool text = input_.datatype == "BYTES";
      TORCH_CHECK_VALUE(text ? one.is_string() : one.is_number() || one.is_boolean(), where_, ": expected ",
                        text ? "texts" : "numbers", ", got ", one.dump(), ".");
      if (text)
        append_text(tensor_.bytes, one.get_ref<const std::string&>());
      else if (one.is_number_integer() && !is_float(input_.datatype))
        append_integer(one.get<int64_t>());
      else
        append_number(tensor_.bytes, input_.datatype, one.is_boolean() ? double(one.get<bool>()) : one.get<double>());
    }
  }
  void append_integer(int64_t value) {  // without a loss of digits
    tensor_.bytes.append(reinterpret_cast<const char*>(&value), element_bytes(input_.datatype));
  }
  /// If one axis may vary and no sizes were given, its size follows from the number of values.
  std::vector<int64_t> shape(const LoadOptions& options) const {
    if (options.shapes.contains(input_.name)) return shape_of(input_, options);
    std::vector<int64_t> sizes = input_.shape;
    if (std::ranges::count(sizes, -1) > 1 && sizes[0] == -1) sizes[0] = options.batch_size;
    int64_t known = 1;
    for (const int64_t size : sizes) known *= size < 0 ? 1 : size;
    const auto open = std::ranges::find(sizes, -1);
    if (open != sizes.end() && known > 0) *open = count_ / known;
    return sizes;
  }

  const Input& input_;
  std::string where_;
  LoadTensor tensor_{};
  int64_t count_ = 0;
};

std::vector<LoadRequest> read_data(const LoadMetadata& metadata, const LoadOptions& options) {
  const std::string& file = options.data_file;
  const Json content = Json::parse(read_text_file(file), nullptr, /*allow_exceptions=*/false);
  TORCH_CHECK_VALUE(
      content.is_object() && content.contains("data") && content["data"].is_array() && !content["data"].empty(), file,
      ": expected an object such as {\"data\": [{\"", metadata.inputs[0].name,
      "\": [1, 2]}]}, with one element for each request.");
  std::vector<LoadRequest> requests;
  for (const Json& one : content["data"]) {
    const std::string where = file + ": element " + std::to_string(requests.size()) + " of \"data\"";
    LoadRequest request;
    for (const Input& input : metadata.inputs) {
      TORCH_CHECK_VALUE(one.is_object() && one.contains(input.name), where, " has no input \"", input.name, "\".");
      request.push_back(FileTensor(input, one[input.name], options, where).take());
    }
    requests.push_back(std::move(request));
  }
  return requests;
}

template <class Value>
ordered_json numbers(const std::string& bytes) {
  ordered_json list = ordered_json::array();
  for (size_t at = 0; at < bytes.size(); at += sizeof(Value)) {
    Value value;
    std::memcpy(&value, bytes.data() + at, sizeof value);
    list.push_back(value);
  }
  return list;
}

ordered_json texts(const std::string& bytes) {
  ordered_json list = ordered_json::array();
  for (size_t at = 0; at < bytes.size();) {
    uint32_t size = 0;
    std::memcpy(&size, bytes.data() + at, sizeof size);
    list.push_back(bytes.substr(at + sizeof size, size));
    at += sizeof size + size;
  }
  return list;
}

ordered_json json_values(const LoadTensor& tensor) {
  const std::string& type = tensor.datatype;
  if (type == "BOOL") return numbers<bool>(tensor.bytes);
  if (type == "UINT8") return numbers<uint8_t>(tensor.bytes);
  if (type == "UINT16") return numbers<uint16_t>(tensor.bytes);
  if (type == "UINT32") return numbers<uint32_t>(tensor.bytes);
  if (type == "UINT64") return numbers<uint64_t>(tensor.bytes);
  if (type == "INT8") return numbers<int8_t>(tensor.bytes);
  if (type == "INT16") return numbers<int16_t>(tensor.bytes);
  if (type == "INT32") return numbers<int32_t>(tensor.bytes);
  if (type == "INT64") return numbers<int64_t>(tensor.bytes);
  if (type == "FP32") return numbers<float>(tensor.bytes);
  if (type == "FP64") return numbers<double>(tensor.bytes);
  if (type == "BYTES") return texts(tensor.bytes);
  TORCH_CHECK_VALUE(false, "input \"", tensor.name, "\" has the dtype ", type,
                    ", which has no JSON form. Send binary tensors.");
}

}  // namespace

size_t element_bytes(std::string_view datatype) {
  if (datatype == "BYTES") return 0;
  const auto dtype = type_named(datatype);
  TORCH_CHECK_VALUE(dtype, "the model has an input with the dtype \"", std::string(datatype),
                    "\", which the Open Inference Protocol does not have.");
  return c10::elementSize(*dtype);
}

LoadMetadata parse_metadata(std::string_view text) {
  const Json value = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  TORCH_CHECK_VALUE(value.is_object() && value.contains("inputs") && value["inputs"].is_array(),
                    "the server's answer is not the metadata of a model: ", std::string(text.substr(0, 200)));
  LoadMetadata metadata;
  try {
    for (const Json& input : value["inputs"])
      metadata.inputs.push_back(
          {input.at("name"), input.at("datatype"), input.at("shape").get<std::vector<int64_t>>()});
    if (value.contains("versions") && value["versions"].is_array() && !value["versions"].empty())
      metadata.version = value["versions"].back();
  } catch (const Json::exception& error) {
    TORCH_CHECK_VALUE(false, "the metadata of the model is malformed: ", error.what());
  }
  TORCH_CHECK_VALUE(!metadata.inputs.empty(), "the model has no inputs.");
  return metadata;
}

std::vector<LoadRequest> make_requests(const LoadMetadata& metadata, const LoadOptions& options) {
  check_names(metadata, options);
  if (!options.data_file.empty()) return read_data(metadata, options);
  std::mt19937_64 random(options.seed);
  std::vector<LoadRequest> requests(random_requests);
  for (LoadRequest& request : requests) {
    for (const Input& input : metadata.inputs) {
      const std::vector<int64_t> shape = shape_of(input, options);
      request.push_back({input.name, input.datatype, shape, random_values(input, shape, options.vocabulary, random)});
    }
  }
  return requests;
}

LoadBody request_body(const LoadRequest& request, bool json) {
  ordered_json text = {{"inputs", ordered_json::array()}};
  std::string bytes;
  for (const LoadTensor& tensor : request) {
    ordered_json input = {{"name", tensor.name}, {"shape", tensor.shape}, {"datatype", tensor.datatype}};
    if (json)
      input["data"] = json_values(tensor);
    else
      input["parameters"] = {{"binary_data_size", tensor.bytes.size()}};
    text["inputs"].push_back(std::move(input));
    if (!json) bytes += tensor.bytes;
  }
  if (!json) text["parameters"] = {{"binary_data_output", true}};
  LoadBody body{.text = text.dump(-1, ' ', false, ordered_json::error_handler_t::replace)};
  if (!json) body.header_bytes = body.text.size();
  body.text += bytes;
  return body;
}

}  // namespace bellows::serve
