#include "bellows/data/formats/mds_source.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <filesystem>

#include "bellows/core/error.h"
#include "bellows/core/mutex.h"
#include "bellows/data/formats/file_starts.h"
#include "bellows/data/formats/read_sample.h"
#include "bellows/data/formats/shard_files.h"
#include "bellows/data/formats/unpacked_files.h"
#include "bellows/io/archives/compress.h"
#include "bellows/io/hash.h"
#include "bellows/io/records/mds.h"
#include "bellows/io/records/mds_value.h"

namespace bellows::data {

namespace {

namespace fs = std::filesystem;

void check_hashes(io::ByteSpan bytes, const io::MdsFile& file, const std::string& where) {
  for (const auto& [name, expected] : file.hashes) {
    if (!std::ranges::binary_search(io::hash_names(), name)) continue;
    const std::string found = io::hash_hex(name, bytes);
    TORCH_CHECK_VALUE(found == expected, where, ": expected the ", name, " ", expected, " from index.json, found ",
                      found, ". The file is corrupt. Copy it again.");
  }
}

/// Paths of the files to read: the shard itself or, if it is missing, its compressed form.
std::vector<std::string> shard_paths(const fs::path& folder, const std::vector<io::MdsShard>& shards) {
  TORCH_CHECK_VALUE(!shards.empty(), "open_mds: ", (folder / "index.json").string(), " lists no shards.");
  std::vector<std::string> paths;
  for (const io::MdsShard& shard : shards) {
    if (io::is_url(folder.string())) {
      paths.push_back((folder / (shard.zip ? *shard.zip : shard.raw).basename).string());
      continue;
    }
    const fs::path raw = folder / shard.raw.basename;
    std::error_code ignored;
    const bool packed = shard.zip && !fs::exists(raw, ignored);
    paths.push_back(packed ? (folder / shard.zip->basename).string() : raw.string());
    TORCH_CHECK_VALUE(fs::exists(paths.back(), ignored), "open_mds: ", paths.back(),
                      ", which index.json lists, is missing. Copy the file to this folder.");
  }
  return paths;
}

std::string fetch_index(const ShardFiles& index, const std::string& folder) try {
  return std::string(io::as_text(index.map(0)->bytes()));
} catch (const c10::ValueError& error) {
  TORCH_CHECK_VALUE(false, "open_mds: ", user_message(error),
                    " The files of a folder on a server cannot be listed. Without an index.json, name the files (",
                    io::public_url(folder),
                    "/train-{000..099}.tar). To create such files from folders of images, use `bellows pack`.");
}

std::string read_index(const fs::path& folder) {
  const fs::path index = folder / "index.json";
  std::error_code ignored;
  if (fs::exists(index, ignored)) return read_text_file(index.string());
  std::vector<std::string> splits;
  for (fs::directory_iterator entry(folder, ignored); entry != fs::directory_iterator(); entry.increment(ignored)) {
    if (fs::exists(entry->path() / "index.json", ignored)) splits.push_back(entry->path().filename().string());
  }
  std::sort(splits.begin(), splits.end());
  TORCH_CHECK_VALUE(false, "open_mds: ", index.string(), " is missing",
                    splits.empty() ? std::string(". Expected a folder that MDSWriter wrote")
                                   : ". The folder has the splits " + c10::Join(", ", splits) + ". Open one of them",
                    ".");
}

std::vector<io::MdsShard> read_shards(const fs::path& folder) {
  const std::string path = (folder / "index.json").string();
  if (!io::is_url(path)) return io::parse_mds_index(read_index(folder), path);
  const ShardFiles index({path});
  const std::string text = fetch_index(index, folder.string());
  std::vector<io::MdsShard> shards;
  parse_content(index, 0, [&] { shards = io::parse_mds_index(text, index.name(0)); });
  return shards;
}

class MdsSource final : public Source {
 public:
  using Source::read;

  MdsSource(const fs::path& folder, const MdsOptions& options)
      : options_(options), shards_(read_shards(folder)), files_(shard_paths(folder, shards_)) {
    for (const io::MdsShard& shard : shards_) {
      if (options.verify == Verify::open) check_verifiable(shard);
      starts_.add(size_);
      size_ += static_cast<int64_t>(shard.samples);
      add_encodings(shard);
    }
    verdicts_.resize(shards_.size());
    packed_.reserve(shards_.size());
    for (size_t i = 0; i < shards_.size(); ++i) packed_.push_back(is_packed(i));
    for (size_t i = 0; options.verify == Verify::open && i < shards_.size(); ++i) content(i);
  }

  int64_t size() const override { return size_; }
  bool stored() const override { return true; }
  std::string describe() const override { return files_.describe(); }

  std::vector<int64_t> block_starts() const override { return starts_.block_starts(size_); }

  bool prefetch(int64_t index) const override {
    const size_t which = starts_.file_of(index);
    const Content shard = content(which);  // fetches and decompresses
    thread_local std::vector<io::ByteSpan> values;
    io::MdsShardReader(shard.bytes, shards_[which], files_.name(which)).read(row_of(index, which), values);
    for (const io::ByteSpan value : values) touch_pages(value);
    return true;
  }

  void read(int64_t index, Sample& sample) const override {
    const size_t which = starts_.file_of(index);
    begin_sample(files_, which, index, sample);
    read_naming([&] { return sample.where(); },
                [&] {
                  const Content shard = content(which);
                  sample.owner = shard.owner;
                  parse_content(files_, which, [&] { fill(shard.bytes, which, row_of(index, which), sample); });
                });
  }

 private:
  struct ShardColumns {
    std::vector<io::MdsEncoding> encodings;
    size_t max_sizes = 0;  // maximum number of sizes of all arrays of a sample
  };
  struct Verdict {  // std::call_once does not support exceptions on all platforms
    Mutex mutex;
    std::atomic<bool> good{false};
    std::string damage BELLOWS_GUARDED_BY(mutex);
  };
  /// A shard's verified bytes: mapped, or decompressed in memory.
  struct Content {
    io::ByteSpan bytes;
    std::shared_ptr<const void> owner;
  };

  static void check_verifiable(const io::MdsShard& shard) {
    TORCH_CHECK_VALUE(
        !shard.raw.hashes.empty(), "open_mds: index.json has no hashes for ", shard.raw.basename,
        ", so the file cannot be verified. Open it with Verify::first_use, or write the dataset with hashes.");
    for (const auto& [name, digest] : shard.raw.hashes) io::hash_hex(name, {});  // checks that the name is supported
  }

  uint64_t row_of(int64_t index, size_t which) const { return static_cast<uint64_t>(index - starts_.first(which)); }

  void add_encodings(const io::MdsShard& shard) {
    ShardColumns& columns = columns_.emplace_back();
    for (const io::MdsColumn& column : shard.columns) {
      columns.encodings.push_back(io::MdsEncoding::parse(column.encoding));
      columns.max_sizes += columns.encodings.back().max_dims();
    }
  }

  void fill(io::ByteSpan shard, size_t which, uint64_t row, Sample& sample) const {
    thread_local std::vector<io::ByteSpan> values;
    io::MdsShardReader(shard, shards_[which], files_.name(which)).read(row, values);
    const ShardColumns& columns = columns_[which];
    sample.shapes.reserve(columns.max_sizes);
    sample.buffer.reserve(8 * values.size());
    for (size_t i = 0; i < values.size(); ++i) {
      const std::string& name = shards_[which].columns[i].name;
      const size_t first = sample.shapes.size();
      const auto offset = static_cast<uint64_t>(values[i].data() - shard.data());
      Field field{.name = name, .bytes = values[i], .offset = offset};
      try {
        const io::MdsValue value = columns.encodings[i].decode(values[i], sample.shapes, sample.buffer);
        field.bytes = value.bytes;
        field.is_array = value.is_array;
        field.dtype = value.dtype;
      } catch (const c10::ValueError& error) {
        TORCH_CHECK_VALUE(false, "column \"", name, "\" at byte ", offset, ": ", user_message(error));
      }
      field.sizes = c10::IntArrayRef(sample.shapes.data() + first, sample.shapes.size() - first);
      if (name == "__key__" && !field.is_array) {
        sample.key = io::as_text(field.bytes);
      } else {
        sample.fields.push_back(field);
      }
    }
  }

  Content content(size_t which) const {
    if (packed_[which]) {
      const auto unpacked = unpacked_.get(which, [&] { return unpack(which); });
      return {*unpacked, unpacked};
    }
    Content content;
    content.bytes = files_.content(which, content.owner);
    if (!verdicts_[which].good) judge(which, [&] { check(content.bytes, which); });
    return content;
  }

  bool is_packed(size_t which) const {
    const auto& zip = shards_[which].zip;
    return zip && fs::path(files_.name(which)).filename() == zip->basename;
  }

  io::Bytes unpack(size_t which) const {
    const io::MdsShard& shard = shards_[which];
    const std::string& path = files_.name(which);
    std::shared_ptr<const void> owner;
    const io::ByteSpan bytes = files_.content(which, owner);
    io::Bytes unpacked;
    judge(which, [&] {
      TORCH_CHECK_VALUE(bytes.size() == shard.zip->bytes, path, ": expected ", shard.zip->bytes,
                        " bytes, as in index.json, found ", bytes.size(), ". Copy the shard again.");
      if (options_.verify != Verify::never) check_hashes(bytes, *shard.zip, path);
      unpacked = io::uncompress(bytes, io::Codec::parse(shard.compression), shard.raw.bytes, path);
      check(unpacked, which);
    });
    return unpacked;
  }

  /// Verifies a shard by `look`, which throws if it is damaged. A verified shard is not verified again.
  template <class Look>
  void judge(size_t which, const Look& look) const {
    Verdict& verdict = verdicts_[which];
    const MutexLock lock(verdict.mutex);
    TORCH_CHECK_VALUE(verdict.damage.empty(), verdict.damage);
    if (verdict.good && !packed_[which]) return;
    try {
      parse_content(files_, which, look);
    } catch (const c10::ValueError& error) {
      verdict.damage = user_message(error);
      throw;
    }
    verdict.good = true;
  }

  void check(io::ByteSpan bytes, size_t which) const {
    const std::string& path = files_.name(which);
    const io::MdsShardReader reader(bytes, shards_[which], path);
    if (options_.verify != Verify::never) check_hashes(bytes, shards_[which].raw, path);
    reader.check_columns();
  }

  MdsOptions options_;
  std::vector<io::MdsShard> shards_;
  ShardFiles files_;
  std::vector<ShardColumns> columns_;
  FileStarts starts_;
  int64_t size_ = 0;
  std::vector<char> packed_;              // per shard: true if only its compressed file exists
  mutable std::deque<Verdict> verdicts_;  // one per shard
  mutable UnpackedFiles unpacked_;
};

}  // namespace

SourcePtr open_mds(const std::string& folder, const MdsOptions& options) {
  return std::make_shared<MdsSource>(folder, options);
}

}  // namespace bellows::data
