#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "bellows/serve/model_config.h"
#include "bellows/serve/protocol/shared_memory.h"
#include "bellows/serve/request_queue.h"

/// The inference requests and responses of the Open Inference Protocol (KServe v2) with Triton's extensions for binary
/// tensors and classification. The functions do not depend on sockets. They may be called from any thread.
/// Ref: https://github.com/kserve/open-inference-protocol, and docs/protocol in the repository of Triton Inference Server
namespace bellows::serve {

/// The tensors of a model, as clients see them.
struct ModelSignature {
  std::string name{}, version{};
  std::string platform{};
  int64_t max_batch_size = 0;  ///< 0: tensors have no batch axis
  std::vector<TensorSpec> inputs{}, outputs{};
};

/// An output that a client requested.
struct RequestedOutput {
  size_t index = 0;     ///< in the model's outputs
  bool binary = false;  ///< as bytes after the JSON text
  int64_t classes = 0;  ///< if it is not 0, the indices of this many largest values are sent instead of the values
  RegionPart shared{};  ///< if it is set, the values are written there instead
};

struct InferRequest {
  std::string id{};
  std::vector<at::Tensor> inputs{};  ///< in the order of the model's inputs, with the batch axis; undefined for BYTES
  BytesTensors bytes{};              ///< the BYTES inputs
  std::vector<RequestedOutput> outputs{};
  int64_t rows = 1;         ///< size of the batch axis; 1 without one
  uint64_t priority = 0;    ///< 0: the default
  uint64_t timeout_us = 0;  ///< longest time in the queue; 0: the default
  SequenceFlags sequence{};
};

/// Reads the body of an inference request.
/// Params: body         – the JSON text, followed by the bytes of binary tensors
///         header_bytes – size of the JSON text (header Inference-Header-Content-Length); nothing if all of the body is
///                        JSON. 0: the body is the data of the model's only input
///         memory       – finds shared memory regions; nullptr: the request must not use them
/// Cost:   copies the values into new tensors
/// Throws: RequestError with status 400 if the body is malformed or contradicts the model, and with status 501 if it uses
///         an extension that is not supported
InferRequest parse_infer_request(std::string_view body, std::optional<size_t> header_bytes, const ModelSignature& model,
                                 const SharedMemory* memory = nullptr);

/// The body of a response.
struct InferResponse {
  std::string body{};
  std::optional<size_t> header_bytes{};  ///< size of the JSON text, if binary tensors follow it
};

/// Writes the body of a response.
/// Params: outputs – CPU tensors in the order of the model's outputs; undefined for BYTES tensors
///         bytes   – the BYTES outputs. In JSON text, bytes that are not UTF-8 become U+FFFD
/// Throws: RequestError with status 400 if an output cannot be sent in the requested form, and with status 500 if the model
///         returned a tensor of another dtype or other sizes than its signature states
InferResponse format_infer_response(const ModelSignature& model, const std::string& id,
                                    std::span<const RequestedOutput> requested, std::span<const at::Tensor> outputs,
                                    const BytesTensors& bytes = {});

/// Checks the number of outputs of a model.
/// Throws: RequestError with status 500
void check_output_count(const ModelSignature& model, std::span<const at::Tensor> outputs);
/// Checks an output against the signature of the model.
/// Throws: RequestError with status 500
void check_output(const ModelSignature& model, const TensorSpec& spec, const at::Tensor& output);
/// Checks the sizes of an output.
/// Throws: RequestError with status 500
void check_output_sizes(const ModelSignature& model, const TensorSpec& spec, std::span<const int64_t> sizes);
/// Checks a BYTES output.
/// Throws: RequestError with status 400 if it is requested as classes or in shared memory, and with status 500
void check_bytes_output(const ModelSignature& model, const TensorSpec& spec, const RequestedOutput& wanted,
                        const BytesTensor& given);
/// Writes an output to the client's shared memory.
/// Params: tensor – contiguous
/// Throws: RequestError with status 400 if the part is too small
void write_shared_output(const TensorSpec& spec, const at::Tensor& tensor, const RegionPart& part);

/// The largest values of each row as "VALUE:INDEX" or "VALUE:INDEX:LABEL".
struct ClassTexts {
  std::vector<int64_t> shape{};
  std::vector<std::string> texts{};

  /// Adds the texts as a binary tensor of the datatype BYTES.
  void append_bytes(std::string& data) const;
};
/// Params: tensor  – contiguous
///         batched – whether the first axis has the rows
ClassTexts class_texts(const TensorSpec& spec, const at::Tensor& tensor, int64_t count, bool batched);

/// Returns the error object.
std::string error_json(std::string_view message);

/// Adds a text with quotation marks to JSON text. Bytes that are not UTF-8 become U+FFFD.
void append_json_string(std::string& json, std::string_view text);

}  // namespace bellows::serve
