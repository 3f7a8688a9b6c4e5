#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace bellows::bench {

/// A training program with its model, optimizer and data.
struct TrainingRun {
  std::function<at::Tensor()> step;  ///< trains on the next batch and returns the loss
  std::vector<at::Tensor> parameters;
};

/// A training program of the kind that tutorials contain: plain torch::nn code, with synthetic data.
struct OrdinaryProgram {
  std::string name, about;
  /// Creates the program. Equal seeds give equal weights and data.
  /// Params: seed – set as libtorch's seed
  ///         autocast – run the forward pass and the loss under libtorch's bf16 autocast
  std::function<TrainingRun(uint64_t seed, bool autocast)> make;
  /// Maximum relative difference of a loss of the first five steps. The parameters may differ by 20 times this value,
  /// relative to the distance that they moved (both as vectors, in the 2-norm).
  double tolerance = 1e-3;
  double bf16_tolerance = 3e-2;  ///< the same in bf16; 0 means that the program does not run in bf16
};

/// Programs of small dense operators: perceptrons, embeddings, a graph network, reinforcement learning.
std::vector<OrdinaryProgram> dense_programs();
/// Programs with convolutions.
std::vector<OrdinaryProgram> image_programs();
/// Recurrent networks and transformers.
std::vector<OrdinaryProgram> sequence_programs();
/// Returns all of these programs.
std::vector<OrdinaryProgram> ordinary_programs();

}  // namespace bellows::bench
