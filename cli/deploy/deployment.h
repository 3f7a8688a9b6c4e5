#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "bellows/runtime/comparison.h"
#include "cli/deploy/candidates.h"

namespace bellows::cli {

/// A file in a back end, and whether it may be deployed.
struct DeployRow {
  CandidateFile file{};
  runtime::ComparedModel measured{};
  double accuracy = std::numeric_limits<double>::quiet_NaN();  ///< NaN if it was not measured
  bool accepted = false;
  std::string reason{};      ///< why it was not accepted
  uint64_t model_bytes = 0;  ///< size of the file, and of a second file with weights
};

/// Files to ship for one row, in bytes.
struct ImageSize {
  std::string dtype{}, backend{}, format{};
  uint64_t command = 0, libraries = 0, backend_libraries = 0, model = 0;
  uint64_t total() const { return command + libraries + backend_libraries + model; }
};

struct Deployment {
  std::string name{}, target{};
  double accuracy = std::numeric_limits<double>::quiet_NaN();  ///< of the model before the conversion
  std::vector<DeployRow> rows{};
  std::vector<runtime::TensorInfo> described_inputs{}, described_outputs{};  ///< see Candidates
  std::vector<ImageSize> images{};  ///< of the fastest accepted fp32 row, and of the fastest accepted int8 row
  size_t chosen = 0;                ///< row that is deployed
  double http_p50_s = 0;            ///< median latency over HTTP, with one client
};

/// Compares and measures the candidates, and decides which of them are accepted.
/// Throws: c10::ValueError if none is accepted. The message states the reason of each
Deployment measure_candidates(const Candidates& candidates, const DeployArguments& arguments,
                              const std::function<void(const std::string&)>& progress);

/// Writes MODEL/config.pbtxt and MODEL/1/model.* for the chosen row.
/// Params: folder – the model repository
void write_repository(const Deployment& deployment, const DeployArguments& arguments, const std::string& folder);

/// Serves the repository, sends requests, and returns the median latency in seconds.
/// Throws: c10::Error if the server does not load the model, or if it does not answer
double try_repository(const Deployment& deployment, const std::vector<at::Tensor>& inputs, const std::string& folder);

/// Returns the text of config.pbtxt for a model.
/// Params: backend        – "" for the first back end that reads the file
///         max_batch_size – 0 if the tensors have no batch axis
///         positional     – inputs and outputs are called INPUT__0, OUTPUT__0, …, as Triton's TorchScript back end needs
std::string triton_config(const std::string& name, const std::string& backend, int64_t max_batch_size, bool positional,
                          const std::vector<runtime::TensorInfo>& inputs,
                          const std::vector<runtime::TensorInfo>& outputs);

}  // namespace bellows::cli
