#include "bellows/data/formats/tfrecord_source.h"

#include <c10/util/Exception.h>

#include <filesystem>

#include "bellows/core/error.h"
#include "bellows/data/formats/example_fields.h"
#include "bellows/data/formats/file_starts.h"
#include "bellows/data/formats/read_sample.h"
#include "bellows/data/formats/shard_files.h"
#include "bellows/data/formats/unpacked_files.h"
#include "bellows/io/records/tfrecord.h"

namespace bellows::data {

namespace {

class TfrecordSource final : public Source {
 public:
  using Source::read;

  TfrecordSource(const std::vector<std::string>& files, TfrecordOptions options)
      : files_(files), options_(std::move(options)), packed_(files.size()), unpacked_(options_.unpacked_bytes) {
    TORCH_CHECK_VALUE(options_.indexes.empty() || options_.indexes.size() == files.size(), "open_tfrecord: expected ",
                      files.size(), " indexes, one for each file, got ", options_.indexes.size(), ".");
    for (size_t file = 0; file < files.size(); ++file) add_file(file);
    offsets_.shrink_to_fit();
  }

  int64_t size() const override { return offsets_.size(); }

  void read(int64_t index, Sample& sample) const override {
    thread_local ExampleWorkspace workspace;
    read_record(files_, offsets_, index, sample, [&](size_t file, uint64_t offset) {
      std::string_view bytes;
      parse_content(files_, file, [&] {
        bytes = content(file, sample.owner);
        workspace.example.parse(io::as_bytes(io::tfrecord_at(bytes, offset, "TFRecord")));
      });
      make_example_fields(workspace, options_, bytes, sample);
    });
  }

  bool prefetch(int64_t index) const override {
    std::shared_ptr<const void> owner;
    const std::string_view bytes = content(offsets_.file_of(index), owner);
    touch_pages(io::as_bytes(bytes), offsets_[index], offsets_.next(index));
    return true;
  }

  std::string describe() const override { return files_.describe(); }
  bool stored() const override { return true; }
  std::vector<int64_t> block_starts() const override { return offsets_.block_starts(); }

 private:
  void add_file(size_t file) {
    const std::string& name = files_.name(file);
    const auto mapped = files_.map(file);
    std::string_view bytes = io::as_text(mapped->bytes());
    std::vector<io::TfrecordSpan> records;
    std::shared_ptr<const io::Bytes> kept;
    parse_content(files_, file, [&] {
      auto unpacked = io::unpack_tfrecord(mapped->bytes(), name);
      if (!unpacked) return;
      packed_[file] = true;
      kept = unpacked_.get(file, [&] { return std::move(*unpacked); });
      bytes = io::as_text(*kept);
      records = io::scan_tfrecord(bytes, name);
    });
    if (!packed_[file]) records = find_records(file, bytes);
    offsets_.add_file();
    for (const auto& [offset, framed] : records) {
      TORCH_CHECK_VALUE(framed - 16 <= options_.max_record_bytes, "open_tfrecord: the record at byte ", offset, " of ",
                        name, " has ", framed - 16, " bytes, but the limit is ", options_.max_record_bytes,
                        ". If the size is correct, raise TfrecordOptions::max_record_bytes.");
      offsets_.add(offset);
    }
  }

  /// Uses the index if there is one.
  std::vector<io::TfrecordSpan> find_records(size_t file, std::string_view bytes) const {
    const std::string& name = files_.name(file);
    const bool given = !options_.indexes.empty();
    const std::string index = given ? options_.indexes[file] : tfrecord_index_path(name);
    std::error_code ignored;
    if (given || std::filesystem::exists(index, ignored))
      return io::parse_tfrecord_index(read_text_file(index), bytes, index, name);
    std::vector<io::TfrecordSpan> records;
    parse_content(files_, file, [&] { records = io::scan_tfrecord(bytes, name); });
    if (options_.save_index && !files_.is_remote(file)) write_text_file(index, io::format_tfrecord_index(records));
    return records;
  }

  std::string_view content(size_t file, std::shared_ptr<const void>& owner) const {
    if (!packed_[file]) return io::as_text(files_.content(file, owner));
    const auto kept = unpacked_.get(file, [&] {
      auto unpacked = io::unpack_tfrecord(files_.content(file, owner), files_.name(file));
      TORCH_CHECK_VALUE(unpacked, "the file was compressed when it was opened, but it no longer is. Open it again.");
      return std::move(*unpacked);
    });
    owner = kept;
    return io::as_text(*kept);
  }

  ShardFiles files_;
  TfrecordOptions options_;
  std::vector<char> packed_;  // per file: true if it is compressed
  mutable UnpackedFiles unpacked_;
  SampleOffsets offsets_;
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
