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
/// is a folder with one safetensors file per rank and an index.json (docs/formats.md). If the content changes, the
/// version in format.cpp increases; older versions stay readable.
namespace bellows::checkpoint {

/// Content of a single-process file, as described at save().
io::PickleValue pickle_state(const State& state);

/// Reads pickle_state() back.
/// Params: path – names the file in errors
/// Throws: c10::ValueError if it is not a checkpoint, incomplete, or of a newer version
State unpickle_state(const io::PickleValue& file, const std::string& path);

/// A piece of a tensor: one entry of a rank's file.
struct SavedPiece {
  size_t file = 0;               ///< index into ShardedIndex::files
  std::string key;               ///< its name in that file
  comm::ShardSpec spec;          ///< the elements of the piece
  std::vector<uint32_t> crc32c;  ///< one per ShardedIndex::chunk_bytes of its bytes; the last chunk may be shorter
};

struct SavedTensor {
  std::string name;   ///< with its section as prefix: "model/fc.weight", "optimizer/…", "extra/…", "rng/RANK/cpu"
  std::string dtype;  ///< safetensors name: "F32"
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;    ///< empty: row-major
  std::vector<SavedPiece> pieces;  ///< each element is in exactly one piece

  c10::ScalarType scalar_type() const;  ///< Throws: c10::ValueError if libtorch has no such dtype
};

struct SavedFile {
  std::string name;
  uint64_t bytes = 0;
  uint32_t header_crc32c = 0;  ///< of the header: its length and its JSON
};

/// Content of index.json: the tensors of a checkpoint of several ranks, and their location.
struct ShardedIndex {
  int64_t ranks = 0;  ///< number of ranks that wrote it
  int64_t step = 0, epoch = 0, batch = 0;
  int64_t consumed = 0;  ///< samples consumed by all ranks
  std::string recipe, environment;
  uint64_t chunk_bytes = 0;
  std::vector<SavedFile> files;
  std::vector<SavedTensor> tensors;
};

/// The file name of a rank: "rank-00002-of-00004.safetensors".
std::string rank_file_name(int rank, int ranks);

/// Returns the text of index.json. Its last line is the CRC-32C of all text before it.
std::string make_sharded_index(const ShardedIndex& index);

/// Parses index.json. Checks that it is complete and that the pieces contain every element of every tensor exactly
/// once.
/// Params: where – names the index in errors
/// Throws: c10::ValueError if it is damaged, incomplete, of another format or of a newer version
ShardedIndex parse_sharded_index(std::string_view text, const std::string& where);

}  // namespace bellows::checkpoint
