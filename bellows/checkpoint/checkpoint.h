#pragma once

#include <cstdint>
#include <string>

#include "bellows/core/model.h"

namespace bellows::checkpoint {

/// The complete state of a run, for a bit-identical resume.
struct State {
  NamedTensors model;      ///< Model::state_dict()
  NamedTensors optimizer;  ///< optim::state_dict()
  NamedTensors rng;        ///< rng_state()
  NamedTensors extra;      ///< other tensors of the owner
  int64_t step = 0;        ///< steps taken
  int64_t epoch = 0;       ///< position in the data: loader.start(epoch, batch)
  int64_t batch = 0;
  std::string recipe;            ///< YAML
  std::string environment = {};  ///< JSON that describes how the run was made; "" from files of version 1
};

/// Writes a state as one file in torch.save's format. In Python, `torch.load(path, weights_only=True)` returns a dict
/// with the keys "format", "version", "model", "optimizer", "rng", "extra", "position" {"step", "epoch", "batch"},
/// "recipe" and "environment". The write is atomic: `path` has the old content or the complete new one, even after
/// `kill -9` or a power failure.
/// Cost:     one write of all bytes, fsync
/// Throws:   c10::Error if the folder is not writable or the disk is full (the message has the path, the system's
///           reason, and the needed and free bytes); the partial file is deleted
void save(const std::string& path, const State& state);

/// Reads a state onto the CPU, with its strides. Verifies the checksums of all parts. `path` may also be the checkpoint
/// folder of several ranks (sharded.h).
/// Throws: c10::ValueError if the checkpoint is missing, truncated, corrupt, of another format or of a newer version
///         (the message has the path and the problem)
State load(const std::string& path);

/// Restores State::model, including strides. Parameters whose strides differ get new memory.
/// Throws: c10::ValueError if a tensor is missing, unexpected or of another shape; nothing is changed then
void restore_model(const Model& model, const NamedTensors& tensors);

}  // namespace bellows::checkpoint
