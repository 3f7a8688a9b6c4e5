#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <iomanip>
#include <sstream>

#include "bellows/core/error.h"
#include "bellows/data/formats/mds_source.h"
#include "bellows/data/formats/new_folder.h"
#include "bellows/data/picture.h"
#include "bellows/io/archives/compress.h"
#include "bellows/io/hash.h"
#include "bellows/io/records/mds.h"
#include "bellows/io/records/mds_value.h"
#include "bellows/io/tables/number_text.h"
#include "bellows/system/file.h"
#include "bellows/system/write_state.h"

namespace bellows::data {

namespace {

constexpr std::string_view kKeyColumn = "__key__";

std::string learn_encoding(const Field& field, const Sample& sample) {
  if (field.is_array) {
    const std::string type(io::mds_dtype_name(field.dtype));
    TORCH_CHECK_VALUE(!type.empty(), "mds_sink: ", sample.where(&field), ": MDS does not support values of ",
                      c10::toString(field.dtype), ".");
    if (!field.sizes.empty()) return "ndarray:" + type;
    return field.dtype == c10::kLong ? "int" : type;
  }
  const std::string_view name = field.name;
  if (is_picture(field)) {
    const std::string_view kind = name == "image" ? picture_name(field.bytes, "bytes") : name;
    return kind == "jpg" ? "jpeg" : std::string(kind);
  }
  if (name == "json") return "json";
  return (name == "cls" || name == "txt") && io::is_utf8(io::as_text(field.bytes)) ? "str" : "bytes";
}

class MdsSink final : public Sink {
 public:
  MdsSink(const std::string& folder, const MdsSinkOptions& options)
      : folder_(folder, "mds_sink"), size_limit_(options.size_limit) {
    TORCH_CHECK_VALUE(size_limit_ <= UINT32_MAX, "mds_sink: expected size_limit to be less than 4 GiB, got ",
                      size_limit_, ", because a shard stores its size with 32 bits.");
    shard_.compression = options.compression;
    if (!options.compression.empty()) codec_ = io::Codec::parse(options.compression);
    shard_.hashes = options.hashes;
    std::sort(shard_.hashes.begin(), shard_.hashes.end());
    for (const std::string& name : shard_.hashes) io::hash_hex(name, {});  // checks that the name is supported
    if (size_limit_ > 0) shard_.size_limit = size_limit_;
    if (!options.columns.empty()) set_columns(options.columns);
  }

  void write(const Sample& sample) override {
    state_.check("mds_sink");
    if (!writer_) learn_columns(sample);
    TORCH_CHECK_VALUE(
        !learnt_ || sample.key.empty() != has_key_, "mds_sink: ", sample.where(),
        has_key_ ? " has no key, but other samples have one." : " has a key, but other samples have none.");
    encode(sample);
    if (size_limit_ > 0 && writer_->samples() > 0 && writer_->size_with(row_.size()) > size_limit_) finish_shard();
    TORCH_CHECK_VALUE(writer_->size_with(row_.size()) <= UINT32_MAX, "mds_sink: ", sample.where(),
                      ": a shard would have ", writer_->size_with(row_.size()), " bytes, but the limit is 4 GiB.");
    writer_->add(row_);
  }

  void close() override {
    if (writer_ && writer_->samples() > 0) finish_shard();
    state_.run("mds_sink", [&] {
      write_text_file(folder_ / "index.json", io::make_mds_index(shards_));
      folder_.commit();
    });
  }

 private:
  void set_columns(std::vector<std::pair<std::string, std::string>> columns) {
    std::sort(columns.begin(), columns.end());
    for (const auto& [name, encoding] : columns) {
      TORCH_CHECK_VALUE(io::is_utf8(name), "mds_sink: expected column names in UTF-8, got ", io::printable(name), ".");
      TORCH_CHECK_VALUE(shard_.columns.empty() || shard_.columns.back().name != name, "mds_sink: the column ",
                        io::printable(name), " occurs twice.");
      encodings_.push_back(io::MdsEncoding::parse(encoding));
      shard_.columns.push_back({name, encoding, encodings_.back().fixed_size()});
    }
    writer_.emplace(shard_);
  }

  void learn_columns(const Sample& sample) {
    std::vector<std::pair<std::string, std::string>> columns;
    learnt_ = true;
    has_key_ = !sample.key.empty();
    if (has_key_) columns.emplace_back(kKeyColumn, "str");
    for (const Field& field : sample.fields) columns.emplace_back(field.name, learn_encoding(field, sample));
    TORCH_CHECK_VALUE(!columns.empty(), "mds_sink: ", sample.where(), " has no fields.");
    set_columns(std::move(columns));
  }

  /// Encodes the sample into row_ in the format of a shard: the variable columns' sizes, then all columns.
  void encode(const Sample& sample) {
    std::string sizes;
    values_.clear();
    size_t used = 0;
    for (size_t i = 0; i < encodings_.size(); ++i) {
      const std::string& name = shard_.columns[i].name;
      const Field* field = sample.find(name);
      Field key{.name = kKeyColumn, .bytes = io::as_bytes(sample.key)};
      if (!field && name == kKeyColumn) field = &key;
      TORCH_CHECK_VALUE(field, "mds_sink: ", sample.where(), " has no \"", name, "\", which other samples have.");
      used += field == &key ? 0 : 1;
      const size_t before = values_.size();
      try {
        encodings_[i].encode({field->bytes, field->is_array, field->dtype}, field->sizes, values_);
      } catch (const c10::ValueError& error) {
        TORCH_CHECK_VALUE(false, "mds_sink: ", sample.where(field), ": column \"", name, "\": ", user_message(error));
      }
      const size_t bytes = values_.size() - before;
      TORCH_CHECK_VALUE(bytes <= UINT32_MAX, "mds_sink: ", sample.where(field), " has ", bytes,
                        " bytes; expected less than 4 GiB.");
      if (shard_.columns[i].size == 0) io::append_little(sizes, static_cast<uint32_t>(bytes));
    }
    TORCH_CHECK_VALUE(used == sample.fields.size(), "mds_sink: ", sample.where(),
                      " has fields that are not columns, or has a field twice. The columns are ", column_names(), ".");
    row_ = sizes + values_;
  }

  std::string column_names() const {
    std::vector<std::string> names;
    for (const io::MdsColumn& column : shard_.columns) names.push_back(column.name);
    return c10::Join(", ", names);
  }

  io::MdsFile describe(const std::string& basename, io::ByteSpan bytes) const {
    io::MdsFile file{.basename = basename, .bytes = bytes.size()};
    for (const std::string& name : shard_.hashes) file.hashes.emplace_back(name, io::hash_hex(name, bytes));
    return file;
  }

  void finish_shard() {
    state_.run("mds_sink", [&] { write_shard(); });
  }

  void write_shard() {
    std::ostringstream name;
    name << "shard." << std::setw(5) << std::setfill('0') << shards_.size() << ".mds";
    io::MdsShard shard = shard_;
    shard.samples = writer_->samples();
    const std::string raw = writer_->take();
    shard.raw = describe(name.str(), io::as_bytes(raw));
    io::Bytes packed;
    if (codec_) {
      packed = io::compress(io::as_bytes(raw), *codec_);
      shard.zip = describe(name.str() + "." + codec_->extension, packed);
    }
    AtomicFile file(folder_ / (shard.zip ? shard.zip->basename : shard.raw.basename));
    file.write(shard.zip ? io::ByteSpan(packed) : io::as_bytes(raw));
    file.commit();
    shards_.push_back(std::move(shard));
  }

  NewFolder folder_;
  WriteState state_;
  uint64_t size_limit_;
  std::optional<io::Codec> codec_;
  io::MdsShard shard_;  // common properties of all shards
  std::vector<io::MdsEncoding> encodings_;
  std::optional<io::MdsShardWriter> writer_;
  std::vector<io::MdsShard> shards_;
  std::string row_, values_;
  bool learnt_ = false, has_key_ = false;
};

}  // namespace

std::unique_ptr<Sink> mds_sink(const std::string& folder, const MdsSinkOptions& options) {
  return std::make_unique<MdsSink>(folder, options);
}

}  // namespace bellows::data
