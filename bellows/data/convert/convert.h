#pragma once

#include <atomic>
#include <string>
#include <vector>

#include "bellows/data/convert/output_format.h"
#include "bellows/data/convert/recode.h"
#include "bellows/data/dataset.h"

namespace bellows::data {

struct ConvertOptions {
  // Contents of the output.
  std::string format;         ///< as OutputFormat::name; "": by the suffix of the destination, else "pack"
  RecodeOptions picture;      ///< changes to the images
  int64_t shard_bytes = 0;    ///< a shard ends with the sample that reaches this size; 0: 1 GiB
  int64_t shard_samples = 0;  ///< maximum number of samples per shard; 0: no limit
  bool verify_all = false;    ///< compare all samples at the end instead of some
  // Execution.
  int64_t threads = 0;                      ///< 0: as many as can run at a time
  const std::atomic<bool>* stop = nullptr;  ///< set it from any thread to stop soon and in an orderly way
};

struct ConvertResult {
  std::string format;
  std::vector<std::string> files;  ///< the finished shards, or the one folder; with `stopped`: their temporary paths
  int64_t samples = 0;             ///< in the dataset; with `stopped`: safely written so far
  int64_t kept = 0;                ///< part of `samples` that an interrupted run left
  int64_t bytes = 0;               ///< of all files
  int64_t compared = 0;            ///< samples that were compared with the source, field by field
  bool stopped = false;            ///< by ConvertOptions::stop; the same call resumes the conversion
  double seconds = 0;
};

/// Writes the samples of `data` in another format, in source order, regardless of its order and batch options.
///
/// `destination` is one file if its name ends in a suffix of the format, or one folder if the format is a folder.
/// Otherwise it is a folder of shards SPLIT-000000.SUFFIX with a dataset.json, to which you can add other splits later.
/// Several threads read, scale and encode samples, which are then written in order. Equal input gives equal bytes for
/// any number of threads.
///
/// All output is written into a temporary folder, `DST.packing` or `DST/.packing`, and gets its final name after
/// verification. Verification reads everything back and compares the number of samples, their keys and a checksum of
/// their content. It also compares some samples (or all) with the source, field by field.
///
/// The progress is recorded in the temporary folder's `packing.json`. After kill -9, the same call resumes after the
/// last complete shard, or for a pack after its last complete page. With another source or other options, it throws. If
/// a conversion fails before a shard or a page is complete, it leaves no files. Progress is reported through the log
/// sink.
/// Cost:    4 samples per thread in memory, plus the buffers of the format
/// Threads: one call per destination
/// Throws:  c10::ValueError if there are no samples; if the destination exists and is not an unfinished conversion, or
///          is one with other options; if a sample cannot be read or the format cannot hold it; if the content differs
///          after writing (it then stays in the temporary folder).
///          c10::Error if the disk has too little space (checked before writing) or a write fails
ConvertResult convert(const Dataset& data, const std::string& destination, const ConvertOptions& options = {});

}  // namespace bellows::data
