#pragma once

#include <span>
#include <string>
#include <string_view>

#include "bellows/serve/v2_protocol.h"

/// Triton's generate extension: requests and responses whose members are the inputs and outputs of a model, such as
/// {"text": "all ranks wait"}.
/// Ref: the generate extension of Triton Inference Server
namespace bellows::serve {

/// Reads a request with one row. Members that name no input are ignored, as Triton does, except for "id" and "parameters",
/// which have the same meaning as in an inference request.
/// Throws: RequestError with status 400 if the body is malformed or contradicts the model
InferRequest parse_generate_request(std::string_view body, const ModelSignature& model);

/// Writes the response: an output with one element becomes a value, and other outputs become flat arrays.
/// Throws: RequestError, see format_infer_response()
std::string format_generate_response(const ModelSignature& model, const std::string& id,
                                     std::span<const RequestedOutput> requested, std::span<const at::Tensor> outputs,
                                     const BytesTensors& bytes);

/// Returns a server-sent event with this JSON text.
std::string server_sent_event(const std::string& json);

}  // namespace bellows::serve
