#include "bellows/data/formats/beton_source.h"

#include <c10/util/Exception.h>

#include "bellows/data/formats/file_starts.h"
#include "bellows/data/formats/read_sample.h"
#include "bellows/data/formats/shard_files.h"
#include "bellows/io/records/beton.h"

namespace bellows::data {

namespace {

class BetonSource final : public Source {
 public:
  using Source::read;

  explicit BetonSource(const std::vector<std::string>& paths)
      : files_(paths), tables_(files_.open_parts(io::need_beton_tables)) {
    readers_.reserve(files_.size());
    for (size_t i = 0; i < files_.size(); ++i) {
      parse_content(files_, i, [&] { readers_.emplace_back(tables_[i].bytes(), files_.name(i)); });
      const io::BetonReader& reader = readers_.back();
      TORCH_CHECK_VALUE(reader.fields() == readers_.front().fields(), "open_beton: ", reader.path(),
                        " has different fields than ", readers_.front().path(), ". Open the files separately.");
      add_blocks(reader);
      starts_.add(size_);
      size_ += reader.size();
    }
    if (!worthwhile_) blocks_.clear();
  }

  int64_t size() const override { return size_; }

  bool prefetch(int64_t index) const override {
    const size_t file = starts_.file_of(index);
    const io::BetonReader& reader = readers_[file];
    std::shared_ptr<const void> owner;
    const io::ByteSpan content = files_.content(file, owner);
    for (size_t i = 0; i < reader.fields().size(); ++i)
      touch_pages(reader.read(index - starts_.first(file), i, content).bytes);
    return true;
  }

  void read(int64_t index, Sample& sample) const override {
    const size_t file = starts_.file_of(index);
    const io::BetonReader& reader = readers_[file];
    const int64_t row = index - starts_.first(file);
    begin_sample(files_, file, index, sample);
    sample.shapes.reserve(3 * reader.fields().size());
    const auto take = [&] {
      const io::ByteSpan content = files_.content(file, sample.owner);
      for (size_t i = 0; i < reader.fields().size(); ++i)
        add_field(reader.fields()[i], reader.read(row, i, content), sample);
    };
    read_naming([&] { return c10::str("sample ", index); }, [&] { parse_content(files_, file, take); });
  }

  std::string describe() const override { return files_.describe(); }
  bool stored() const override { return true; }
  std::vector<int64_t> block_starts() const override { return blocks_; }

 private:
  static void add_field(const io::BetonField& type, const io::BetonValue& value, Sample& sample) {
    Field& field = sample.fields.emplace_back();
    field.name = type.name;
    field.bytes = value.bytes;
    field.offset = value.offset;
    switch (type.type) {
      case io::BetonType::float64:
      case io::BetonType::int64:
        field.is_array = true;
        field.dtype = type.type == io::BetonType::int64 ? c10::ScalarType::Long : c10::ScalarType::Double;
        break;
      case io::BetonType::image:
        if (value.is_jpeg) break;
        field.is_array = true;
        sample.shapes.insert(sample.shapes.end(), {value.height, value.width, 3});
        field.sizes = {sample.shapes.data() + sample.shapes.size() - 3, 3};
        break;
      case io::BetonType::array:
      case io::BetonType::tensor:
        field.is_array = true;
        field.dtype = type.dtype;
        field.sizes = type.sizes;
        break;
      case io::BetonType::bytes:
      case io::BetonType::json:
        break;
    }
  }

  /// Adds runs of samples in one page as blocks. Concurrent writers create several runs per page; samples in random
  /// order create runs of one sample, which are useless as blocks.
  void add_blocks(const io::BetonReader& reader) {
    const size_t before = blocks_.size();
    bool ascending = true;
    for (int64_t i = 0; i < reader.size(); ++i) {
      const uint64_t page = reader.page(i), last = i == 0 ? 0 : reader.page(i - 1);
      if (i == 0 || page != last) blocks_.push_back(size_ + i);
      ascending = ascending && page >= last;
    }
    constexpr size_t kUsefulRun = 8;
    worthwhile_ =
        worthwhile_ && (ascending || (blocks_.size() - before) * kUsefulRun <= static_cast<size_t>(reader.size()));
  }

  ShardFiles files_;
  std::vector<io::PartialFile> tables_;
  std::vector<io::BetonReader> readers_;  // of the tables
  FileStarts starts_;
  int64_t size_ = 0;
  std::vector<int64_t> blocks_;
  bool worthwhile_ = true;
};

}  // namespace

SourcePtr open_beton(const std::vector<std::string>& paths) {
  return std::make_shared<BetonSource>(paths);
}

}  // namespace bellows::data
