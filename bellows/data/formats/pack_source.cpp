#include "bellows/data/formats/pack_source.h"

#include <c10/util/Exception.h>

#include "bellows/core/error.h"
#include "bellows/data/formats/file_starts.h"
#include "bellows/data/formats/read_sample.h"
#include "bellows/data/formats/shard_files.h"

namespace bellows::data {

namespace {

class PackSource final : public Source {
 public:
  using Source::read;

  PackSource(const std::vector<std::string>& files, io::PackVerify verify)
      : files_(files), indexes_(files_.open_parts(io::need_pack_index)) {
    packs_.reserve(files_.size());
    for (size_t i = 0; i < files_.size(); ++i) {
      parse_content(files_, i, [&] { packs_.emplace_back(indexes_[i].bytes(), files_.name(i), verify); });
      starts_.add(size_);
      size_ += packs_.back().size();
    }
  }

  int64_t size() const override { return size_; }
  std::string describe() const override { return files_.describe(); }
  bool stored() const override { return true; }

  std::vector<int64_t> block_starts() const override {
    std::vector<int64_t> starts;
    for (size_t i = 0; i < packs_.size(); ++i) {
      for (const int64_t start : packs_[i].block_starts()) starts.push_back(starts_.first(i) + start);
    }
    return starts;
  }

  bool prefetch(int64_t index) const override {
    std::shared_ptr<const void> owner;
    const io::PackRecord record = record_of(index, owner);  // also verifies its block
    for (size_t k = 0; k < record.size(); ++k) touch_pages(record.item(k).bytes);
    return true;
  }

  void read(int64_t index, Sample& sample) const override {
    const size_t file = starts_.file_of(index);
    begin_sample(files_, file, index, sample);
    const auto take = [&] {
      const io::PackRecord record = record_of(index, sample.owner);
      sample.key = record.key();
      fill(record, sample);
    };
    read_naming([&] { return c10::str("sample ", index); }, [&] { parse_content(files_, file, take); });
  }

 private:
  io::PackRecord record_of(int64_t index, std::shared_ptr<const void>& owner) const {
    const size_t file = starts_.file_of(index);
    return packs_[file].record(index - starts_.first(file), files_.content(file, owner));
  }

  static void fill(const io::PackRecord& record, Sample& sample) {
    size_t dims = 0;
    for (size_t k = 0; k < record.size(); ++k) dims += record.item(k).shape.size() / 8;
    sample.shapes.reserve(dims);
    for (size_t k = 0; k < record.size(); ++k) {
      const io::PackRecord::Item item = record.item(k);
      Field& field = sample.fields.emplace_back();
      field.name = item.field->name;
      field.bytes = item.bytes;
      field.offset = item.offset;
      field.is_array = item.field->is_array;
      field.dtype = item.field->dtype;
      if (field.is_array) field.sizes = item.field->fixed_shape ? item.field->shape : append_sizes(item.shape, sample);
    }
  }

  static c10::IntArrayRef append_sizes(io::ByteSpan shape, Sample& sample) {
    const size_t begin = sample.shapes.size(), dims = shape.size() / 8;
    for (size_t i = 0; i < dims; ++i)
      sample.shapes.push_back(static_cast<int64_t>(io::load_little<uint64_t>(shape, 8 * i)));
    return {sample.shapes.data() + begin, dims};
  }

  ShardFiles files_;
  std::vector<io::PartialFile> indexes_;
  std::vector<io::PackReader> packs_;  // of the indexes
  FileStarts starts_;
  int64_t size_ = 0;
};

}  // namespace

SourcePtr open_pack(const std::vector<std::string>& files, io::PackVerify verify) {
  return std::make_shared<PackSource>(files, verify);
}

PackSink::PackSink(const std::string& path, io::PackWriterOptions options) : writer_(path, options) {}

void PackSink::write(const Sample& sample) {
  values_.clear();
  for (const Field& field : sample.fields)
    values_.push_back({field.name, field.bytes, field.is_array, field.dtype, field.sizes});
  try {
    writer_.add(sample.key, values_);
  } catch (const c10::ValueError& error) {
    TORCH_CHECK_VALUE(false, "pack: ", sample.where(), ": ", user_message(error));
  }
}

std::unique_ptr<Sink> pack_sink(const std::string& path, io::PackWriterOptions options) {
  return std::make_unique<PackSink>(path, options);
}

}  // namespace bellows::data
