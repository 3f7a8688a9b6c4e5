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

/// The part of a tensor that this rank holds. Its strides and device are arbitrary.
using Part = comm::Shard;
using Parts = std::vector<comm::Shard>;

/// Wraps tensors that this rank holds completely, as in data-parallel training. The parts share storage with the
/// tensors.
Parts whole_parts(const NamedTensors& tensors);

/// The state of a job, as one rank holds it. If several ranks hold the same part, its values are assumed to be equal,
/// and it is saved only once. In data-parallel training, all ranks hold the same parts.
struct ShardedState {
  Parts model, optimizer, extra;
  NamedTensors rng;              ///< rng_state() of this rank
  int64_t step = 0;              ///< number of optimizer steps so far
  int64_t epoch = 0;             ///< position in the data: epoch
  int64_t batch = 0;             ///< position in the data: batch
  int64_t consumed = 0;          ///< number of samples that all ranks together have consumed: Batch::consumed
  std::string recipe = {};       ///< YAML
  std::string environment = {};  ///< JSON
};

/// Writes a folder with one safetensors file per rank and `index.json` (docs/formats.md). Parts that several ranks hold
/// are divided among these ranks, so that all files have about the same size. Collective.
///
/// The folder gets its final name only when it is complete, even if a rank is killed (SIGKILL) or the power fails. It
/// then replaces an existing checkpoint of the same name. Ranks on several machines need a shared file system.
/// Numerics: if several ranks hold a part below 64 KiB, the part of the lowest rank is saved. All batch norm statistics
///           are therefore saved from the same rank, even if they differ between ranks
/// Cost:     each element is written once. Tensors that are non-contiguous or on another device are copied temporarily,
///           one at a time
/// Throws:   all ranks throw the same exception. c10::ValueError if elements are missing, or if different parts of a
///           tensor overlap. It is also thrown if sizes, dtypes or steps differ between ranks, or if a tensor cannot be
///           stored in a safetensors file. In these cases, nothing is written, and the message names the tensor and the
///           ranks. c10::Error if a rank has ended or cannot write; the message states the rank and the reason, and the
///           partial folder is deleted
void save_sharded(const std::string& path, const ShardedState& state, const comm::Group& group);

/// Called on each rank with the content of a checkpoint, before the tensors of the checkpoint are compared with those
/// of the state.
using Prepare = std::function<void(const ShardedIndex& saved, ShardedState& state)>;

/// Fills the parts of a state in place from a checkpoint. Any number of ranks may have written the checkpoint. Each
/// rank maps the files and reads only the data that its parts need. `path` is a folder written by save_sharded() or a
/// file written by save(). Collective.
///
/// Parts keep their strides. A section (model, optimizer, extra) in which no rank has parts is skipped. `rng` is set to
/// the saved state of this rank. If the checkpoint was saved by fewer ranks, `rng` is empty on the additional ranks;
/// seed their generators separately.
/// Params: prepare – sets those parts of the state that depend on the saved content, such as optimizer state
/// Cost:   all needed data are read twice: once to verify checksums, and once to copy. For a file written by save(),
///         each rank reads the whole file
/// Throws: all ranks throw the same exception. c10::ValueError if tensors are missing or unexpected, or have different
///         sizes or dtypes (the message names all of them). It is also thrown if a file is damaged (the message states
///         the file and the rank). In these cases, only `prepare` may have changed the state. If reading fails after
///         the verification, the message says that the checkpoint was only partly read, and the state is incomplete.
///         c10::Error if a rank has ended, or if `prepare` throws an exception that is not a c10::ValueError
void load_sharded(const std::string& path, ShardedState& state, const comm::Group& group, const Prepare& prepare = {});

}  // namespace bellows::checkpoint
