#pragma once

#include <google/protobuf/arena.h>

#include <array>
#include <cstddef>
#include <memory>

#include "bellows/serve/grpc/inference.pb.h"
#include "bellows/serve/v2_protocol.h"

namespace bellows::serve {

/// A request message, and the memory of its fields. Tensors that refer to the message keep it.
class InferMessage {
 public:
  InferMessage() : arena_(arena_options()), message_(google::protobuf::Arena::CreateMessage<Message>(&arena_)) {}
  InferMessage(const InferMessage&) = delete;
  InferMessage& operator=(const InferMessage&) = delete;

  using Message = inference::ModelInferRequest;
  Message& operator*() { return *message_; }
  Message* operator->() { return message_; }
  const Message& operator*() const { return *message_; }
  const Message* operator->() const { return message_; }

 private:
  google::protobuf::ArenaOptions arena_options() {
    google::protobuf::ArenaOptions options;
    options.initial_block = block_.data();
    options.initial_block_size = block_.size();
    return options;
  }

  /// Large enough for the fields of most requests, except for the tensors.
  alignas(std::max_align_t) std::array<char, 1536> block_{};
  google::protobuf::Arena arena_;
  Message* message_;
};

/// Reads an inference request, from `raw_input_contents`, from `contents` or from shared memory.
/// Params: message – the tensors of `raw_input_contents` refer to its memory
///         memory  – finds shared memory regions; nullptr: the request must not use them
/// Throws: RequestError with status 400 if the request is malformed or contradicts the model, and with status 501 if it
///         uses an extension that is not supported
InferRequest read_infer_message(const std::shared_ptr<const InferMessage>& message, const ModelSignature& model,
                                const SharedMemory* memory);

}  // namespace bellows::serve
