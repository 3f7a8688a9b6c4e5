#include "bellows/data/formats/array_source.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <deque>
#include <filesystem>

#include "bellows/core/error.h"
#include "bellows/data/formats/shard_files.h"
#include "bellows/data/formats/touch_impl.h"
#include "bellows/io/compress.h"
#include "bellows/io/crc32.h"
#include "bellows/io/npy.h"
#include "bellows/io/safetensors.h"
#include "bellows/io/zip.h"

namespace bellows::data {

namespace {

/// One array and the file that it is in.
struct StoredArray {
  std::string name;
  io::NpyArray array;
  size_t file = 0;
  uint64_t row_bytes = 0;
};

std::string stem_of(const std::string& path) {
  return std::filesystem::path(path).stem().string();
}

class ArraySource final : public Source {
 public:
  using Source::read;

  ArraySource(const std::vector<std::string>& paths, const ArraysOptions& options) : files_(paths) {
    for (size_t file = 0; file < files_.size(); ++file) {
      maps_.push_back(files_.map(file));
      add_file(file);
    }
    if (!options.names.empty()) choose(options.names);
    TORCH_CHECK_VALUE(!arrays_.empty(), "open_arrays: ", files_.describe(), " has no arrays.");
    check_names();
    for (StoredArray& array : arrays_) check_rows(array);
    size_ = arrays_.front().array.shape.front();
  }

  int64_t size() const override { return size_; }
  bool stored() const override { return true; }
  std::string describe() const override { return c10::str(size_, " rows of arrays in ", files_.name(0)); }

  bool prefetch(int64_t index) const override {
    for (const auto& map : maps_) map->check_size();
    for (const StoredArray& stored : arrays_) touch_pages(row_of(stored, index));
    return true;
  }

  void read(int64_t index, Sample& sample) const override {
    sample.clear();
    sample.id = index;
    sample.file = files_.name(arrays_.front().file);
    for (const auto& map : maps_) check_map(*map, sample);
    for (const StoredArray& stored : arrays_) {
      Field field{.name = stored.name, .bytes = row_of(stored, index), .is_array = true};
      field.offset = stored.array.offset + static_cast<uint64_t>(index) * stored.row_bytes;
      field.dtype = stored.array.dtype;
      field.sizes = c10::IntArrayRef(stored.array.shape).slice(1);
      sample.fields.push_back(field);
    }
  }

 private:
  static io::ByteSpan row_of(const StoredArray& stored, int64_t index) {
    return stored.array.bytes.subspan(static_cast<uint64_t>(index) * stored.row_bytes, stored.row_bytes);
  }
  static void check_map(const MappedFile& map, const Sample& sample) {
    try {
      map.check_size();
    } catch (const c10::Error& error) {
      TORCH_CHECK_VALUE(false, "read: ", sample.where(), ": ", user_message(error));
    }
  }

  void add_file(size_t file) {
    const io::ByteSpan bytes = maps_[file]->bytes();
    const std::string& path = files_.name(file);
    if (io::as_text(bytes).starts_with("\x93NUMPY")) {
      arrays_.push_back({stem_of(path), io::parse_npy(bytes, path), file});
    } else if (io::as_text(bytes).starts_with("PK")) {
      add_npz(bytes, file);
    } else {
      // Eight bytes of length, then the header's brace.
      const bool likely = bytes.size() > 8 && io::as_text(bytes)[8] == '{';
      TORCH_CHECK_VALUE(likely, "open_arrays: ", path, ": expected a .npy, .npz or safetensors file, found ",
                        io::describe_content(bytes), ".");
      add_safetensors(bytes, file);
    }
  }

  void add_npz(io::ByteSpan bytes, size_t file) {
    const std::string& path = files_.name(file);
    const io::ZipReader zip(bytes, path);
    for (const io::ZipEntry& entry : zip.entries()) {
      const std::string where = path + ", " + io::printable(entry.name, 100);
      TORCH_CHECK_VALUE(entry.name.ends_with(".npy"), where, ": expected .npy files in a .npz file.");
      StoredArray stored{entry.name.substr(0, entry.name.size() - 4), {}, file};
      stored.array = io::parse_npy(entry.stored ? entry.data : unpack(entry, where), where);
      if (entry.stored) stored.array.offset += entry.offset;
      arrays_.push_back(std::move(stored));
    }
  }

  io::ByteSpan unpack(const io::ZipEntry& entry, const std::string& where) {
    TORCH_CHECK_VALUE(entry.deflated, where,
                      ": compressed in a way that is not read, or encrypted. Write it with "
                      "numpy.savez or numpy.savez_compressed.");
    unpacked_.push_back(io::inflate_raw(entry.data, entry.size, where));
    const uint32_t found = io::crc32(unpacked_.back());
    TORCH_CHECK_VALUE(found == entry.crc32, where, ": expected CRC-32 ", entry.crc32, ", found ", found,
                      ": the file is corrupt.");
    return unpacked_.back();
  }

  void add_safetensors(io::ByteSpan bytes, size_t file) {
    const std::string& path = files_.name(file);
    for (const io::SafetensorsEntry& entry : io::parse_safetensors_header(bytes, path).entries) {
      StoredArray stored{entry.name, {}, file};
      stored.array.dtype = io::safetensors_dtype(entry, path);
      stored.array.shape = entry.shape;
      stored.array.offset = entry.begin;
      stored.array.bytes = bytes.subspan(entry.begin, entry.end - entry.begin);
      arrays_.push_back(std::move(stored));
    }
  }

  /// Keeps the arrays named, in the order of the names.
  void choose(const std::vector<std::string>& names) {
    std::vector<StoredArray> chosen;
    std::vector<std::string> known;
    for (const StoredArray& array : arrays_) known.push_back(array.name);
    for (const std::string& name : names) {
      const auto found = std::find(known.begin(), known.end(), name);
      TORCH_CHECK_VALUE(found != known.end(), "open_arrays: no array is called \"", name, "\".",
                        did_you_mean(name, known), " There are: ", c10::Join(", ", known), ".");
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

  void check_rows(StoredArray& stored) const {
    const auto& shape = stored.array.shape;
    const std::string what = "open_arrays: \"" + stored.name + "\" in " + files_.name(stored.file);
    TORCH_CHECK_VALUE(!shape.empty(), what,
                      " is a single number; expected a first dimension that counts samples. Leave ",
                      "it out: open_arrays(paths, {.names = {…}}).");
    const StoredArray& first = arrays_.front();
    TORCH_CHECK_VALUE(shape[0] == first.array.shape[0], what, " has ", shape[0], " rows, \"", first.name, "\" in ",
                      files_.name(first.file), " has ", first.array.shape[0],
                      ". Choose arrays of one length: ", "open_arrays(paths, {.names = {…}}).");
    stored.row_bytes = shape[0] > 0 ? stored.array.bytes.size() / static_cast<uint64_t>(shape[0]) : 0;
  }

  ShardFiles files_;
  std::vector<std::shared_ptr<const MappedFile>> maps_;
  std::deque<io::Bytes> unpacked_;
  std::vector<StoredArray> arrays_;
  int64_t size_ = 0;
};

}  // namespace

SourcePtr open_arrays(const std::vector<std::string>& paths, const ArraysOptions& options) {
  return std::make_shared<ArraySource>(paths, options);
}

}  // namespace bellows::data
