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

/// Calls `read`. If it throws, adds the sample's description to the message. The type of the exception does not change:
/// c10::ValueError for a bad sample, and c10::Error for a network failure.
/// Params: where – returns the description of the sample, such as "sample 7"
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

/// Calls `parse`, which parses the content of a file. If `parse` throws c10::ValueError and the content came from the
/// cache, adds the path of the cached copy to the message. The copy may have been damaged during the download.
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

/// Clears `sample` and sets its id and its file. `files` must outlive the sample.
inline void begin_sample(const ShardFiles& files, size_t file, int64_t id, Sample& sample) {
  sample.clear();
  sample.id = id;
  sample.file = files.name(file);
  sample.origin = &files;
  sample.origin_file = file;
}

/// Reads sample `index` from files of records. Calls begin_sample(), then `read`. If `read` throws, adds the byte
/// offset of the record to the message.
/// Params: read – called with the index of the file and the byte offset of the record
template <class Read>
void read_record(const ShardFiles& files, const SampleOffsets& offsets, int64_t index, Sample& sample,
                 const Read& read) {
  const size_t file = offsets.file_of(index);
  const uint64_t offset = offsets[index];
  begin_sample(files, file, index, sample);
  read_naming([&] { return c10::str("sample (id ", index, "), record at byte ", offset, " of ", files.name(file)); },
              [&] { read(file, offset); });
}

/// Reads one byte of each page of `bytes`, so that the pages are loaded into memory. Implementations of
/// Source::prefetch call it.
inline void touch_pages(io::ByteSpan bytes) {
  constexpr size_t page = 4096;
  unsigned sum = 0;
  for (size_t at = 0; at < bytes.size(); at += page) sum += std::to_integer<unsigned>(bytes[at]);
  if (!bytes.empty()) sum += std::to_integer<unsigned>(bytes.back());
  static std::atomic<unsigned> kept;
  kept.store(sum, std::memory_order_relaxed);  // so that the compiler keeps the reads
}

/// Like touch_pages() above, but for the bytes [begin, end) of a file. The range may extend beyond the end of the file.
inline void touch_pages(io::ByteSpan file, uint64_t begin, uint64_t end) {
  end = std::min<uint64_t>(end, file.size());
  if (begin < end) touch_pages(file.subspan(begin, end - begin));
}

}  // namespace bellows::data
