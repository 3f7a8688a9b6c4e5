#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "bellows/comm/shard_spec.h"

namespace bellows::checkpoint {

/// A piece of a tensor: one entry of one rank's file.
struct SavedPiece {
  size_t file = 0;               ///< in ShardedIndex::files
  std::string key;               ///< its name in that file
  comm::ShardSpec spec;          ///< which elements
  std::vector<uint32_t> crc32c;  ///< of each ShardedIndex::chunk_bytes of its bytes, the last may be shorter
};

struct SavedTensor {
  std::string name;   ///< with its section in front: "model/fc.weight", "optimizer/…", "extra/…", "rng/RANK/cpu"
  std::string dtype;  ///< as safetensors calls it: "F32"
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;    ///< empty: row-major
  std::vector<SavedPiece> pieces;  ///< each element is in exactly one

  c10::ScalarType scalar_type() const;  ///< Throws: c10::ValueError – libtorch has no such dtype
};

struct SavedFile {
  std::string name;
  uint64_t bytes = 0;
  uint32_t header_crc32c = 0;  ///< of its length and its JSON
};

/// What a checkpoint of many ranks holds, and where: its index.json.
struct ShardedIndex {
  int64_t ranks = 0;  ///< that wrote it
  int64_t step = 0, epoch = 0, batch = 0;
  int64_t consumed = 0;  ///< samples, of all ranks
  std::string recipe, environment;
  uint64_t chunk_bytes = 0;
  std::vector<SavedFile> files;
  std::vector<SavedTensor> tensors;
};

/// The text of index.json. Its last line is a CRC-32C of all that is before.
std::string make_sharded_index(const ShardedIndex& index);

/// Reads it back, and checks that it is whole and that the pieces hold every element of every tensor once.
/// Params: where – names it in errors
/// Throws: c10::ValueError – damaged, incomplete, another format or a newer version
ShardedIndex parse_sharded_index(std::string_view text, const std::string& where);

}  // namespace bellows::checkpoint
