#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "bellows/checkpoint/format.h"
#include "bellows/comm/group.h"
#include "bellows/comm/shard.h"
#include "bellows/core/model.h"

namespace bellows::checkpoint {

/// The part of a tensor that this rank holds, with any strides and device.
using Part = comm::Shard;
using Parts = std::vector<comm::Shard>;

/// Wraps tensors that this rank holds completely, as in data parallel training. They share storage with the parts.
Parts whole_parts(const NamedTensors& tensors);

/// The state of a job as one rank holds it. If several ranks hold the same part (in data parallel training, all do),
/// the parts are assumed to be equal and saved once.
struct ShardedState {
  Parts model, optimizer, extra;
  NamedTensors rng;              ///< rng_state() of this rank
  int64_t step = 0;              ///< steps taken
  int64_t epoch = 0;             ///< position in the data
  int64_t batch = 0;             ///< position in the data
  int64_t consumed = 0;          ///< samples consumed by all ranks: Batch::consumed
  std::string recipe = {};       ///< YAML
  std::string environment = {};  ///< JSON
};

/// Writes a folder with one safetensors file per rank and `index.json` (docs/formats.md). Parts that several ranks hold
/// are divided among them, so that files have about the same size. Collective.
///
/// The folder gets its name only when it is complete, even after `kill -9` of any rank or a power failure. It then
/// replaces an existing checkpoint of this name. Ranks on several machines need a shared file system.
/// Numerics: if several ranks hold a part below 64 KiB, the lowest rank's is saved. So batch norm statistics that
///           differ between ranks come from a single rank
/// Cost:     each element is written once; a temporary copy of each tensor that is not contiguous on the CPU, one at a
///           time
/// Throws:   the same on all ranks. c10::ValueError if elements are missing or held in different ways, or if sizes,
///           dtypes or steps differ between ranks (the message names tensor and ranks); before anything is written.
///           c10::Error if a rank cannot write (the message has the rank and the reason); the partial folder is deleted
void save_sharded(const std::string& path, const ShardedState& state, const comm::Group& group);

/// Called on each rank with the content of a checkpoint, before its tensors are compared with those of the state.
using Prepare = std::function<void(const ShardedIndex& saved, ShardedState& state)>;

/// Fills the parts of a state in place from a checkpoint that any number of ranks wrote. Each rank maps the files and
/// reads only what its parts need. `path` is a folder of save_sharded() or a file of save(). Collective.
///
/// Parts keep their strides. A section (model, optimizer, extra) without parts on any rank is skipped. `rng` is set to
/// the rank's own saved state, or to empty if fewer ranks were saved; seed such ranks separately.
/// Params:   prepare – sets the parts of the state if they depend on the saved content, as optimizer state may
/// Cost:     needed data are read twice, first to verify checksums; a file of save() is read completely by each rank
/// Throws:   the same on all ranks, before anything is changed. c10::ValueError if tensors are missing, unexpected or
///           of other sizes or dtypes (the message names all), or if a file is damaged (the message has file and rank)
void load_sharded(const std::string& path, ShardedState& state, const comm::Group& group, const Prepare& prepare = {});

}  // namespace bellows::checkpoint
