#pragma once

#include <memory>
#include <string>

#include "bellows/runtime/backend.h"

namespace bellows::runtime {

// Each function creates the back end that its name states. It must exist as long as its models.
std::unique_ptr<InferenceBackend> make_libtorch_backend();
std::unique_ptr<InferenceBackend> make_compiled_backend();
std::unique_ptr<InferenceBackend> make_program_backend();
std::unique_ptr<InferenceBackend> make_aotinductor_backend();
/// Params: place – the library or its folder; if it is empty, the library is searched (shared_library.h)
std::unique_ptr<InferenceBackend> make_onnxruntime_backend(std::string place = "");
std::unique_ptr<InferenceBackend> make_openvino_backend(std::string place = "");
std::unique_ptr<InferenceBackend> make_tensorrt_backend();

}  // namespace bellows::runtime
