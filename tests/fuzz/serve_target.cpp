#include "bellows/serve/model_config.h"
#include "bellows/serve/request_error.h"
#include "bellows/serve/tensor_types.h"
#include "bellows/serve/v2_protocol.h"
#include "tests/fuzz/support.h"
#include "tests/fuzz/targets.h"

namespace bellows::fuzz {

namespace {

/// A model with an input of each kind: batched fp32, integers of any length, booleans and half precision.
const serve::ModelSignature& signature() {
  static const serve::ModelSignature model{
      .name = "m",
      .version = "1",
      .max_batch_size = 8,
      .inputs = {{.name = "x", .dtype = c10::kFloat, .dims = {2}}, {.name = "n", .dtype = c10::kLong, .dims = {-1}}},
      .outputs = {{.name = "y", .dtype = c10::kFloat, .dims = {2}}, {.name = "m", .dtype = c10::kLong, .dims = {-1}}}};
  return model;
}

/// A model that returns its texts.
const serve::ModelSignature& texts() {
  static const serve::ModelSignature model{.name = "m",
                                           .version = "1",
                                           .max_batch_size = 8,
                                           .inputs = {{.name = "text", .dtype = serve::bytes_dtype, .dims = {-1}}},
                                           .outputs = {{.name = "same", .dtype = serve::bytes_dtype, .dims = {-1}}}};
  return model;
}

void read_request(std::string_view body, std::optional<size_t> header, const serve::ModelSignature& model) {
  try {
    const serve::InferRequest request = serve::parse_infer_request(body, header, model);
    for (const at::Tensor& input : request.inputs) {
      if (input.defined()) touch({static_cast<const std::byte*>(input.const_data_ptr()), input.nbytes()});
    }
    const serve::InferResponse response =
        serve::format_infer_response(model, request.id, request.outputs, request.inputs, request.bytes);
    touch(io::as_bytes(response.body));
  } catch (const serve::RequestError&) {
  }
}

}  // namespace

void infer_request(io::ByteSpan bytes) {
  const std::string_view body = io::as_text(bytes);
  read_request(body, std::nullopt, signature());
  // Everything after the last brace is binary data.
  read_request(body, body.rfind('}') + 1, signature());
  read_request(body, std::nullopt, texts());
  read_request(body, body.rfind('}') + 1, texts());
  read_request(body, 0, texts());
  static const serve::ModelSignature raw{.name = "m",
                                         .version = "1",
                                         .inputs = {{.name = "x", .dtype = c10::kBool, .dims = {-1, 3}}},
                                         .outputs = {{.name = "y", .dtype = c10::kBool, .dims = {-1, 3}}}};
  read_request(body, 0, raw);
}

void serve_config(io::ByteSpan bytes) {
  rejecting([&] {
    std::vector<std::string> warnings;
    const serve::ModelConfig config = serve::parse_model_config(io::as_text(bytes), "fuzz", warnings);
    touch(io::as_bytes(serve::model_config_json(config)));
    config.version_policy.select({1, 2, 3});
  });
}

}  // namespace bellows::fuzz
