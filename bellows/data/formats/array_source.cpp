#include "bellows/data/formats/array_source.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <filesystem>
#include <optional>

#include "bellows/core/error.h"
#include "bellows/core/mutex.h"
#include "bellows/data/formats/read_sample.h"
#include "bellows/data/formats/shard_files.h"
#include "bellows/io/archives/compress.h"
#include "bellows/io/archives/zip.h"
#include "bellows/io/crc32.h"
#include "bellows/io/tensors/npy.h"
#include "bellows/io/tensors/safetensors.h"

namespace bellows::data {

namespace {

void check_crc32(uint32_t found, uint32_t expected, const std::string& where) {
  TORCH_CHECK_VALUE(found == expected, where, ": expected CRC-32 ", expected, ", found ", found,
                    ": the file is corrupt.");
}

/// A stored file of an archive. Its checksum is verified once, when its first row is read.
class StoredMember {
 public:
  StoredMember(const io::ZipEntry& entry, std::string where)
      : offset_(entry.offset), bytes_(entry.data.size()), expected_(entry.crc32), where_(std::move(where)) {}

  void check(io::ByteSpan file) {
    if (intact_) return;
    const MutexLock lock(mutex_);
    if (!found_) found_ = io::crc32(file.subspan(offset_, bytes_));
    check_crc32(*found_, expected_, where_);
    intact_ = true;
  }

 private:
  uint64_t offset_, bytes_;
  uint32_t expected_;
  std::string where_;
  Mutex mutex_;
  std::optional<uint32_t> found_ BELLOWS_GUARDED_BY(mutex_);
  std::atomic<bool> intact_ = false;
};

/// One array and the location of its values.
struct StoredArray {
  std::string name;
  c10::ScalarType dtype = c10::ScalarType::Float;
  std::vector<int64_t> shape;
  size_t file = 0;
  uint64_t offset = 0, bytes = 0;  // in the file
  io::ByteSpan unpacked;           // of a compressed array: the values
  StoredMember* member = nullptr;  // still to be verified; else null
  uint64_t row_bytes = 0;
};

std::string stem_of(const std::string& path) {
  return std::filesystem::path(path).stem().string();
}

/// Fetches the header of an array. Archives have no such header and are fetched completely.
void need_array_header(io::PartialFile& file) {
  constexpr uint64_t likely_header = 4096, longest_npy = 1 << 20, longest_safetensors = 100'000'000;
  file.need(0, likely_header);
  const io::ByteSpan bytes = file.bytes();
  if (bytes.size() < 12) return;
  if (io::as_text(bytes).starts_with("\x93NUMPY")) {
    const bool is_short = bytes[6] == std::byte{1};
    const uint64_t length = is_short ? io::load_little<uint16_t>(bytes, 8) : io::load_little<uint32_t>(bytes, 8);
    file.need(0, 12 + std::min(length, longest_npy));
  } else if (bytes[8] == std::byte{'{'}) {
    file.need(0, 8 + std::min(io::load_little<uint64_t>(bytes), longest_safetensors));
  }
}

class ArraySource final : public Source {
 public:
  using Source::read;

  ArraySource(const std::vector<std::string>& paths, const ArraysOptions& options) : files_(paths) {
    const std::vector<io::PartialFile> headers = files_.open_parts(need_array_header);
    for (size_t file = 0; file < files_.size(); ++file)
      parse_content(files_, file, [&] { add_file(headers[file].bytes(), file); });
    if (!options.names.empty()) choose(options.names);
    TORCH_CHECK_VALUE(!arrays_.empty(), "open_arrays: ", files_.describe(), " contains no arrays.");
    check_names();
    for (StoredArray& array : arrays_) check_rows(array);
    size_ = arrays_.front().shape.front();
  }

  int64_t size() const override { return size_; }
  bool stored() const override { return true; }
  std::string describe() const override { return c10::str(size_, " rows of arrays in ", files_.name(0)); }

  bool prefetch(int64_t index) const override {
    FileInUse use;
    for (const StoredArray& stored : arrays_) touch_pages(row_of(stored, index, use));
    return true;
  }

  void read(int64_t index, Sample& sample) const override {
    sample.clear();
    sample.id = index;
    sample.file = files_.name(arrays_.front().file);
    read_naming([&] { return sample.where(); }, [&] { fill(index, sample); });
  }

 private:
  /// The last requested file: arrays of one file follow one another.
  struct FileInUse {
    size_t file = SIZE_MAX;
    io::ByteSpan content;
    std::shared_ptr<const void> owner;
  };

  io::ByteSpan row_of(const StoredArray& stored, int64_t index, FileInUse& use) const {
    const uint64_t at = static_cast<uint64_t>(index) * stored.row_bytes;
    if (stored.unpacked.data()) return stored.unpacked.subspan(at, stored.row_bytes);
    if (use.file != stored.file) {
      use.owner = nullptr;  // at most one file at a time is protected from eviction
      use.content = files_.content(stored.file, use.owner);
      use.file = stored.file;
    }
    if (stored.member) parse_content(files_, stored.file, [&] { stored.member->check(use.content); });
    return use.content.subspan(stored.offset + at, stored.row_bytes);
  }

  void fill(int64_t index, Sample& sample) const {
    FileInUse use;
    for (const StoredArray& stored : arrays_) {
      Field field{.name = stored.name, .bytes = row_of(stored, index, use), .is_array = true};
      // With several files that may be evicted, the sample does not hold the file, so it needs a copy.
      if (use.owner && files_.size() > 1 && !stored.unpacked.data()) field.bytes = copy_into(sample, field.bytes);
      field.offset = stored.offset + static_cast<uint64_t>(index) * stored.row_bytes;
      field.dtype = stored.dtype;
      field.sizes = c10::IntArrayRef(stored.shape).slice(1);
      sample.fields.push_back(field);
    }
    if (files_.size() == 1) sample.owner = std::move(use.owner);
  }
  io::ByteSpan copy_into(Sample& sample, io::ByteSpan bytes) const {
    sample.buffer.reserve(sum_row_bytes_);
    const size_t at = sample.buffer.size();
    sample.buffer.insert(sample.buffer.end(), bytes.begin(), bytes.end());
    return io::ByteSpan(sample.buffer).subspan(at);
  }

  void add_array(std::string name, const io::NpyArray& array, size_t file) {
    arrays_.push_back({.name = std::move(name),
                       .dtype = array.dtype,
                       .shape = array.shape,
                       .file = file,
                       .offset = array.offset,
                       .bytes = array.bytes.size()});
  }

  /// Params: header – bytes of the whole file, of which at least the header is loaded
  void add_file(io::ByteSpan header, size_t file) {
    const std::string& path = files_.name(file);
    if (io::as_text(header).starts_with("\x93NUMPY")) {
      add_array(stem_of(path), io::parse_npy(header, path), file);
    } else if (io::as_text(header).starts_with("PK")) {
      const auto whole = files_.map(file);
      add_npz(whole->bytes(), file);
    } else {
      // Eight bytes of length, then the header's opening brace.
      const bool likely = header.size() > 8 && io::as_text(header)[8] == '{';
      TORCH_CHECK_VALUE(likely, "open_arrays: ", path, ": expected a .npy, .npz or safetensors file, found ",
                        io::describe_content(header), ".");
      add_safetensors(header, file);
    }
  }

  void add_npz(io::ByteSpan bytes, size_t file) {
    const std::string& path = files_.name(file);
    const io::ZipReader zip(bytes, path);
    const bool has_checksums = std::ranges::any_of(zip.entries(), [](const auto& entry) { return entry.crc32 != 0; });
    for (const io::ZipEntry& entry : zip.entries()) {
      const std::string where = path + ", " + io::printable(entry.name, 100);
      TORCH_CHECK_VALUE(entry.name.ends_with(".npy"), where, ": expected only .npy files in a .npz file.");
      io::NpyArray array = io::parse_npy(entry.stored ? entry.data : unpack(entry, where), where);
      if (entry.stored) array.offset += entry.offset;
      add_array(entry.name.substr(0, entry.name.size() - 4), array, file);
      if (!entry.stored) arrays_.back().unpacked = array.bytes;
      if (entry.stored && has_checksums) arrays_.back().member = &members_.emplace_back(entry, where);
    }
  }

  io::ByteSpan unpack(const io::ZipEntry& entry, const std::string& where) {
    TORCH_CHECK_VALUE(entry.deflated, where,
                      ": the array is encrypted, or its compression is not supported. Write it with numpy.savez or "
                      "numpy.savez_compressed.");
    unpacked_.push_back(io::inflate_raw(entry.data, entry.size, where));
    check_crc32(io::crc32(unpacked_.back()), entry.crc32, where);
    return unpacked_.back();
  }

  void add_safetensors(io::ByteSpan header, size_t file) {
    const std::string& path = files_.name(file);
    for (const io::SafetensorsEntry& entry : io::parse_safetensors_header(header, path).entries) {
      const io::ByteSpan bytes = header.subspan(entry.begin, entry.end - entry.begin);
      add_array(entry.name, {io::safetensors_dtype(entry, path), entry.shape, bytes, entry.begin}, file);
    }
  }

  /// Keeps the named arrays, in the order of the names.
  void choose(const std::vector<std::string>& names) {
    std::vector<StoredArray> chosen;
    std::vector<std::string> known;
    for (const StoredArray& array : arrays_) known.push_back(array.name);
    for (const std::string& name : names) {
      const auto found = std::find(known.begin(), known.end(), name);
      TORCH_CHECK_VALUE(found != known.end(), "open_arrays: no array has the name \"", name, "\".",
                        did_you_mean(name, known), " The arrays are: ", c10::Join(", ", known), ".");
      chosen.push_back(arrays_[static_cast<size_t>(found - known.begin())]);
    }
    arrays_ = std::move(chosen);
  }

  void check_names() const {
    std::vector<std::string_view> names;
    for (const StoredArray& array : arrays_) names.push_back(array.name);
    std::sort(names.begin(), names.end());
    const auto twice = std::adjacent_find(names.begin(), names.end());
    TORCH_CHECK_VALUE(twice == names.end(), "open_arrays: two arrays are called \"", *twice, "\".");
  }

  void check_rows(StoredArray& stored) {
    const auto& shape = stored.shape;
    const std::string what = "open_arrays: \"" + stored.name + "\" in " + files_.name(stored.file);
    TORCH_CHECK_VALUE(!shape.empty(), what,
                      " is a single number, but the first dimension of each array must be the number of samples. "
                      "Remove the array from the file.");
    const StoredArray& first = arrays_.front();
    TORCH_CHECK_VALUE(
        shape[0] == first.shape[0], what, " has ", shape[0], " rows, but \"", first.name, "\" in ",
        files_.name(first.file), " has ", first.shape[0],
        ". All arrays of a dataset need the same number of rows, one per sample. Save other arrays in another file.");
    stored.row_bytes = shape[0] > 0 ? stored.bytes / static_cast<uint64_t>(shape[0]) : 0;
    sum_row_bytes_ += stored.row_bytes;
  }

  ShardFiles files_;
  std::deque<io::Bytes> unpacked_;
  std::deque<StoredMember> members_;
  std::vector<StoredArray> arrays_;
  int64_t size_ = 0;
  uint64_t sum_row_bytes_ = 0;
};

}  // namespace

SourcePtr open_arrays(const std::vector<std::string>& paths, const ArraysOptions& options) {
  return std::make_shared<ArraySource>(paths, options);
}

}  // namespace bellows::data
