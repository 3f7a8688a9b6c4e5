#pragma once

#include "bellows/data/sink.h"
#include "bellows/data/source.h"

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace bellows::data {

/// Opens WebDataset shards, which are tar files of `key.suffix` members, with random access. block_starts() returns the
/// starts of the shards.
///
/// A sample consists of consecutive members with the same key. The key is the path up to the first dot of the base
/// name, and the rest is the suffix in lower case. These members are skipped:
/// - members that are not regular files
/// - names without a suffix, and hidden names (`.x`)
/// - paths that begin with a name of the form `__…__`
///
/// Shards may be URLs (see ShardFiles), and may be compressed as a whole (gzip, bzip2, xz, zstd, lz4). A compressed
/// shard is decompressed into memory when one of its samples is read. The most recently used shards are cached, up to 1
/// GiB. In random order over many shards, almost every sample would require a decompression. Therefore, shuffle
/// compressed shards by blocks.
/// Params: shards – paths and URLs of tar files, in order
/// Cost:   opening reads the headers of all members once. If a shard is remote, compressed or at least 64 MiB large,
///         its index is cached (see TarShards in webdataset.cpp). In memory, a sample with two members takes about 60
///         bytes. Reading copies nothing and makes one system call for the size of the shard
/// Throws: c10::ValueError if there are no shards; if a shard is missing or corrupt (the message names the path and the
///         byte offset); if a name contains `..`; if a suffix occurs twice in a sample; if a compressed shard expands
///         to more than 1,000 times its size (and more than 256 MiB), or to more than 16 GiB. read() throws
///         c10::ValueError if the sample's shard was truncated or changed since it was opened. c10::Error if the
///         network fails
/// Ref:    webdataset/tariterators.py
SourcePtr open_webdataset(const std::vector<std::string>& shards);

/// Options for the shards that webdataset_sink() writes.
struct WebDatasetSinkOptions {
  int64_t max_samples = 100'000;  ///< maximum number of samples per shard
  /// Limit for the total size of the members. A shard that has reached the limit gets no more samples.
  int64_t max_bytes = 3'000'000'000;
  int64_t first_shard = 0;  ///< number of the first shard
  bool dali_index = false;  ///< if true, writes an index `NAME.idx` next to each shard (io::dali_index)
};

/// Writes WebDataset shards like webdataset's ShardWriter. However, the time in the headers is fixed, so that equal
/// samples give equal bytes. close() moves all finished shards into place.
///
/// A field of bytes becomes a member with the name of the field as suffix. A scalar int64 array "label" becomes `cls`,
/// and any other array becomes `NAME.npy`. A sample without a key is named after its id, such as "000000007".
/// Params: pattern – path with a placeholder for the shard number in printf notation, such as "train-%06d.tar"; %% is a
///         percent sign. Without a placeholder, all samples go into one shard
/// Throws: c10::ValueError if the pattern or a limit is invalid. write() throws c10::ValueError if a reader would split
///         the name of a member into a different key and field name, if a key contains `..`, or if two fields become
///         one member
/// Ref:    webdataset.ShardWriter
std::unique_ptr<Sink> webdataset_sink(const std::string& pattern, const WebDatasetSinkOptions& options = {});

/// Splits the name of a member into key and suffix, as WebDataset does. Returns false if the member does not belong to
/// a sample.
bool split_member_name(std::string_view name, std::string_view& key, std::string_view& suffix);

}  // namespace bellows::data
