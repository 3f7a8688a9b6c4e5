#pragma once

#include <map>
#include <string>

#include "bellows/io/tensors/torch_file.h"

/// Reading tests/goldens/nn, which tools/goldens/nn.py writes.
namespace bellows::nn::golden {

class Golden {
 public:
  explicit Golden(const std::string& file) {
    for (auto& [name, tensor] : io::load_tensors(BELLOWS_SOURCE_DIR "/tests/goldens/nn/" + file)) {
      tensors_[name] = tensor;
    }
  }
  const at::Tensor& operator()(const std::string& name) const {
    const auto found = tensors_.find(name);
    TORCH_CHECK(found != tensors_.end(), "golden \"", name, "\" is missing: run python tools/goldens/nn.py");
    return found->second;
  }

 private:
  std::map<std::string, at::Tensor> tensors_;
};

}  // namespace bellows::nn::golden
