#include "bellows/serve/grpc/infer_message_impl.h"
#include "bellows/serve/request_error.h"
#include "tests/fuzz/support.h"
#include "tests/fuzz/targets.h"

namespace bellows::fuzz {

void infer_message(io::ByteSpan bytes) {
  static const serve::ModelSignature model{
      .name = "m",
      .version = "1",
      .max_batch_size = 8,
      .inputs = {{.name = "x", .dtype = c10::kFloat, .dims = {2}}, {.name = "n", .dtype = c10::kChar, .dims = {-1}}},
      .outputs = {{.name = "y", .dtype = c10::kFloat, .dims = {2}}, {.name = "m", .dtype = c10::kLong, .dims = {-1}}}};
  static const serve::SharedMemory memory(1 << 20);
  const auto message = std::make_shared<serve::InferMessage>();
  if (!(*message)->ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) return;
  try {
    const serve::InferRequest request = serve::read_infer_message(message, model, &memory);
    for (const at::Tensor& input : request.inputs)
      touch({static_cast<const std::byte*>(input.const_data_ptr()), input.nbytes()});
  } catch (const serve::RequestError&) {
  }
}

}  // namespace bellows::fuzz
