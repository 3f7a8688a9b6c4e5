#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "bellows/checkpoint/checkpoint.h"
#include "bellows/comm/shard_spec.h"
#include "bellows/io/tensors/pickle_value.h"

/// On-disk format of checkpoints. The state of one process is a file in torch.save's format. The state of several ranks
/// is a folder with one safetensors file per rank and an index.json (docs/formats.md). When the content changes, the
/// version in format.cpp is increased. Older versions stay readable.
namespace bellows::checkpoint {

/// Returns the content of a single-process file, as described at save().
io::PickleValue pickle_state(const State& state);

/// Converts the result of pickle_state() back to a state.
/// Params: path – path of the file, for error messages
/// Throws: c10::ValueError if the file is not a checkpoint, is incomplete, or has a newer version
State unpickle_state(const io::PickleValue& file, const std::string& path);

/// A piece of a tensor. Each piece is one entry in a rank's file.
struct SavedPiece {
  size_t file = 0;       ///< index into ShardedIndex::files
  std::string key;       ///< name of the piece in that file
  comm::ShardSpec spec;  ///< the elements in the piece
  /// One checksum per ShardedIndex::chunk_bytes bytes of the piece. The last chunk may be shorter.
  std::vector<uint32_t> crc32c;
};

struct SavedTensor {
  /// Name with its section as prefix, such as "model/fc.weight", "optimizer/…", "extra/…" or "rng/RANK/cpu".
  std::string name;
  std::string dtype;  ///< name of the dtype in safetensors, such as "F32"
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;    ///< row-major if empty
  std::vector<SavedPiece> pieces;  ///< each element is in exactly one piece

  /// Throws: c10::ValueError if libtorch does not have this dtype
  c10::ScalarType scalar_type() const;
};

struct SavedFile {
  std::string name;
  uint64_t bytes = 0;
  uint32_t header_crc32c = 0;  ///< checksum of the header, which consists of its length and its JSON
};

/// Content of index.json. It lists the tensors of a checkpoint that several ranks wrote, and the files that contain
/// them.
struct ShardedIndex {
  int64_t ranks = 0;  ///< number of ranks that wrote the checkpoint
  int64_t step = 0, epoch = 0, batch = 0;
  int64_t consumed = 0;  ///< number of samples that all ranks together have consumed
  std::string recipe, environment;
  uint64_t chunk_bytes = 0;
  std::vector<SavedFile> files;
  std::vector<SavedTensor> tensors;
};

/// Returns the file name of a rank, such as "rank-00002-of-00004.safetensors".
std::string rank_file_name(int rank, int ranks);

/// Returns the text of index.json. Its last line is the CRC-32C of all text before it.
std::string make_sharded_index(const ShardedIndex& index);

/// Parses index.json. Checks that the index is complete and that the pieces contain every element of every tensor
/// exactly once.
/// Params: where – name of the index in error messages
/// Throws: c10::ValueError if the index is damaged or incomplete, or has a different format or a newer version
ShardedIndex parse_sharded_index(std::string_view text, const std::string& where);

}  // namespace bellows::checkpoint
