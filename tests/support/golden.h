#pragma once

#include <map>
#include <string>

#include "bellows/io/tensors/torch_file.h"

namespace bellows {

/// Tensors that a script in tools/goldens computed, such as tests/goldens/nn/losses.safetensors, which tools/goldens/nn.py wrote.
class Golden {
 public:
  /// Params: file – below tests/goldens
  explicit Golden(const std::string& file) : file_(file) {
    for (auto& [name, tensor] : io::load_tensors(BELLOWS_SOURCE_DIR "/tests/goldens/" + file)) tensors_[name] = tensor;
  }
  const at::Tensor& operator()(const std::string& name) const {
    const auto found = tensors_.find(name);
    TORCH_CHECK(found != tensors_.end(), "\"", name, "\" is missing in tests/goldens/", file_,
                ": run the script of the same name in tools/goldens");
    return found->second;
  }

 private:
  std::string file_;
  std::map<std::string, at::Tensor> tensors_;
};

}  // namespace bellows
