#include "bellows/serve/text/generate.h"

#include <c10/util/StringUtil.h>

#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "bellows/report/json_text.h"
#include "bellows/serve/request_error.h"
#include "bellows/serve/tensor_types.h"

namespace bellows::serve {

namespace {

using nlohmann::ordered_json;

/// Returns the shape of an input whose values are a scalar or a flat array. At most one size may vary.
std::vector<int64_t> shape_of(const TensorSpec& spec, const ModelSignature& model, const ordered_json& value) {
  std::vector<int64_t> shape = spec.dims;
  int64_t known = 1, *open = nullptr;
  for (int64_t& size : shape) {
    const bool overflow = size >= 0 && __builtin_mul_overflow(known, size, &known);
    if (overflow || (size < 0 && open))
      throw RequestError(status_bad_request, c10::str("input \"", spec.name, "\": the shape ", shape_text(spec.dims),
                                                      " does not follow from the number of values. Use an inference "
                                                      "request."));
    if (size < 0) open = &size;
  }
  const auto count = value.is_array() ? static_cast<int64_t>(value.size()) : 1;
  if (open) *open = count / known;
  if (open ? count % known != 0 : count != known)
    throw RequestError(status_bad_request, c10::str("input \"", spec.name, "\": got ", count, " values for the shape ",
                                                    shape_text(spec.dims), "."));
  if (model.max_batch_size > 0) shape.insert(shape.begin(), 1);
  return shape;
}

}  // namespace

InferRequest parse_generate_request(std::string_view body, const ModelSignature& model) {
  const ordered_json given = ordered_json::parse(body, nullptr, /*allow_exceptions=*/false);
  if (!given.is_object())
    throw RequestError(status_bad_request, "expected a JSON object such as {\"text\": \"all ranks wait\"}.");
  ordered_json request = {{"inputs", ordered_json::array()}};
  for (const char* key : {"id", "parameters"}) {
    if (given.contains(key)) request[key] = given[key];
  }
  for (const TensorSpec& spec : model.inputs) {
    const auto value = given.find(spec.name);
    if (value == given.end()) continue;  // the error is reported when the request is read
    request["inputs"].push_back({{"name", spec.name},
                                 {"datatype", type_name(spec.dtype)},
                                 {"shape", shape_of(spec, model, *value)},
                                 {"data", value->is_array() ? *value : ordered_json::array({*value})}});
  }
  return parse_infer_request(json_text(request), std::nullopt, model);
}

std::string format_generate_response(const ModelSignature& model, const std::string& id,
                                     std::span<const RequestedOutput> requested, std::span<const at::Tensor> outputs,
                                     const BytesTensors& bytes) {
  const std::string written = format_infer_response(model, id, requested, outputs, bytes).body;
  ordered_json response = ordered_json::parse(written, nullptr, /*allow_exceptions=*/false);
  if (!response.is_object())
    throw RequestError(status_internal,
                       "model \"" + model.name + "\" returned NaN or infinity. Use an inference request.");
  const ordered_json list = std::exchange(response["outputs"], {});
  response.erase("outputs");
  for (const ordered_json& output : list) {
    const ordered_json& data = output["data"];
    response[output["name"].get<std::string>()] = data.size() == 1 ? data[0] : data;
  }
  return json_text(response);
}

std::string server_sent_event(const std::string& json) {
  return "data: " + json + "\n\n";
}

}  // namespace bellows::serve
