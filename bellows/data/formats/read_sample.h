#pragma once

#include <c10/util/Exception.h>

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "bellows/core/error.h"
#include "bellows/data/formats/file_starts.h"
#include "bellows/data/formats/shard_files.h"
#include "bellows/data/sample.h"
#include "bellows/io/bytes.h"

namespace bellows::data {

/// Calls `read` and adds the sample to the message of its exception. The exception type is kept: c10::ValueError for a
/// bad sample, another c10::Error for a network failure.
/// Params: where – returns the sample's description, "sample 7"
template <class Where, class Read>
void read_naming(const Where& where, const Read& read) {
  try {
    read();
  } catch (const c10::ValueError& error) {
    TORCH_CHECK_VALUE(false, "read: ", where(), ": ", user_message(error));
  } catch (const c10::Error& error) {
    TORCH_CHECK(false, "read: ", where(), ": ", user_message(error));
  }
}

/// Calls `parse`, which parses the content of a file. If it throws c10::ValueError and the content came from the cache,
/// adds the cached copy to the message, because the copy may have been damaged during the download.
template <class Parse>
void parse_content(const ShardFiles& files, size_t file, const Parse& parse) {
  try {
    parse();
  } catch (const c10::ValueError& error) {
    const std::string copy = files.doubt(file);
    if (copy.empty()) throw;
    TORCH_CHECK_VALUE(false, user_message(error), copy);
  }
}

/// Clears `sample`, then sets its id and its file. `files` must outlive it.
inline void begin_sample(const ShardFiles& files, size_t file, int64_t id, Sample& sample) {
  sample.clear();
  sample.id = id;
  sample.file = files.name(file);
  sample.origin = &files;
  sample.origin_file = file;
}

/// Reads sample `index` of record files: calls begin_sample(), then `read`, and adds the offset of the record to the
/// message of an exception.
/// Params: read – called with the number of the file and the record's offset in it
template <class Read>
void read_record(const ShardFiles& files, const SampleOffsets& offsets, int64_t index, Sample& sample,
                 const Read& read) {
  const size_t file = offsets.file_of(index);
  const uint64_t offset = offsets[index];
  begin_sample(files, file, index, sample);
  read_naming([&] { return c10::str("sample (id ", index, "), record at byte ", offset, " of ", files.name(file)); },
              [&] { read(file, offset); });
}

/// Reads a byte of every page of a part of a mapped file, so that it is in memory; used by Source::prefetch.
inline void touch_pages(io::ByteSpan bytes) {
  constexpr size_t page = 4096;
  unsigned sum = 0;
  for (size_t at = 0; at < bytes.size(); at += page) sum += std::to_integer<unsigned>(bytes[at]);
  if (!bytes.empty()) sum += std::to_integer<unsigned>(bytes.back());
  static std::atomic<unsigned> kept;
  kept.store(sum, std::memory_order_relaxed);  // so that the compiler keeps the reads
}

/// The same for [begin, end), clipped to the end of the file.
inline void touch_pages(io::ByteSpan file, uint64_t begin, uint64_t end) {
  end = std::min<uint64_t>(end, file.size());
  if (begin < end) touch_pages(file.subspan(begin, end - begin));
}

}  // namespace bellows::data
