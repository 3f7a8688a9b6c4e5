#pragma once

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bellows/models/formula_weights.h"

/// Reading tests/goldens/models, which tools/goldens/models.py writes.
namespace bellows::models::golden {

inline std::string path(const std::string& file) {
  return BELLOWS_SOURCE_DIR "/tests/goldens/models/" + file;
}

inline nlohmann::ordered_json read(const std::string& file) {
  std::ifstream stream(path(file));
  TORCH_CHECK(stream, "golden ", path(file), " is missing: run python tools/goldens/models.py");
  return nlohmann::ordered_json::parse(stream);
}

}  // namespace bellows::models::golden
