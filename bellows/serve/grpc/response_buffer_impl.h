#pragma once

#include <grpcpp/support/byte_buffer.h>

#include <span>
#include <string_view>

#include "bellows/serve/v2_protocol.h"

namespace bellows::serve {

/// Which message contains the response.
enum class ResponseKind {
  unary,  ///< ModelInferResponse
  stream  ///< ModelStreamInferResponse
};

/// Writes a response as the bytes of a protobuf message. Large tensors are not copied.
/// Params: outputs – CPU tensors in the order of the model's outputs
/// Throws: RequestError, see format_infer_response(); in addition with status 500 if the response is larger than 2 GiB
grpc::ByteBuffer response_buffer(const ModelSignature& model, const std::string& id,
                                 std::span<const RequestedOutput> requested, std::span<const at::Tensor> outputs,
                                 ResponseKind kind, const BytesTensors& bytes = {});

/// Writes the ModelStreamInferResponse of a request that failed.
grpc::ByteBuffer error_buffer(std::string_view message, const std::string& model, const std::string& version,
                              const std::string& id);

}  // namespace bellows::serve
