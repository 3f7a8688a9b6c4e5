#pragma once

#include <cstdint>
#include <string>

#include "bellows/core/model.h"

namespace bellows::checkpoint {

/// All that a run needs to go on with the same bits.
struct State {
  NamedTensors model;      ///< Model::state_dict()
  NamedTensors optimizer;  ///< optim::state_dict()
  NamedTensors rng;        ///< rng_state()
  NamedTensors extra;      ///< whatever else the owner needs
  int64_t step = 0;        ///< steps taken
  int64_t epoch = 0;       ///< where the data goes on: loader.start(epoch, batch)
  int64_t batch = 0;
  std::string recipe;            ///< YAML
  std::string environment = {};  ///< JSON: what the run was made with; "" from files of version 1
};

/// Writes a state as one file in torch.save's format: in Python `torch.load(path, weights_only=True)` gives a dict
/// with the keys "format", "version", "model", "optimizer", "rng", "extra", "position" {"step", "epoch", "batch"},
/// "recipe" and "environment". Atomic: `path` holds the old content or the whole new one, also after kill -9 or a power
/// cut.
/// Cost:     one write of all bytes, fsync
/// Throws:   c10::Error – unwritable folder, disk full: path, the system's reason, bytes needed and free; nothing is
///           left of the attempt
void save(const std::string& path, const State& state);

/// Reads a state back, with strides, onto the CPU. Checksums of all parts are verified. `path` may be the folder of many
/// ranks, too (sharded.h).
/// Throws: c10::ValueError – missing, truncated or corrupt, not a checkpoint, or of a newer version: path and what is
/// wrong
State load(const std::string& path);

/// Puts State::model back, strides included: a parameter whose strides differ gets new memory.
/// Throws: c10::ValueError – anything missing, unexpected or of another shape, before anything is changed
void restore_model(const Model& model, const NamedTensors& tensors);

}  // namespace bellows::checkpoint
