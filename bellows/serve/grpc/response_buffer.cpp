#include "bellows/serve/grpc/response_buffer_impl.h"

#include <c10/util/StringUtil.h>
#include <google/protobuf/arena.h>
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/wire_format_lite.h>

#include <array>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "bellows/serve/grpc/inference.pb.h"
#include "bellows/serve/request_error.h"
#include "bellows/serve/tensor_types.h"

namespace bellows::serve {

namespace {

using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedOutputStream;

/// Tensors of at least this size are sent from their own memory. Copying smaller ones is faster.
constexpr size_t least_reference = 16384;

constexpr uint32_t tag_of(int field) {
  return WireFormatLite::MakeTag(field, WireFormatLite::WIRETYPE_LENGTH_DELIMITED);
}

void append_varint(std::string& bytes, uint32_t value) {
  std::array<uint8_t, 5> text{};
  const uint8_t* end = CodedOutputStream::WriteVarint32ToArray(value, text.data());
  bytes.append(reinterpret_cast<const char*>(text.data()), static_cast<size_t>(end - text.data()));
}

/// An element of raw_output_contents.
struct RawOutput {
  at::Tensor tensor{};  ///< if it is not defined, `text` is sent
  std::string text{};

  std::string_view bytes() const {
    return tensor.defined() ? std::string_view(static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes())
                            : std::string_view(text);
  }
};

grpc::Slice slice_of(const at::Tensor& tensor) {
  auto* owner = new at::Tensor(tensor);
  return {const_cast<void*>(tensor.const_data_ptr()), tensor.nbytes(),
          [](void* given) { delete static_cast<at::Tensor*>(given); }, owner};
}

/// Joins the parts of a message.
class Parts {
 public:
  void add(std::string_view bytes) { small_.append(bytes); }
  void add(const RawOutput& output) {
    const std::string_view bytes = output.bytes();
    add_head(small_, bytes.size());
    if (!output.tensor.defined() || bytes.size() < least_reference) return add(bytes);
    flush();
    slices_.push_back(slice_of(output.tensor));
  }
  static void add_head(std::string& to, size_t size) {
    append_varint(to, tag_of(inference::ModelInferResponse::kRawOutputContentsFieldNumber));
    append_varint(to, static_cast<uint32_t>(size));
  }
  grpc::ByteBuffer finish() {
    flush();
    return {slices_.data(), slices_.size()};
  }

 private:
  void flush() {
    if (small_.empty()) return;
    slices_.emplace_back(small_);
    small_.clear();
  }

  std::string small_{};
  std::vector<grpc::Slice> slices_{};
};

/// Builds one response.
class ResponseBuilder {
 public:
  ResponseBuilder(const ModelSignature& model, const std::string& id)
      : model_(model), message_(*google::protobuf::Arena::CreateMessage<inference::ModelInferResponse>(&arena_)) {
    message_.set_model_name(model.name);
    message_.set_model_version(model.version);
    message_.set_id(id);
  }

  void add(const RequestedOutput& wanted, const at::Tensor& given) {
    const TensorSpec& spec = model_.outputs[wanted.index];
    check_output(model_, spec, given);
    at::Tensor tensor = given.contiguous();
    auto* output = message_.add_outputs();
    output->set_name(spec.name);
    RawOutput& raw = raw_.emplace_back();
    if (wanted.classes > 0) {
      const ClassTexts classes = class_texts(spec, tensor, wanted.classes, model_.max_batch_size > 0);
      output->set_datatype("BYTES");
      output->mutable_shape()->Add(classes.shape.begin(), classes.shape.end());
      classes.append_bytes(raw.text);
      return;
    }
    output->set_datatype(std::string(type_name(spec.dtype)));
    output->mutable_shape()->Add(tensor.sizes().begin(), tensor.sizes().end());
    if (wanted.shared) {
      // Clients find the data of an output by its position, so its element is empty.
      write_shared_output(spec, tensor, wanted.shared);
      auto& parameters = *output->mutable_parameters();
      parameters["shared_memory_region"].set_string_param(wanted.shared.region->name());
      parameters["shared_memory_offset"].set_int64_param(static_cast<int64_t>(wanted.shared.offset));
      parameters["shared_memory_byte_size"].set_int64_param(static_cast<int64_t>(tensor.nbytes()));
    } else if (tensor.nbytes() > 0) {
      raw.tensor = std::move(tensor);
    }
  }

  void add(const RequestedOutput& wanted, const BytesTensor& given) {
    const TensorSpec& spec = model_.outputs[wanted.index];
    check_bytes_output(model_, spec, wanted, given);
    auto* output = message_.add_outputs();
    output->set_name(spec.name);
    output->set_datatype(std::string(type_name(spec.dtype)));
    output->mutable_shape()->Add(given.sizes.begin(), given.sizes.end());
    encode_bytes(raw_.emplace_back().text, given.values);
  }

  grpc::ByteBuffer finish(ResponseKind kind) {
    // Each response of a stream is the last one of its request.
    if (kind == ResponseKind::stream) (*message_.mutable_parameters())["triton_final_response"].set_bool_param(true);
    std::string head;
    message_.SerializeToString(&head);
    uint64_t size = head.size();
    for (const RawOutput& raw : raw_) {
      constexpr uint64_t longest_head = 6;
      size += longest_head + raw.bytes().size();
    }
    if (size > std::numeric_limits<int32_t>::max())
      throw RequestError(status_internal,
                         c10::str("the outputs of model \"", model_.name, "\" need ", size,
                                  " bytes, but a gRPC message has at most 2 GiB. Use shared memory or HTTP."));
    Parts parts;
    if (kind == ResponseKind::stream) {
      std::string start;
      append_varint(start, tag_of(inference::ModelStreamInferResponse::kInferResponseFieldNumber));
      append_varint(start, static_cast<uint32_t>(exact_size(head.size())));
      parts.add(start);
    }
    parts.add(head);
    for (const RawOutput& raw : raw_) parts.add(raw);
    return parts.finish();
  }

 private:
  size_t exact_size(size_t head) const {
    size_t size = head;
    for (const RawOutput& raw : raw_) {
      std::string start;
      Parts::add_head(start, raw.bytes().size());
      size += start.size() + raw.bytes().size();
    }
    return size;
  }

  const ModelSignature& model_;
  google::protobuf::Arena arena_{};
  inference::ModelInferResponse& message_;
  std::vector<RawOutput> raw_{};
};

}  // namespace

grpc::ByteBuffer response_buffer(const ModelSignature& model, const std::string& id,
                                 std::span<const RequestedOutput> requested, std::span<const at::Tensor> outputs,
                                 ResponseKind kind, const BytesTensors& bytes) {
  check_output_count(model, outputs);
  ResponseBuilder builder(model, id);
  for (const RequestedOutput& wanted : requested) {
    if (wanted.index < bytes.size() && bytes[wanted.index])
      builder.add(wanted, *bytes[wanted.index]);
    else
      builder.add(wanted, outputs[wanted.index]);
  }
  return builder.finish(kind);
}

grpc::ByteBuffer error_buffer(std::string_view message, const std::string& model, const std::string& version,
                              const std::string& id) {
  inference::ModelStreamInferResponse response;
  response.set_error_message(std::string(message));
  auto* inner = response.mutable_infer_response();
  inner->set_model_name(model);
  inner->set_model_version(version);
  inner->set_id(id);
  (*inner->mutable_parameters())["triton_final_response"].set_bool_param(true);
  const grpc::Slice slice(response.SerializeAsString());
  return {&slice, 1};
}

}  // namespace bellows::serve
