#pragma once

#include "bellows/data/sink.h"
#include "bellows/data/source.h"

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace bellows::data {

/// WebDataset shards (tar files of `key.suffix` members) with random access; block_starts() are the shards'.
///
/// A sample is a run of members with one key: the path up to the first dot of its base name; the suffix is lower-cased.
/// Skipped: what is no regular file, has no suffix, is hidden (`.x`), or whose path begins with a name of the form
/// `__…__`.
///
/// Shards may be compressed as a whole (gzip, bzip2, xz, zstd, lz4): one is unpacked into memory when a sample of it is
/// read, and those used last are kept, up to 1 GiB. In random order over all shards each sample would cost an unpacking:
/// shuffle them by blocks. Shards may be URLs (see ShardFiles).
/// Params:   shards – paths and URLs of tar files, in order
/// Cost:     opening reads the headers of all members once; of a shard that is remote, compressed or larger than 64 MiB
///           the index is kept (see TarShards in webdataset.cpp). About 60 bytes a sample and its two members in memory.
///           Reading copies nothing and asks the system once for the size of the shard
/// Throws:   c10::ValueError – no shards, a shard missing or corrupt (path and byte offset), a name with `..`, a suffix
///           twice in one sample, a compressed shard that unpacks to a thousand times its size; read() – the sample's
///           shard was cut short or changed since it was opened. c10::Error – the network failed
/// Ref:      webdataset/tariterators.py
SourcePtr open_webdataset(const std::vector<std::string>& shards);

/// How webdataset_sink cuts shards.
struct WebDatasetSinkOptions {
  int64_t max_samples = 100'000;      ///< a shard
  int64_t max_bytes = 3'000'000'000;  ///< of members: a shard that has them gets no further sample
  int64_t first_shard = 0;            ///< number of the first
  bool dali_index = false;            ///< writes `NAME.idx` beside each shard (io::dali_index)
};

/// Writes WebDataset shards as webdataset's ShardWriter does, with a fixed time in the headers: equal samples, equal
/// bytes. All shards appear under their names at close().
///
/// Bytes become members under their field's name; a scalar int64 "label" becomes `cls`, other arrays `NAME.npy`. A
/// sample without a key is called after its id, "000000007".
/// Params: pattern – with a number in it, as printf writes it: "train-%06d.tar", %% for a percent sign; without one, a single shard
/// Throws: c10::ValueError – the pattern, no limits; write(): a key or a field's name that reading would take apart in
///         another way, `..` in a key, two fields that become one member
/// Ref:    webdataset.ShardWriter
std::unique_ptr<Sink> webdataset_sink(const std::string& pattern, const WebDatasetSinkOptions& options = {});

/// Splits a member's name as WebDataset does. False when it takes no part in a sample.
bool split_member_name(std::string_view name, std::string_view& key, std::string_view& suffix);

}  // namespace bellows::data
