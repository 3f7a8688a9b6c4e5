#pragma once

#include <atomic>
#include <string>
#include <vector>

#include "bellows/data/convert/output_format.h"
#include "bellows/data/convert/recode.h"
#include "bellows/data/dataset.h"

namespace bellows::data {

struct ConvertOptions {
  // What comes out.
  std::string format;         ///< as OutputFormat::name; "": by the suffix of the destination, else "pack"
  RecodeOptions picture;      ///< what happens to pictures
  int64_t shard_bytes = 0;    ///< a shard ends with the sample that brings it to this; 0: 1 GiB
  int64_t shard_samples = 0;  ///< a shard has no more than these; 0: no such limit
  bool verify_all = false;    ///< compare every sample at the end, not only some
  // How.
  int64_t threads = 0;                      ///< 0: as many as can run at a time
  const std::atomic<bool>* stop = nullptr;  ///< set from anywhere: end soon, in order
};

struct ConvertResult {
  std::string format;
  std::vector<std::string> files;  ///< those of finished shards, or the one folder; with `stopped`: where they wait
  int64_t samples = 0;             ///< in the data set; with `stopped`: that are safely written
  int64_t kept = 0;                ///< of these, left by an interrupted run
  int64_t bytes = 0;               ///< of all files
  int64_t compared = 0;            ///< samples that were compared with the source, field by field
  bool stopped = false;            ///< by ConvertOptions::stop; the same call goes on
  double seconds = 0;
};

/// Writes the samples of `data` in another format, in their order, whatever was set for batches.
///
/// `destination` is one file if its name ends in a suffix of the format, or if the format is a folder itself; else a folder
/// of shards SPLIT-000000.SUFFIX with a dataset.json, to which other splits may be added later. Samples are read, scaled and encoded in threads and written in
/// order: equal input, equal bytes, whatever the number of threads.
///
/// Everything is written into a folder of its own, `DST.packing` or `DST/.packing`, and gets its final name only when it is
/// verified: all is read back, the number of samples, their keys and the checksum of their content are compared, and some
/// samples (or all) with the source, field by field.
///
/// What is done is noted in its `packing.json`. After kill -9 the same call goes on behind the last whole shard, in a pack
/// behind its last whole page; with another source or other options it refuses. What fails before something is whole
/// leaves nothing behind.
/// Progress is reported through the log sink.
/// Cost:     4 samples a thread in memory, beside what the format holds back
/// Threads:  one call a destination
/// Throws:   c10::ValueError – no samples, a destination that is there and is no unfinished conversion, or one with other
///           options; a sample that cannot be read or that the format cannot hold; content that differs after writing,
///           which then waits in that folder.
///           c10::Error – not enough room on the disk (looked at before), a write that fails
ConvertResult convert(const Dataset& data, const std::string& destination, const ConvertOptions& options = {});

}  // namespace bellows::data
