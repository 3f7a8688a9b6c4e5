#pragma once

#include <torch/torch.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "bellows/models/formula_weights.h"

/// Reading tests/goldens/amp, which tools/goldens/amp.py writes, and the inputs that it used.
namespace bellows::amp::golden {

inline nlohmann::ordered_json read(const std::string& file) {
  const std::string path = BELLOWS_SOURCE_DIR "/tests/goldens/amp/" + file;
  std::ifstream stream(path);
  TORCH_CHECK(stream, "golden ", path, " is missing: run python tools/goldens/amp.py");
  return nlohmann::ordered_json::parse(stream);
}

inline at::Tensor values(std::string_view name, c10::IntArrayRef sizes) {
  return models::formula_uniform(name, sizes).to(at::kFloat);
}

}  // namespace bellows::amp::golden
