#include <c10/util/Exception.h>

#include "bellows/core/error.h"
#include "bellows/core/progress.h"
#include "bellows/data/convert/compare.h"
#include "bellows/data/convert/convert_impl.h"
#include "bellows/data/convert/in_order_impl.h"

namespace bellows::data {

namespace {

constexpr int64_t usually_compared = 256;

/// Which samples are compared with the source, field by field.
std::vector<bool> samples_to_compare(const OutputFormat& format, int64_t size, bool all,
                                     const std::vector<FinishedShard>& shards) {
  std::vector<bool> chosen(static_cast<size_t>(size), all && format.keeps_order);
  if (!format.keeps_order) return chosen;
  for_spread(size, usually_compared, [&](int64_t i) { chosen[static_cast<size_t>(i)] = true; });
  int64_t begin = 0;
  for (const FinishedShard& shard : shards) {
    for (int64_t i = begin; i < begin + shard.kept; ++i) chosen[static_cast<size_t>(i)] = true;
    begin += shard.samples;
  }
  return chosen;
}

void compare_sample(const OutputFormat& format, int64_t index, const Sample& written, const Sample& read) {
  if (format.keeps_keys && !written.key.empty()) {
    TORCH_CHECK_VALUE(written.key == read.key, "convert: after writing, sample ", index, " has the key ",
                      io::printable(read.key), ", expected ", io::printable(written.key), ".");
  }
  std::string what;
  try {
    what = difference(written, read);
  } catch (const std::exception& error) {
    what = user_message(error);
  }
  TORCH_CHECK_VALUE(what.empty(), "convert: after writing, ", read.where(), " differs from what was written: ", what,
                    ".");
}

}  // namespace

int64_t verify_shards(const Source& source, const OutputFormat& format, const std::vector<std::string>& files,
                      const ConvertOptions& options, int64_t threads, const std::vector<FinishedShard>& shards) {
  const SourcePtr written = format.open(files);
  TORCH_CHECK_VALUE(written->size() == source.size(), "convert: wrote ", source.size(), " samples, read back ",
                    written->size(), " (", written->describe(), ").");
  const std::vector<bool> chosen = samples_to_compare(format, source.size(), options.verify_all, shards);
  const Recoder recoder(options.picture);
  Progress progress("verifying", source.size(), "samples");
  size_t shard = 0;
  int64_t in_shard = 0, compared = 0;
  uint64_t digest = 0;
  const auto make = [&](int64_t index, ConvertSlot& slot) {
    written->read(index, slot.read_back);
    if (!chosen[static_cast<size_t>(index)]) return;
    source.read(index, slot.sample);
    recoder.run(slot.sample, slot.work);
    compare_sample(format, index, slot.sample, slot.read_back);
  };
  const auto use = [&](int64_t index, ConvertSlot& slot) {
    if (in_shard >= shards[shard].kept) digest += sample_digest(slot.read_back, index, format.keeps_keys);
    compared += chosen[static_cast<size_t>(index)];
    progress.advance(1);
    if (++in_shard == shards[shard].samples) {
      TORCH_CHECK_VALUE(!format.exact || digest == shards[shard].digest, "convert: after writing, the content of ",
                        shards[shard].name, " has another checksum than what was written. Remove it and start anew.");
      ++shard;
      in_shard = 0;
      digest = 0;
    }
    return !(options.stop && options.stop->load());
  };
  in_order<ConvertSlot>(0, source.size(), threads, make, use);
  return compared;
}

}  // namespace bellows::data
