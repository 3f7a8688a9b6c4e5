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
  /// Name of the format (OutputFormat::name). If empty, the suffix of the destination determines the format. If no
  /// format has this suffix, the format is "pack".
  std::string format;
  RecodeOptions picture;      ///< changes to the images
  int64_t shard_bytes = 0;    ///< a shard ends with the sample that reaches this size; 0: 1 GiB
  int64_t shard_samples = 0;  ///< maximum number of samples per shard; 0: no limit
  bool verify_all = false;    ///< if true, verification compares all samples with the source, not only some
  // Execution.
  int64_t threads = 0;                      ///< number of threads; 0: as many threads as can run at the same time
  const std::atomic<bool>* stop = nullptr;  ///< set it to true from any thread to stop the conversion in an orderly way
};

struct ConvertResult {
  std::string format;
  /// Paths of the shards, or of the only file or folder. If `stopped` is true, these are temporary paths.
  std::vector<std::string> files;
  int64_t samples = 0;   ///< number of samples in the dataset; if `stopped`, only those in complete shards
  int64_t kept = 0;      ///< how many of `samples` come from an interrupted run
  int64_t bytes = 0;     ///< total size of the files
  int64_t compared = 0;  ///< number of samples that were compared with the source, field by field
  bool stopped = false;  ///< true if ConvertOptions::stop ended the conversion; the same call resumes it
  double seconds = 0;
};

/// Converts a dataset: writes the samples of `data` to files of a chosen format. Samples are written in the order of
/// the source; the order and batch options of `data` have no effect.
///
/// `destination` determines the output:
/// - If its name ends in a suffix of the format, the output is one file.
/// - If the format is a folder, the output is one folder.
/// - Otherwise, the output is a folder of shards SPLIT-000000.SUFFIX with a dataset.json. You can add other splits to
///   this folder later.
///
/// Several threads read, scale and encode samples. The samples are then written in order. The same input gives the same
/// bytes with any number of threads.
///
/// All output is first written to a temporary folder, `DST.packing` or `DST/.packing`. It gets its final name after
/// verification. Verification reads all files back. It compares the number of samples, their keys and a checksum of
/// their content. It also compares some or all samples with the source, field by field.
///
/// The file `packing.json` in the temporary folder records the progress, so that the same call resumes after a crash or
/// kill -9. It resumes after the last complete shard; for a pack, after the last complete page. A call with a different
/// source or different options throws. If a conversion fails before a shard or a page is complete, it leaves no files.
/// Progress is reported through the log sink.
/// Cost:    4 samples per thread in memory, plus the buffers of the format
/// Threads: one call per destination
/// Throws:  c10::ValueError if there are no samples; if an option is invalid or does not suit the destination; if the
///          destination exists and is not an unfinished conversion with the same options; if a sample cannot be read or
///          the format cannot hold it; if verification finds a difference (the output then stays in the temporary
///          folder). c10::Error if the disk has too little space (checked before writing), if a write fails, or if
///          another process writes to the destination
ConvertResult convert(const Dataset& data, const std::string& destination, const ConvertOptions& options = {});

}  // namespace bellows::data
