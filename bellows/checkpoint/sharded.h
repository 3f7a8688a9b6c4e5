#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "bellows/checkpoint/sharded_index.h"
#include "bellows/comm/group.h"
#include "bellows/comm/shard.h"
#include "bellows/core/model.h"

namespace bellows::checkpoint {

/// What this rank holds of a tensor of the job: any strides and device.
using Part = comm::Shard;
using Parts = std::vector<comm::Shard>;

/// Tensors that this rank holds whole, as each rank of data parallel training does. They share storage with the parts.
Parts whole_parts(const NamedTensors& tensors);

/// The state of a job, as one of its ranks holds it. Parts that several ranks hold alike (all of them, in data parallel
/// training) are taken to be equal and are saved once.
struct ShardedState {
  Parts model, optimizer, extra;
  NamedTensors rng;              ///< rng_state() of this rank
  int64_t step = 0;              ///< steps taken
  int64_t epoch = 0;             ///< where the data goes on
  int64_t batch = 0;             ///< likewise
  int64_t consumed = 0;          ///< samples, of all ranks: Batch::consumed
  std::string recipe = {};       ///< YAML
  std::string environment = {};  ///< JSON
};

/// Writes a folder: one safetensors file a rank, and `index.json` (docs/formats.md). Each rank writes a share of what
/// several hold, so that the files are about equally large. Collective. The folder appears under its name only when it
/// is whole, in place of what had the name before, also after kill -9 of any rank or a power cut. Ranks on several
/// machines need a file system that all of them see.
/// Numerics: of parts below 64 KiB that several ranks hold, the lowest rank's is saved: batch norm statistics that
///           differ between ranks are those of one
/// Cost:     each element is written once; a temporary copy of a tensor that is not contiguous on the CPU, one at a time
/// Throws:   on all ranks the same: c10::ValueError – elements that nobody holds or several hold differently, other
///           sizes, dtypes or steps on some ranks (tensor and ranks); before anything is written. c10::Error – a rank
///           that could not write: which, and why; nothing is left of the attempt
void save_sharded(const std::string& path, const ShardedState& state, const comm::Group& group);

/// Called on each rank with what a checkpoint holds, before its tensors are compared with those of the state.
using Prepare = std::function<void(const ShardedIndex& saved, ShardedState& state)>;

/// Fills the parts of a state from a checkpoint, in place, whatever the number of ranks that wrote it: each rank maps the
/// files and reads what its parts need. `path` is a folder of save_sharded() or a file of save(). Collective. Parts
/// keep their strides. A section (model, optimizer, extra) that no rank has parts of is passed over. `rng` becomes the
/// rank's own, or empty where fewer ranks have saved: give such ranks seeds of their own.
/// Params:   prepare – where what is wanted depends on what was saved, as optimizers' state may: gives the state its parts
/// Cost:     what is needed is read twice, first to compare checksums; of a file of save() each rank reads all
/// Throws:   on all ranks the same: c10::ValueError – missing, unexpected tensors, other sizes or dtypes (all named);
///           damage (file and rank); before anything is changed
void load_sharded(const std::string& path, ShardedState& state, const comm::Group& group, const Prepare& prepare = {});

}  // namespace bellows::checkpoint
