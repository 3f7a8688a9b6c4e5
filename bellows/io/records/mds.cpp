#include "bellows/io/records/mds.h"

#include <c10/util/Exception.h>

#include <algorithm>

#include "bellows/core/error.h"
#include "bellows/io/archives/compress.h"
#include "bellows/io/hash.h"
#include "bellows/io/records/mds_value.h"
#include "bellows/io/tables/json_impl.h"

namespace bellows::io {

namespace {

using Json = nlohmann::json;

constexpr size_t kMaxColumns = 4096;

/// One object of the index and its location.
class IndexObject {
 public:
  IndexObject(const Json& object, std::string where) : object_(object), where_(std::move(where)) {
    TORCH_CHECK_VALUE(object.is_object(), where_, ": expected an object, found ", shown_json(object), ".");
  }

  const std::string& where() const { return where_; }
  const Json& at(const char* key) const {
    const auto found = object_.find(key);
    TORCH_CHECK_VALUE(found != object_.end(), where_, ": \"", key, "\" is missing.");
    return *found;
  }
  uint64_t number(const char* key, uint64_t limit = UINT64_MAX) const {
    const Json& value = at(key);
    expect(value.is_number_unsigned() && value.get<uint64_t>() <= limit, key, "a whole number in range", value);
    return value.get<uint64_t>();
  }
  std::string text(const char* key) const {
    const Json& value = at(key);
    expect(value.is_string(), key, "a text", value);
    return value.get<std::string>();
  }
  std::vector<std::string> texts(const char* key) const {
    const Json& value = at(key);
    const bool fits =
        value.is_array() && std::all_of(value.begin(), value.end(), [](const Json& item) { return item.is_string(); });
    expect(fits, key, "a list of strings", value);
    return value.get<std::vector<std::string>>();
  }
  void expect(bool fits, const char* key, const char* expected, const Json& found) const {
    TORCH_CHECK_VALUE(fits, where_, ": expected \"", key, "\" to be ", expected, ", found ", shown_json(found), ".");
  }

 private:
  const Json& object_;
  std::string where_;
};

MdsFile read_file(const Json& json, const std::string& where) {
  const IndexObject object(json, where);
  MdsFile file;
  file.basename = object.text("basename");
  const bool plain = !file.basename.empty() && file.basename != "." && file.basename != ".." &&
                     file.basename.find_first_of(std::string_view("/\\\0", 3)) == std::string::npos;
  TORCH_CHECK_VALUE(plain, where, ": expected the name of a file in the same folder, found ", printable(file.basename),
                    ".");
  file.bytes = object.number("bytes", uint64_t{1} << 40);
  const Json& hashes = object.at("hashes");
  object.expect(hashes.is_object(), "hashes", "an object", hashes);
  for (const auto& [name, digest] : hashes.items()) {
    object.expect(digest.is_string(), "hashes", "an object of strings", hashes);
    file.hashes.emplace_back(name, digest.get<std::string>());
  }
  return file;
}

/// The size of `column`, checked against its encoding.
uint64_t read_column_size(const Json& json, const MdsColumn& column, const std::string& where) {
  uint64_t fixed = 0;
  try {
    fixed = MdsEncoding::parse(column.encoding).fixed_size();
  } catch (const c10::ValueError& error) {
    TORCH_CHECK_VALUE(false, where, ": column ", printable(column.name), ": ", user_message(error));
  }
  const bool fits = json.is_null() ? fixed == 0 : json.is_number_unsigned() && json.get<uint64_t>() == fixed;
  TORCH_CHECK_VALUE(fits, where, ": column ", printable(column.name), " (", column.encoding, "): expected the size ",
                    fixed > 0 ? std::to_string(fixed) : "null", ", found ", shown_json(json), ".");
  return fixed;
}

void read_columns(const IndexObject& object, MdsShard& shard) {
  const auto names = object.texts("column_names"), encodings = object.texts("column_encodings");
  const Json& sizes = object.at("column_sizes");
  object.expect(sizes.is_array(), "column_sizes", "a list", sizes);
  TORCH_CHECK_VALUE(names.size() <= kMaxColumns, object.where(), ": ", names.size(), " columns, but the limit is ",
                    kMaxColumns, ".");
  TORCH_CHECK_VALUE(!names.empty() && names.size() == encodings.size() && names.size() == sizes.size(), object.where(),
                    ": expected the same number of columns, encodings and sizes, at least one each, found ",
                    names.size(), ", ", encodings.size(), " and ", sizes.size(), ".");
  for (size_t i = 0; i < names.size(); ++i) {
    MdsColumn column{names[i], encodings[i]};
    TORCH_CHECK_VALUE(std::find(names.begin(), names.begin() + static_cast<std::ptrdiff_t>(i), names[i]) ==
                          names.begin() + static_cast<std::ptrdiff_t>(i),
                      object.where(), ": the column ", printable(names[i]), " occurs twice.");
    column.size = read_column_size(sizes[i], column, object.where());
    shard.columns.push_back(std::move(column));
  }
}

MdsShard read_shard(const Json& json, const std::string& where) {
  const IndexObject object(json, where);
  TORCH_CHECK_VALUE(object.number("version") == 2 && object.text("format") == "mds", where,
                    ": expected version 2 of the format mds, found version ", object.number("version"), " of ",
                    printable(object.text("format")), ".");
  MdsShard shard;
  read_columns(object, shard);
  const Json& compression = object.at("compression");
  if (!compression.is_null()) shard.compression = object.text("compression");
  shard.hashes = object.texts("hashes");
  shard.samples = object.number("samples", UINT32_MAX);
  // Writers may store a limit as text ("64mb"); readers do not need it.
  if (object.at("size_limit").is_number_unsigned()) shard.size_limit = object.number("size_limit");
  shard.raw = read_file(object.at("raw_data"), where + ", raw_data");
  TORCH_CHECK_VALUE(shard.raw.bytes <= UINT32_MAX, where, ": raw_data has ", shard.raw.bytes,
                    " bytes, but a shard must be smaller than 4 GiB.");
  if (!object.at("zip_data").is_null()) shard.zip = read_file(object.at("zip_data"), where + ", zip_data");
  TORCH_CHECK_VALUE(shard.zip.has_value() == !shard.compression.empty(), where, ": compression is ",
                    shown_json(compression), ", but zip_data is ", shard.zip ? "present" : "missing", ".");
  try {
    if (shard.zip) Codec::parse(shard.compression);
  } catch (const c10::ValueError& error) {
    TORCH_CHECK_VALUE(false, where, ": ", user_message(error));
  }
  return shard;
}

}  // namespace

std::vector<MdsShard> parse_mds_index(std::string_view text, const std::string& where) {
  const Json document = parse_shallow_json(text, where);
  TORCH_CHECK_VALUE(!document.is_discarded(), where, ": expected JSON that describes MDS shards, found ",
                    describe_content(as_bytes(text)), " that is truncated or corrupt.");
  const IndexObject index(document, where);
  TORCH_CHECK_VALUE(index.number("version") == 2, where, ": expected version 2 of MDS, found ", index.number("version"),
                    ".");
  const Json& shards = index.at("shards");
  index.expect(shards.is_array(), "shards", "a list", shards);
  std::vector<MdsShard> result;
  result.reserve(shards.size());
  for (const Json& shard : shards) result.push_back(read_shard(shard, c10::str(where, ", shard ", result.size())));
  return result;
}

MdsShardReader::MdsShardReader(ByteSpan bytes, const MdsShard& shard, std::string_view where)
    : bytes_(bytes), shard_(shard), where_(where) {
  TORCH_CHECK_VALUE(bytes.size() == shard.raw.bytes, where_, ": expected ", shard.raw.bytes, " bytes, as index.json ",
                    "says, found ", bytes.size(), ". Copy the shard again.");
  TORCH_CHECK_VALUE(bytes.size() >= 8 && (bytes.size() - 8) / 4 >= shard.samples, where_, ": too small for ",
                    shard.samples, " samples: ", bytes.size(), " bytes.");
  const auto samples = load_little<uint32_t>(bytes);
  TORCH_CHECK_VALUE(samples == shard.samples, where_, ": expected ", shard.samples, " samples, as index.json says, ",
                    "found ", samples, ".");
}

void MdsShardReader::check_columns() const {
  const uint64_t begin = 8 + 4 * shard_.samples;
  const auto end = load_little<uint32_t>(bytes_, 4);
  TORCH_CHECK_VALUE(begin <= end && end <= bytes_.size(), where_, ": expected the first sample between bytes ", begin,
                    " and ", bytes_.size(), ", found it at ", end, ".");
  if (begin == end) return;
  const Json config = parse_shallow_json(as_text(bytes_.subspan(begin, end - begin)), where_);
  TORCH_CHECK_VALUE(config.is_object(), where_, ": expected JSON that describes the columns at byte ", begin, ".");
  std::vector<std::string> names, encodings;
  for (const MdsColumn& column : shard_.columns) {
    names.push_back(column.name);
    encodings.push_back(column.encoding);
  }
  const bool same = config.value("column_names", Json(names)) == Json(names) &&
                    config.value("column_encodings", Json(encodings)) == Json(encodings);
  TORCH_CHECK_VALUE(same, where_, ": the columns differ from those in index.json: ", shown_json(config), ".");
}

void MdsShardReader::read(uint64_t sample, std::vector<ByteSpan>& values) const {
  const uint64_t first = 8 + 4 * shard_.samples;
  const auto begin = load_little<uint32_t>(bytes_, 4 + 4 * sample), end = load_little<uint32_t>(bytes_, 8 + 4 * sample);
  TORCH_CHECK_VALUE(first <= begin && begin <= end && end <= bytes_.size(), where_, ": sample ", sample,
                    " should take bytes ", begin, " to ", end, ", which is not a range between bytes ", first, " and ",
                    bytes_.size(), ".");
  ByteSpan rest = bytes_.subspan(begin, end - begin);
  ByteSpan sizes = rest;
  uint64_t needed = 0, variable = 0;
  for (const MdsColumn& column : shard_.columns) variable += column.size == 0 ? 4 : 0;
  const auto check = [&](bool good) {
    TORCH_CHECK_VALUE(good, where_, ": the columns of sample ", sample, " at byte ", begin, " need ", needed + variable,
                      " bytes, but the sample has ", end - begin, ".");
  };
  check(variable <= rest.size());
  rest = rest.subspan(variable);
  values.clear();
  for (const MdsColumn& column : shard_.columns) {
    uint64_t size = column.size;
    if (size == 0) {
      size = load_little<uint32_t>(sizes);
      sizes = sizes.subspan(4);
    }
    needed += size;
    check(size <= rest.size());
    values.push_back(rest.first(size));
    rest = rest.subspan(size);
  }
  check(rest.empty());
}

namespace {

/// JSON in the format of Python's json.dumps(…, sort_keys=True).
std::string python_json(const Json& value) {
  if (!value.is_structured()) return value.dump(-1, ' ', true);
  std::string text;
  for (const auto& [key, item] : value.items()) {
    text += text.empty() ? "" : ", ";
    if (value.is_object()) text += Json(key).dump(-1, ' ', true) + ": ";
    text += python_json(item);
  }
  return value.is_object() ? "{" + text + "}" : "[" + text + "]";
}

Json describe(const MdsShard& shard) {
  Json names = Json::array(), encodings = Json::array(), sizes = Json::array();
  for (const MdsColumn& column : shard.columns) {
    names.push_back(column.name);
    encodings.push_back(column.encoding);
    sizes.push_back(column.size > 0 ? Json(column.size) : Json());
  }
  return {{"version", 2},
          {"format", "mds"},
          {"compression", shard.compression.empty() ? Json() : Json(shard.compression)},
          {"hashes", shard.hashes},
          {"size_limit", shard.size_limit ? Json(*shard.size_limit) : Json()},
          {"column_names", names},
          {"column_encodings", encodings},
          {"column_sizes", sizes}};
}

Json describe(const MdsFile& file) {
  Json hashes = Json::object();
  for (const auto& [name, digest] : file.hashes) hashes[name] = digest;
  return {{"basename", file.basename}, {"bytes", file.bytes}, {"hashes", hashes}};
}

}  // namespace

std::string make_mds_config(const MdsShard& shard) {
  return python_json(describe(shard));
}

std::string make_mds_index(const std::vector<MdsShard>& shards) {
  Json list = Json::array();
  for (const MdsShard& shard : shards) {
    Json item = describe(shard);
    item["samples"] = shard.samples;
    item["raw_data"] = describe(shard.raw);
    item["zip_data"] = shard.zip ? describe(*shard.zip) : Json();
    list.push_back(std::move(item));
  }
  return python_json({{"version", 2}, {"shards", list}});
}

MdsShardWriter::MdsShardWriter(const MdsShard& shard) : config_(make_mds_config(shard)) {}

uint64_t MdsShardWriter::size_with(uint64_t sample_bytes) const {
  return 8 + config_.size() + samples_.size() + 4 * ends_.size() + sample_bytes + 4;
}

void MdsShardWriter::add(std::string_view sample) {
  samples_ += sample;
  ends_.push_back(samples_.size());
}

std::string MdsShardWriter::take() {
  const uint64_t first = 8 + 4 * ends_.size() + config_.size();
  TORCH_CHECK_VALUE(first + samples_.size() <= UINT32_MAX, "mds: the shard would have ", first + samples_.size(),
                    " bytes, but the limit is 4 GiB.");
  std::string shard;
  shard.reserve(first + samples_.size());
  append_little(shard, static_cast<uint32_t>(ends_.size()));
  append_little(shard, static_cast<uint32_t>(first));
  for (const uint64_t end : ends_) append_little(shard, static_cast<uint32_t>(first + end));
  shard += config_;
  shard += samples_;
  samples_.clear();
  ends_.clear();
  return shard;
}

}  // namespace bellows::io
