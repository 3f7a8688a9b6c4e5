#pragma once

#include <cstdint>
#include <string>

#include "bellows/core/model.h"

namespace bellows::checkpoint {

/// The complete state of a training run. A run that resumes from it continues bit-identically.
struct State {
  NamedTensors model;      ///< Model::state_dict()
  NamedTensors optimizer;  ///< optim::state_dict()
  NamedTensors rng;        ///< rng_state()
  NamedTensors extra;      ///< other tensors of the caller
  int64_t step = 0;        ///< number of optimizer steps so far
  int64_t epoch = 0;       ///< `epoch` and `batch`: position in the data, for loader.start()
  int64_t batch = 0;
  std::string recipe;  ///< YAML
  /// JSON that describes how the run was created, such as versions, processor and threads. It is empty in files of
  /// version 1.
  std::string environment = {};
};

/// Writes a state as one file in torch.save's format. In Python, `torch.load(path, weights_only=True)` returns a dict
/// with the keys "format", "version", "model", "optimizer", "rng", "extra", "position", "recipe" and "environment". The
/// value of "position" is a dict with the keys "step", "epoch" and "batch". The write is atomic: even after `kill -9`
/// or a power failure, `path` has either the old content or the complete new content.
/// Cost:   one write of all bytes, followed by fsync
/// Throws: c10::Error if the folder is not writable or the disk is full. The message states the path, the system's
///         error, and the needed and free bytes. The partial file is deleted
void save(const std::string& path, const State& state);

/// Reads a state onto the CPU. Tensors keep their saved strides. The checksums of all parts are verified. `path` may
/// also be a checkpoint folder that several ranks wrote (sharded.h).
/// Throws: c10::ValueError if the checkpoint is missing, truncated or corrupt, or has a different format or a newer
///         version. The message states the path and the problem
State load(const std::string& path);

/// Copies State::model into a model, including strides. Parameters whose strides differ get new memory.
/// Throws: c10::ValueError if a tensor is missing or unexpected, or has a different shape. In this case, nothing
///         changes
void restore_model(const Model& model, const NamedTensors& tensors);

}  // namespace bellows::checkpoint
