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

/// Calls `read` and says in what it throws which sample it was. The kind of error stays: a bad sample is a
/// c10::ValueError, a network that fails another c10::Error.
/// Params: where – makes the words: "sample 7"
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

/// Calls `parse`, which makes sense of the content of a file. What it throws where it cannot, a c10::ValueError, names
/// the copy in the cache, too, if that is what was read: it may have been damaged on its way.
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

/// Makes `sample` empty but for what tells it from others. `files` outlive it.
inline void begin_sample(const ShardFiles& files, size_t file, int64_t id, Sample& sample) {
  sample.clear();
  sample.id = id;
  sample.file = files.name(file);
  sample.origin = &files;
  sample.origin_file = file;
}

/// Reads sample `index` of files of records: makes `sample` empty but for what tells it from others, and says in what
/// `read` throws where its record begins.
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

/// Reads a byte of every page of a mapped file's part, so that it is in memory: what Source::prefetch does.
inline void touch_pages(io::ByteSpan bytes) {
  constexpr size_t page = 4096;
  unsigned sum = 0;
  for (size_t at = 0; at < bytes.size(); at += page) sum += std::to_integer<unsigned>(bytes[at]);
  if (!bytes.empty()) sum += std::to_integer<unsigned>(bytes.back());
  static std::atomic<unsigned> kept;
  kept.store(sum, std::memory_order_relaxed);  // so that the reads are not left out
}

/// The same of [begin, end), as far as the file goes.
inline void touch_pages(io::ByteSpan file, uint64_t begin, uint64_t end) {
  end = std::min<uint64_t>(end, file.size());
  if (begin < end) touch_pages(file.subspan(begin, end - begin));
}

}  // namespace bellows::data
