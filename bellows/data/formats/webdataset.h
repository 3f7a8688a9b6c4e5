#pragma once

#include "bellows/data/sink.h"
#include "bellows/data/source.h"

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace bellows::data {

/// WebDataset shards (tar files of `key.suffix` members) with random access. block_starts() returns the starts of the
/// shards.
///
/// A sample is a run of members with the same key: the path up to the first dot of its base name. The suffix is
/// lower-cased. Members are skipped if they are not regular files, have no suffix, are hidden (`.x`), or if their path
/// begins with a name of the form `__…__`.
///
/// Shards may be compressed as a whole (gzip, bzip2, xz, zstd, lz4). A compressed shard is decompressed into memory
/// when one of its samples is read; the most recently used shards are cached, up to 1 GiB. In random order over all
/// shards, almost each sample would require a decompression, so shuffle them by blocks. Shards may be URLs (see
/// ShardFiles).
/// Params: shards – paths and URLs of tar files, in order
/// Cost:   opening reads the headers of all members once; if a shard is remote, compressed or larger than 64 MiB, its
///         index is cached (see TarShards in webdataset.cpp). About 60 bytes per sample and its two members in memory.
///         Reading copies nothing and makes one system call for the size of the shard
/// Throws: c10::ValueError if there are no shards; if a shard is missing or corrupt (the message names the path and the
///         byte offset); if a name contains `..`; if a suffix occurs twice in a sample; if a compressed shard is a
///         thousand times larger when decompressed. read() throws c10::ValueError if the sample's shard was truncated
///         or changed since it was opened. c10::Error if the network fails
/// Ref:    webdataset/tariterators.py
SourcePtr open_webdataset(const std::vector<std::string>& shards);

/// How webdataset_sink divides samples into shards.
struct WebDatasetSinkOptions {
  int64_t max_samples = 100'000;      ///< per shard
  int64_t max_bytes = 3'000'000'000;  ///< of members: a shard that has reached it gets no more samples
  int64_t first_shard = 0;            ///< number of the first shard
  bool dali_index = false;            ///< writes `NAME.idx` beside each shard (io::dali_index)
};

/// Writes WebDataset shards like webdataset's ShardWriter, but with a fixed time in the headers, so that equal samples
/// give equal bytes. All shards appear under their names when close() is called.
///
/// Bytes become members under their field's name; a scalar int64 "label" becomes `cls`, other arrays `NAME.npy`. A
/// sample without a key is named after its id, "000000007".
/// Params: pattern – with a number in printf notation: "train-%06d.tar", %% for a percent sign; without a number, it is
///         a single shard
/// Throws: c10::ValueError if the pattern or a limit is invalid. write() throws c10::ValueError if reading would split
///         a key or a field's name differently, if a key contains `..`, or if two fields become one member
/// Ref:    webdataset.ShardWriter
std::unique_ptr<Sink> webdataset_sink(const std::string& pattern, const WebDatasetSinkOptions& options = {});

/// Splits a member's name as WebDataset does. Returns false if it is not part of a sample.
bool split_member_name(std::string_view name, std::string_view& key, std::string_view& suffix);

}  // namespace bellows::data
