#include "bellows/data/formats/recordio_source.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <optional>

#include "bellows/core/error.h"
#include "bellows/core/log.h"
#include "bellows/data/formats/file_starts.h"
#include "bellows/data/formats/read_sample.h"
#include "bellows/data/formats/shard_files.h"
#include "bellows/data/picture.h"
#include "bellows/io/records/recordio.h"

namespace bellows::data {

namespace {

/// True for an integer that int64 can hold.
bool is_whole_label(float label) {
  return std::abs(label) < 9.2e18F && std::trunc(label) == label;
}

/// The text of a file's index, if it has one.
/// Throws: c10::Error if the network fails, because it is then unknown whether there is an index
std::optional<std::string> read_recordio_index(const std::string& file) {
  const std::string path = recordio_index_path(file);
  if (!io::is_url(path)) {
    std::error_code ignored;
    return std::filesystem::exists(path, ignored) ? std::optional(read_text_file(path)) : std::nullopt;
  }
  try {
    return std::string(io::as_text(ShardFiles({path}).map(0)->bytes()));
  } catch (const c10::ValueError& error) {
    // If listing is forbidden, S3 responds with 403 for missing files.
    log_info(user_message(error), " The samples of ", io::public_url(file), " are read in the order of the file.");
    return std::nullopt;
  }
}

class RecordioSource final : public Source {
 public:
  using Source::read;

  explicit RecordioSource(const std::vector<std::string>& files) : files_(files) {
    for (size_t file = 0; file < files.size(); ++file) add_file(file, read_recordio_index(files[file]));
    offsets_.shrink_to_fit();
  }

  int64_t size() const override { return offsets_.size(); }

  void read(int64_t index, Sample& sample) const override {
    read_record(files_, offsets_, index, sample, [&](size_t file, uint64_t offset) {
      parse_content(files_, file, [&] {
        const auto record = io::recordio_at(files_.content(file, sample.owner), offset, "RecordIO", sample.buffer);
        const bool joined = record.data.data() == sample.buffer.data();
        const size_t used = joined ? record.data.size() : 0;
        sample.buffer.resize(used + sizeof(int64_t));  // may move the joined record
        fill(io::parse_image_record(joined ? io::ByteSpan(sample.buffer).first(used) : record.data), offset, sample);
      });
    });
  }

  bool prefetch(int64_t index) const override {
    std::shared_ptr<const void> owner;
    const io::ByteSpan bytes = files_.content(offsets_.file_of(index), owner);
    io::Bytes joined;
    touch_pages(bytes, offsets_[index], io::recordio_at(bytes, offsets_[index], "RecordIO", joined).next);
    return true;
  }

  std::string describe() const override { return files_.describe(); }
  bool stored() const override { return true; }
  std::vector<int64_t> block_starts() const override { return offsets_.block_starts(); }

 private:
  void fill(const io::ImageRecord& record, uint64_t offset, Sample& sample) const {
    Field& content = sample.fields.emplace_back();
    content.name = picture_name(record.content, "data");
    content.bytes = record.content;
    content.offset = offset;
    Field& label = sample.fields.emplace_back();
    label.name = "label";
    label.offset = offset;
    label.is_array = true;
    label.dtype = c10::kFloat;
    label.bytes = record.labels;
    if (record.flag > 0) {
      sample.shapes.push_back(record.flag);
      label.sizes = sample.shapes;
      return;
    }
    std::byte* value = sample.buffer.data() + sample.buffer.size() - sizeof(int64_t);
    const auto whole = static_cast<int64_t>(whole_labels_ ? record.label : 0);
    std::memcpy(value, &whole, sizeof(whole));
    if (!whole_labels_) std::memcpy(value, &record.label, sizeof(float));
    label.dtype = whole_labels_ ? c10::kLong : c10::kFloat;
    label.bytes = {value, whole_labels_ ? sizeof(int64_t) : sizeof(float)};
  }

  void add_file(size_t file, const std::optional<std::string>& index) {
    const std::string& name = files_.name(file);
    const auto mapped = files_.map(file);
    std::vector<uint64_t> offsets;
    parse_content(files_, file, [&] {
      offsets = io::scan_recordio(mapped->bytes(), name);
      for (const uint64_t offset : offsets) look_at_label(mapped->bytes(), offset, name);
    });
    if (index) offsets = indexed(*index, offsets, name);
    offsets_.add_file();
    for (const uint64_t offset : offsets) offsets_.add(offset);
  }

  void look_at_label(io::ByteSpan bytes, uint64_t offset, const std::string& name) {
    try {
      io::Bytes joined;
      const io::ImageRecord record = io::parse_image_record(io::recordio_at(bytes, offset, name, joined).data);
      if (record.flag == 0) whole_labels_ = whole_labels_ && is_whole_label(record.label);
    } catch (const c10::ValueError& error) {
      TORCH_CHECK_VALUE(false, "open_recordio: the record at byte ", offset, " of ", name, ": ", user_message(error));
    }
  }

  /// The same offsets in the order of the index.
  static std::vector<uint64_t> indexed(const std::string& text, const std::vector<uint64_t>& offsets,
                                       const std::string& name) {
    const std::string index = recordio_index_path(name);
    std::vector<uint64_t> order = io::parse_recordio_index(text, index);
    std::vector<uint64_t> sorted = order;
    std::ranges::sort(sorted);
    const auto [named, there] = std::ranges::mismatch(sorted, offsets);
    TORCH_CHECK_VALUE(named == sorted.end() || (there != offsets.end() && *named > *there), index,
                      ": the index lists a record at byte ", named == sorted.end() ? 0 : *named, " of ", name,
                      ", but no record starts there, or the record is listed twice. The index belongs to another file. "
                      "Recreate it, or remove it.");
    TORCH_CHECK_VALUE(there == offsets.end(), index, ": the index does not list the record at byte ",
                      there == offsets.end() ? 0 : *there, " of ", name, " (", sorted.size(), " records in the index, ",
                      offsets.size(), " in the file). Recreate the index, or remove it.");
    return order;
  }

  ShardFiles files_;
  SampleOffsets offsets_;
  bool whole_labels_ = true;
};

}  // namespace

SourcePtr open_recordio(const std::vector<std::string>& files) {
  return std::make_shared<RecordioSource>(files);
}

std::string recordio_index_path(const std::string& file) {
  constexpr std::string_view suffix = ".rec";
  const size_t end = io::is_url(file) ? std::min(file.find_first_of("?#"), file.size()) : file.size();
  const std::string path = file.substr(0, end);
  return (path.ends_with(suffix) ? path.substr(0, end - suffix.size()) : path) + ".idx" + file.substr(end);
}

}  // namespace bellows::data
