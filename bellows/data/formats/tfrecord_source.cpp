#include "bellows/data/formats/tfrecord_source.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <atomic>
#include <filesystem>

#include "bellows/core/error.h"
#include "bellows/data/formats/block_starts_impl.h"
#include "bellows/data/formats/example_arrays_impl.h"
#include "bellows/data/formats/picture_name_impl.h"
#include "bellows/data/formats/shard_files.h"
#include "bellows/data/formats/touch_pages_impl.h"
#include "bellows/io/example.h"
#include "bellows/io/tfrecord.h"

namespace bellows::data {

namespace {

using FeatureKind = io::ExampleFeature::Kind;

/// What a thread needs again for every record.
struct ExampleWorkspace {
  io::ExampleReader example;
  std::vector<ExampleArray> arrays;  // sorted by name
};

/// Makes a sample's fields of the features of a message.
class ExampleFields {
 public:
  /// Params: file – the bytes that the message lies in
  ExampleFields(ExampleWorkspace& workspace, const TfrecordOptions& options, std::string_view file, Sample& sample)
      : example_(workspace.example),
        arrays_(workspace.arrays),
        options_(options),
        file_(io::as_bytes(file)),
        sample_(sample) {}

  void make() {
    read_notes();
    reserve();
    for (const io::ExampleFeature& feature : example_.features()) add(feature);
    for (const auto& [feature, field] : options_.fields) {
      TORCH_CHECK_VALUE(field.empty() || std::ranges::count(sample_.fields, field, &Field::name) <= 1,
                        "two features become the field \"", field, "\"; rename feature \"", feature,
                        "\" to something else, or leave one of them out.");
    }
  }

 private:
  bool is_notes(const io::ExampleFeature& feature) const {
    return feature.name == example_arrays_feature && feature.kind == FeatureKind::bytes;
  }

  void read_notes() {
    arrays_.clear();
    const io::ExampleFeature* notes = example_.find(example_arrays_feature);
    if (!notes || !is_notes(*notes)) return;
    for (const io::ByteSpan note : example_.pieces(*notes))
      arrays_.push_back(parse_example_array(io::as_text(note), sample_.shapes));
    std::ranges::sort(arrays_, {}, &ExampleArray::name);
  }

  const ExampleArray* find_note(std::string_view name) const {
    const auto found = std::ranges::lower_bound(arrays_, name, {}, &ExampleArray::name);
    return found != arrays_.end() && found->name == name ? &*found : nullptr;
  }

  /// All that views may point to, so that nothing moves afterwards.
  void reserve() {
    constexpr size_t most_name_bytes = size_t{64} << 20;  // a small record can ask for long names many times
    size_t bytes = 0;
    for (const io::ExampleFeature& feature : example_.features()) {
      if (feature.kind == FeatureKind::bytes && feature.count > 1)
        bytes += feature.count * (field_name(feature).size() + 21);
      TORCH_CHECK_VALUE(bytes <= most_name_bytes || feature.kind != FeatureKind::bytes, "feature \"",
                        io::printable(feature.name), "\" has ", feature.count,
                        " byte strings; the names of their fields would take more than 64 MiB.");
      if (feature.kind == FeatureKind::floats) bytes += feature.count * 4 + 8;
      if (feature.kind == FeatureKind::int64s) bytes += feature.count * 16 + 16;
    }
    sample_.buffer.resize(bytes);
    sample_.shapes.reserve(sample_.shapes.size() + example_.features().size());
  }

  std::byte* take(size_t bytes) {
    std::byte* taken = sample_.buffer.data() + taken_;
    taken_ += (bytes + 7) / 8 * 8;
    return taken;
  }

  void add(const io::ExampleFeature& feature) {
    if (feature.kind == FeatureKind::none || is_notes(feature)) return;
    if (feature.name == example_key_feature && feature.kind == FeatureKind::bytes && feature.count == 1) {
      sample_.key = io::as_text(example_.pieces(feature)[0]);
      return;
    }
    const std::string_view name = field_name(feature);
    if (name.empty() && !feature.name.empty()) return;
    if (const ExampleArray* array = find_note(feature.name)) {
      add_noted(name, feature, *array);
    } else if (feature.kind == FeatureKind::bytes) {
      add_bytes(name, feature);
    } else {
      Field& field = add_array(name, feature, feature.kind == FeatureKind::floats ? c10::kFloat : c10::kLong);
      field.bytes = numbers(feature);
      if (feature.count != 1) field.sizes = sizes_from(append_size(feature.count), 1);
    }
  }

  std::string_view field_name(const io::ExampleFeature& feature) const {
    for (const auto& [from, to] : options_.fields) {
      if (from == feature.name) return to;
    }
    std::string_view name;
    if (feature.name == "image/class/label") name = "label";
    if (feature.name == "image/encoded" && feature.kind == FeatureKind::bytes && feature.count == 1)
      name = picture_name(example_.pieces(feature)[0], "image");
    return name.empty() || example_.find(name) ? feature.name : name;
  }

  void add_bytes(std::string_view name, const io::ExampleFeature& feature) {
    const auto values = example_.pieces(feature);
    for (size_t i = 0; i < values.size(); ++i) {
      Field& field = sample_.fields.emplace_back();
      field.name = values.size() == 1 ? name : numbered(name, i);
      field.bytes = values[i];
      field.offset = static_cast<uint64_t>(values[i].data() - file_.data());
    }
  }

  std::string_view numbered(std::string_view name, size_t number) {
    const std::string digits = "." + std::to_string(number);
    char* out = reinterpret_cast<char*>(sample_.buffer.data() + taken_);
    digits.copy(out + name.copy(out, name.size()), digits.size());
    taken_ += name.size() + digits.size();
    return {out, name.size() + digits.size()};
  }

  Field& add_array(std::string_view name, const io::ExampleFeature& feature, c10::ScalarType dtype) {
    const auto values = example_.pieces(feature);
    Field& field = sample_.fields.emplace_back();
    field.name = name;
    field.is_array = true;
    field.dtype = dtype;
    if (!values.empty()) field.offset = static_cast<uint64_t>(values[0].data() - file_.data());
    return field;
  }

  /// The values of a list of numbers as they are in an array.
  io::ByteSpan numbers(const io::ExampleFeature& feature) {
    const auto pieces = example_.pieces(feature);
    if (feature.kind == FeatureKind::floats && pieces.size() == 1) return pieces[0];
    const size_t bytes = feature.count * (feature.kind == FeatureKind::floats ? 4 : 8);
    std::byte* out = take(bytes);
    if (feature.kind == FeatureKind::floats) {
      example_.copy_floats(feature, out);
    } else {
      example_.copy_int64s(feature, out);
    }
    return {out, bytes};
  }

  void add_noted(std::string_view name, const io::ExampleFeature& feature, const ExampleArray& array) {
    const ExampleStore store = example_store(array.dtype);
    const auto kind = store == ExampleStore::bytes    ? FeatureKind::bytes
                      : store == ExampleStore::floats ? FeatureKind::floats
                                                      : FeatureKind::int64s;
    const bool is_raw = kind == FeatureKind::bytes && feature.count == 1;
    const size_t width = is_raw ? c10::elementSize(array.dtype) : 1;
    const size_t found = is_raw ? example_.pieces(feature)[0].size() : feature.count;
    TORCH_CHECK_VALUE(feature.kind == kind && (is_raw || kind != FeatureKind::bytes) && found % width == 0 &&
                          found / width == array.values,
                      "feature \"", feature.name, "\" has other values than \"", example_arrays_feature,
                      "\" says: ", array.values, " of ", c10::toString(array.dtype), ".");
    Field& field = add_array(name, feature, array.dtype);
    field.sizes = sizes_from(array.first_size, array.rank);
    field.bytes = is_raw ? example_.pieces(feature)[0] : numbers(feature);
    if (kind != FeatureKind::int64s || array.dtype == c10::kLong) return;
    const size_t bytes = feature.count * c10::elementSize(array.dtype);
    std::byte* out = take(bytes);
    narrow_integers(field.bytes, array.dtype, out);
    field.bytes = {out, bytes};
  }

  size_t append_size(size_t size) {
    sample_.shapes.push_back(static_cast<int64_t>(size));
    return sample_.shapes.size() - 1;
  }
  c10::IntArrayRef sizes_from(size_t first, size_t rank) const { return {sample_.shapes.data() + first, rank}; }

  const io::ExampleReader& example_;
  std::vector<ExampleArray>& arrays_;
  const TfrecordOptions& options_;
  io::ByteSpan file_;
  Sample& sample_;
  size_t taken_ = 0;  // of the sample's buffer
};

class TfrecordSource final : public Source {
 public:
  using Source::read;

  TfrecordSource(const std::vector<std::string>& files, TfrecordOptions options)
      : files_(files), options_(std::move(options)), unpacked_(files.size()) {
    TORCH_CHECK_VALUE(options_.indexes.empty() || options_.indexes.size() == files.size(), "open_tfrecord: expected ",
                      files.size(), " indexes, one for each file, got ", options_.indexes.size(), ".");
    for (size_t file = 0; file < files.size(); ++file) add_file(file);
    offsets_.shrink_to_fit();
  }

  int64_t size() const override { return static_cast<int64_t>(offsets_.size()); }

  void read(int64_t index, Sample& sample) const override {
    thread_local ExampleWorkspace workspace;
    const size_t file = file_of(index);
    const uint64_t offset = offsets_[static_cast<size_t>(index)];
    sample.clear();
    sample.id = index;
    sample.file = files_.name(file);
    try {
      const std::string_view bytes = content(file, sample.owner);
      const std::string_view record = io::tfrecord_at(bytes, offset, "TFRecord");
      workspace.example.parse(io::as_bytes(record));
      ExampleFields(workspace, options_, bytes, sample).make();
    } catch (const c10::ValueError& error) {
      TORCH_CHECK_VALUE(false, "read: sample (id ", index, "), record at byte ", offset, " of ", files_.name(file),
                        ": ", user_message(error));
    }
  }

  bool prefetch(int64_t index) const override {
    const auto at = static_cast<size_t>(index);
    const size_t file = file_of(index);
    std::shared_ptr<const void> owner;
    const std::string_view bytes = content(file, owner);
    const bool is_last = at + 1 == offsets_.size() || offsets_[at + 1] <= offsets_[at];  // of its file
    touched_.store(touch_pages(io::as_bytes(bytes), offsets_[at], is_last ? bytes.size() : offsets_[at + 1]),
                   std::memory_order_relaxed);
    return true;
  }

  std::string describe() const override { return files_.describe(); }
  bool stored() const override { return true; }
  std::vector<int64_t> block_starts() const override { return block_starts_of(starts_, size()); }

 private:
  void add_file(size_t file) {
    const std::string& name = files_.name(file);
    const auto mapped = files_.map(file);
    std::string_view bytes = io::as_text(mapped->bytes());
    std::vector<io::TfrecordSpan> records;
    if (auto unpacked = io::unpack_tfrecord(mapped->bytes(), name)) {
      unpacked_[file] = std::make_shared<const io::Bytes>(std::move(*unpacked));
      bytes = io::as_text(*unpacked_[file]);
      records = io::scan_tfrecord(bytes, name);
    } else {
      records = find_records(file, bytes);
    }
    starts_.push_back(size());
    for (const auto& [offset, framed] : records) {
      TORCH_CHECK_VALUE(framed - 16 <= options_.max_record_bytes, "open_tfrecord: the record at byte ", offset, " of ",
                        name, " has ", framed - 16, " bytes, the limit is ", options_.max_record_bytes,
                        ". Raise TfrecordOptions::max_record_bytes if it is meant to be so large.");
      offsets_.push_back(offset);
    }
  }

  /// By the index where there is one.
  std::vector<io::TfrecordSpan> find_records(size_t file, std::string_view bytes) const {
    const std::string& name = files_.name(file);
    const bool given = !options_.indexes.empty();
    const std::string index = given ? options_.indexes[file] : tfrecord_index_path(name);
    std::error_code ignored;
    if (given || std::filesystem::exists(index, ignored))
      return io::parse_tfrecord_index(read_text_file(index), bytes, index, name);
    auto records = io::scan_tfrecord(bytes, name);
    if (options_.save_index && !files_.is_remote(file)) write_text_file(index, io::format_tfrecord_index(records));
    return records;
  }

  size_t file_of(int64_t index) const {
    return static_cast<size_t>(std::ranges::upper_bound(starts_, index) - starts_.begin()) - 1;
  }

  std::string_view content(size_t file, std::shared_ptr<const void>& owner) const {
    if (unpacked_[file]) {
      owner = unpacked_[file];
      return io::as_text(*unpacked_[file]);
    }
    const auto mapped = files_.map(file);
    mapped->check_size();
    owner = mapped;
    return io::as_text(mapped->bytes());
  }

  ShardFiles files_;
  TfrecordOptions options_;
  std::vector<std::shared_ptr<const io::Bytes>> unpacked_;  // null where the file is not compressed
  std::vector<int64_t> starts_;                             // the first record of each file
  std::vector<uint64_t> offsets_;                           // of each record in its file
  mutable std::atomic<uint8_t> touched_ = 0;                // so that reading ahead is not left out
};

}  // namespace

SourcePtr open_tfrecord(const std::vector<std::string>& files, const TfrecordOptions& options) {
  return std::make_shared<TfrecordSource>(files, options);
}

std::string tfrecord_index_path(const std::string& file) {
  constexpr std::string_view suffix = ".tfrecord";
  return (file.ends_with(suffix) ? file.substr(0, file.size() - suffix.size()) : file) + ".tfindex";
}

}  // namespace bellows::data
