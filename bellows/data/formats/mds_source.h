#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bellows/data/sink.h"
#include "bellows/data/source.h"

namespace bellows::data {

/// Selects when the bytes of a shard are compared with the hashes in index.json. Sizes are always checked.
enum class Verify {
  never,
  first_use,  ///< when a shard is used for the first time, if it has hashes of a supported kind (io::hash_names)
  open        ///< when the dataset is opened, for all shards; throws if a shard has no hashes
};

struct MdsOptions {
  Verify verify = Verify::first_use;
};

/// Opens a MosaicML MDS dataset, version 2, which is a folder with an index.json.
///
/// Columns become fields with the same names. Columns with the encoding ndarray, pil or a number type become arrays.
/// Columns with the encoding jpeg, png, str, json or a similar one become bytes (see io::MdsEncoding). A text column
/// "__key__" holds the keys of the samples. If only the compressed form of a shard exists, the shard is decompressed in
/// memory when one of its samples is read. Decompressed shards are cached up to a size limit (see UnpackedFiles).
/// block_starts() returns the starts of the shards.
/// Params: folder – folder of one split, or its http(s):// URL. If a remote dataset has compressed shards, the
///         compressed files are downloaded
/// Cost:   opening reads only index.json (unless Verify::open is set). Reading maps shards and copies only compressed
///         data. The first read of a shard also computes its hashes (xxh64: 10 GB/s, sha1: 1 to 2 GB/s)
/// Throws: c10::ValueError if there is no index.json (the message lists splits below the folder) or the index is
///         invalid; if a shard is missing; if a column has the encoding pkl (pickles); if Verify::open is set and a
///         shard has no hashes. read() throws c10::ValueError if a shard or a sample does not match the index, or if a
///         hash is wrong
/// Ref:    streaming.StreamingDataset(local=folder)
SourcePtr open_mds(const std::string& folder, const MdsOptions& options = {});

struct MdsSinkOptions {
  /// Name and encoding of each column. If the list is empty, the first sample determines the columns:
  /// - The fields "jpg", "jpeg" and "png" are stored as jpeg or png. The field "image" is stored according to its
  ///   content.
  /// - "json" is stored as json, and the texts "cls" and "txt" as str. All other bytes are stored as bytes.
  /// - A scalar array is stored with the encoding of its dtype. Any other array is stored as ndarray:TYPE.
  /// - The key is stored in the column "__key__".
  std::vector<std::pair<std::string, std::string>> columns = {};
  std::string compression = "";          ///< "zstd:7", "gz", "bz2", "br" or "snappy"; "": no compression
  std::vector<std::string> hashes = {};  ///< names of hash algorithms (io::hash_names)
  uint64_t size_limit = 1 << 26;         ///< maximum size of a shard in bytes; 0: one shard of less than 4 GiB
};

/// Writes a dataset that MosaicML streaming can read. close() moves the finished folder to `folder`.
///
/// Every sample must have exactly the columns of the first sample.
/// Params: folder – must not exist, or must be empty
/// Cost:   holds one shard in memory
/// Throws: c10::ValueError if the folder is not empty, or if an encoding, a codec or a hash is unknown. write() throws
///         c10::ValueError if a sample does not match the columns
/// Ref:    streaming.MDSWriter. The bytes are equal, except that MDSWriter writes an empty shard before a sample that
///         is larger than the limit
std::unique_ptr<Sink> mds_sink(const std::string& folder, const MdsSinkOptions& options = {});

}  // namespace bellows::data
