#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bellows/data/sink.h"
#include "bellows/data/source.h"

namespace bellows::data {

/// When a shard's bytes are compared with the hashes that index.json gives. Sizes are compared in any case.
enum class Verify {
  never,
  first_use,  ///< of a shard, where there are hashes of it that are known (io::hash_names)
  open        ///< all shards, when the data set is opened; one without hashes is an error
};

struct MdsOptions {
  Verify verify = Verify::first_use;
};

/// The samples of a MosaicML MDS data set, version 2: a folder with index.json.
///
/// Columns are fields of the same name: numbers, ndarray and pil are arrays, jpeg, png, str, json and the like are bytes
/// (see io::MdsEncoding). A column "__key__" of texts is the samples' key. A shard that is there only compressed is
/// unpacked in memory when a sample of it is read, and kept while there is room (see UnpackedFiles); block_starts() tells
/// where shards begin, so that an order can keep to them.
/// Params:   folder – of one split; also http(s)://, where compressed shards are taken if there are any
/// Cost:     opening reads index.json only (unless Verify::open); reading maps shards and copies nothing but what is
///           compressed. The first sample of a shard costs its hashes (xxh64: 10 GB/s, sha1: 1 to 2)
/// Throws:   c10::ValueError – no index.json (lists splits below), an index that cannot be, a missing shard, a column
///           of pickles, nothing to verify; read() – a shard or sample that does not fit the index, a wrong hash
/// Ref:      streaming.StreamingDataset(local=folder)
SourcePtr open_mds(const std::string& folder, const MdsOptions& options = {});

struct MdsSinkOptions {
  /// Name and encoding of each column. Empty: learnt from the first sample – jpg, jpeg and png fields (and "image" by
  /// its content) are files, "json" is json, texts "cls" and "txt" are str, other bytes are bytes, a scalar is its type,
  /// an array ndarray:TYPE; a key is the column "__key__".
  std::vector<std::pair<std::string, std::string>> columns = {};
  std::string compression = "";          ///< "zstd:7", "gz", "bz2", "br", "snappy"; "": none
  std::vector<std::string> hashes = {};  ///< algorithms (io::hash_names)
  uint64_t size_limit = 1 << 26;         ///< of a shard, in bytes; 0: one shard, of less than 4 GiB
};

/// Writes a data set that streaming reads; the folder appears under its name only by close().
///
/// Every sample must have the columns of the first, and no others.
/// Params:   folder – not there yet, or empty
/// Cost:     holds one shard in memory
/// Throws:   c10::ValueError – the folder is in use, an unknown encoding, codec or hash
/// Ref:      streaming.MDSWriter: the same bytes, but that a sample larger than the limit never leaves an empty shard
///           in front of it
std::unique_ptr<Sink> mds_sink(const std::string& folder, const MdsSinkOptions& options = {});

}  // namespace bellows::data
