#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <vector>

#include "bellows/runtime/comparison.h"
#include "bellows/train/inference/trained_model.h"
#include "cli/deploy/arguments.h"

namespace bellows::cli {

/// A file that could be deployed.
struct CandidateFile {
  std::string dtype{};   ///< fp32, bf16, int8, or "" for a file that the user passed
  std::string format{};  ///< torchscript, onnx, bellows, or "" for a file that the user passed
  std::string path{};    ///< "" if the file could not be written
  std::string problem{};
};

/// The files of a model, and the inputs with which they are compared and measured.
struct Candidates {
  std::string name{};  ///< of the model
  std::optional<train::TrainedModel> trained{};
  bool has_data = false;  ///< there is held-out data, so that the accuracy can be measured
  std::vector<CandidateFile> files{};
  /// Inputs and outputs as the exporter states them, for formats without this information.
  std::vector<runtime::TensorInfo> described_inputs{}, described_outputs{};
  std::vector<at::Tensor> inputs{};  ///< of a trained model, with arguments.batch_size rows
};

/// Converts the model to all formats that the back ends read. A conversion that fails becomes a problem of its file.
/// Params: folder – receives one folder for each file
/// Throws: UsageError or c10::Error if the model cannot be loaded
Candidates make_candidates(const DeployArguments& arguments, const std::string& folder);

}  // namespace bellows::cli
