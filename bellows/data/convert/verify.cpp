#include "bellows/data/convert/verify.h"

#include <c10/util/Exception.h>

#include <unordered_map>

#include "bellows/core/error.h"
#include "bellows/core/progress.h"
#include "bellows/data/convert/compare.h"
#include "bellows/data/convert/in_order.h"
#include "bellows/data/for_each_spaced.h"

namespace bellows::data {

namespace {

constexpr int64_t usually_compared = 256;

/// A sample from the source and the same sample read back.
struct VerifiedSample {
  Sample sample, read_back;
  Recoder::Work work;
};

/// Selects the samples to compare with the source, field by field.
std::vector<bool> samples_to_compare(int64_t size, bool all, const std::vector<FinishedShard>& shards) {
  std::vector<bool> chosen(static_cast<size_t>(size), all);
  for_each_spaced(size, usually_compared, [&](int64_t i) { chosen[static_cast<size_t>(i)] = true; });
  int64_t begin = 0;
  for (const FinishedShard& shard : shards) {
    for (int64_t i = begin; i < begin + shard.kept; ++i) chosen[static_cast<size_t>(i)] = true;
    begin += shard.samples;
  }
  return chosen;
}

bool is_stopped(const ConvertOptions& options) {
  return options.stop && options.stop->load();
}

/// Positions of the samples in the written files if the format changes their order. Reads all samples, unless it is
/// stopped.
class WrittenPositions {
 public:
  WrittenPositions(const OutputFormat& format, const Source& written, const ConvertOptions& options) : format_(format) {
    if (!format.file_name) return;
    Sample sample;
    for (int64_t i = 0; i < written.size() && !is_stopped(options); ++i) {
      written.read(i, sample);
      positions_[c10::str(sample.key, ".", sample.fields.front().name)] = i;
    }
  }
  int64_t of(const Sample& sample) const {
    const std::string name = format_.file_name(sample);
    const auto found = positions_.find(name);
    TORCH_CHECK_VALUE(found != positions_.end(), "convert: after writing, ", io::printable(name), " is missing.");
    return found->second;
  }

 private:
  const OutputFormat& format_;
  std::unordered_map<std::string, int64_t> positions_;
};

void compare_sample(const OutputFormat& format, int64_t index, const Sample& written, const Sample& read) {
  if (format.keeps_keys && !written.key.empty()) {
    TORCH_CHECK_VALUE(written.key == read.key, "convert: after writing, sample ", index, " has the key ",
                      io::printable(read.key), ", expected ", io::printable(written.key), ".");
  }
  std::string what;
  try {
    what = difference(written, read, format.jpeg_quality);
  } catch (const std::exception& error) {
    what = user_message(error);
  }
  TORCH_CHECK_VALUE(what.empty(), "convert: after writing, ", read.where(), " differs from what was written: ", what,
                    ".");
}

/// Visits the samples that were read back, in order, and compares them with the recorded data of each shard.
class ShardCheck {
 public:
  ShardCheck(const OutputFormat& format, const std::vector<FinishedShard>& shards) : format_(format), shards_(shards) {}

  void add(const Sample& read, int64_t position) {
    const FinishedShard& shard = shards_[shard_];
    if (samples_ >= shard.kept) digest_ += sample_digest(format_, read, position);
    if (++samples_ < shard.samples) return;
    // Some formats create keys for samples without one.
    const bool keys = format_.keeps_keys && shard.unnamed == 0;
    TORCH_CHECK_VALUE(digest_ == shard.digest || !(format_.exact || keys), "convert: after writing, the ",
                      format_.exact ? "content" : "keys", " of ", shard.name, " differ from the written samples.");
    ++shard_;
    samples_ = 0;
    digest_ = 0;
  }

 private:
  const OutputFormat& format_;
  const std::vector<FinishedShard>& shards_;
  size_t shard_ = 0;
  int64_t samples_ = 0;
  uint64_t digest_ = 0;
};

}  // namespace

std::optional<int64_t> verify_shards(const Source& source, const OutputFormat& format,
                                     const std::vector<std::string>& files, const ConvertOptions& options,
                                     int64_t threads, const std::vector<FinishedShard>& shards) {
  const SourcePtr written = format.open(files);
  TORCH_CHECK_VALUE(written->size() == source.size(), "convert: wrote ", source.size(), " samples, read back ",
                    written->size(), " (", written->describe(), ").");
  const std::vector<bool> chosen = samples_to_compare(source.size(), options.verify_all || format.retypes, shards);
  const WrittenPositions positions(format, *written, options);
  if (is_stopped(options)) return std::nullopt;
  const Recoder recoder(options.picture);
  Progress progress("verifying", source.size(), "samples");
  ShardCheck check(format, shards);
  int64_t compared = 0;
  bool stopped = false;
  const auto make = [&](int64_t index, VerifiedSample& slot) {
    if (!format.file_name) written->read(index, slot.read_back);
    if (!chosen[static_cast<size_t>(index)]) return;
    source.read(index, slot.sample);
    recoder.run(slot.sample, slot.work);
    if (format.file_name) written->read(positions.of(slot.sample), slot.read_back);
    compare_sample(format, index, slot.sample, slot.read_back);
  };
  const auto use = [&](int64_t index, VerifiedSample& slot) {
    check.add(slot.read_back, index);
    compared += chosen[static_cast<size_t>(index)];
    progress.advance(1);
    stopped = is_stopped(options);
    return !stopped;
  };
  in_order<VerifiedSample>(0, source.size(), threads, make, use);
  if (stopped) return std::nullopt;
  return compared;
}

}  // namespace bellows::data
