#pragma once

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "bellows/metrics.h"

namespace bellows::metrics::test {

using Batches = std::vector<std::pair<at::Tensor, at::Tensor>>;

/// tests/goldens/metrics, which tools/goldens/metrics.py writes.
inline nlohmann::json read_goldens() {
  const std::string path = BELLOWS_SOURCE_DIR "/tests/goldens/metrics/metrics.json";
  std::ifstream stream(path);
  TORCH_CHECK(stream, "golden ", path, " is missing: run python tools/goldens/metrics.py");
  return nlohmann::json::parse(stream);
}

inline at::Tensor golden_tensor(const nlohmann::json& stored) {
  const auto values = stored["values"].get<std::vector<double>>();
  return at::tensor(values, at::kDouble)
      .reshape(stored["shape"].get<std::vector<int64_t>>())
      .to(stored["integer"].get<bool>() ? at::kLong : at::kFloat);
}

inline Batches golden_batches(const nlohmann::json& goldens, const std::string& name) {
  Batches result;
  for (const auto& batch : goldens["data"].at(name))
    result.emplace_back(golden_tensor(batch[0]), golden_tensor(batch[1]));
  return result;
}

/// A metric of each kind and task, and batches for it.
struct Sample {
  std::string name;
  Metric metric;
  Batches batches;
};
std::vector<Sample> samples();

/// The value of a result of one element.
inline double number(const at::Tensor& result) {
  return result.item<double>();
}

inline at::Tensor classes(std::vector<int64_t> values) {
  return at::tensor(values, at::kLong);
}

}  // namespace bellows::metrics::test
