#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bellows/data/sink.h"
#include "bellows/data/source.h"

namespace bellows::data {

/// When to check a shard's bytes against the hashes in index.json. Sizes are always checked.
enum class Verify {
  never,
  first_use,  ///< on the first use of a shard, if it has hashes of a supported kind (io::hash_names)
  open        ///< all shards, when the dataset is opened; a shard without hashes is an error
};

struct MdsOptions {
  Verify verify = Verify::first_use;
};

/// The samples of a MosaicML MDS dataset, version 2: a folder with index.json.
///
/// Columns become fields of the same name. Numbers, ndarray and pil are arrays; jpeg, png, str, json and the like are
/// bytes (see io::MdsEncoding). A text column "__key__" is the samples' key. A shard that exists only in compressed
/// form is decompressed in memory when one of its samples is read, and cached while there is space (see UnpackedFiles).
/// block_starts() returns the starts of the shards, for orders that shuffle within shards.
/// Params: folder – of one split; may be an http(s):// URL, where compressed shards are preferred if there are any
/// Cost:   opening reads index.json only (unless Verify::open); reading maps shards and copies only compressed data.
///         The first sample of a shard includes the time of its hashes (xxh64: 10 GB/s, sha1: 1 to 2 GB/s)
/// Throws: c10::ValueError if there is no index.json (the message lists splits below the folder) or the index is
///         invalid; if a shard is missing; if a column holds pickles; if Verify::open finds a shard without hashes.
///         read() throws c10::ValueError if a shard or a sample does not match the index or a hash is wrong
/// Ref:    streaming.StreamingDataset(local=folder)
SourcePtr open_mds(const std::string& folder, const MdsOptions& options = {});

struct MdsSinkOptions {
  /// Name and encoding of each column. If empty, the first sample determines them. The fields jpg, jpeg and png (and
  /// "image", by its content) are files, "json" is json, and the texts "cls" and "txt" are str. Other bytes are bytes,
  /// a scalar is its type, and an array is ndarray:TYPE. A key is the column "__key__".
  std::vector<std::pair<std::string, std::string>> columns = {};
  std::string compression = "";          ///< "zstd:7", "gz", "bz2", "br", "snappy"; "": none
  std::vector<std::string> hashes = {};  ///< algorithms (io::hash_names)
  uint64_t size_limit = 1 << 26;         ///< of a shard, in bytes; 0: one shard of less than 4 GiB
};

/// Writes a dataset that MosaicML streaming can read. The folder appears under its name when close() is called.
///
/// Every sample must have exactly the columns of the first one.
/// Params: folder – must not exist, or must be empty
/// Cost:   holds one shard in memory
/// Throws: c10::ValueError if the folder is not empty, or if an encoding, a codec or a hash is unknown
/// Ref:    streaming.MDSWriter; writes the same bytes, except that a sample larger than the limit never causes an empty
///         shard before it
std::unique_ptr<Sink> mds_sink(const std::string& folder, const MdsSinkOptions& options = {});

}  // namespace bellows::data
