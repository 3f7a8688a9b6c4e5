#include "bellows/checkpoint/format.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <set>
#include <utility>

#include "bellows/checkpoint/tiling.h"
#include "bellows/core/error.h"
#include "bellows/io/crc32.h"
#include "bellows/io/tables/json_impl.h"
#include "bellows/io/tensors/safetensors.h"
#include "bellows/io/tensors/safetensors_header.h"

namespace bellows::checkpoint {

namespace {

constexpr const char* file_format = "bellows.checkpoint";
constexpr int64_t file_version = 2;  // 2: adds "environment"

NamedTensors named_tensors(const io::PickleValue& dict) {
  NamedTensors result;
  for (const auto& [key, value] : dict.items()) result.emplace_back(key.as_string(), value.as_tensor());
  return result;
}

/// Detaches parameters, so that they are saved as plain tensors.
io::PickleValue to_dict(const NamedTensors& tensors) {
  NamedTensors plain;
  for (const auto& [name, tensor] : tensors) plain.emplace_back(name, tensor.detach());
  return plain;
}

State from_pickle(const io::PickleValue& file) {
  State state;
  state.model = named_tensors(file.at("model"));
  state.optimizer = named_tensors(file.at("optimizer"));
  state.rng = named_tensors(file.at("rng"));
  state.extra = named_tensors(file.at("extra"));
  state.step = file.at("position").at("step").as_int();
  state.epoch = file.at("position").at("epoch").as_int();
  state.batch = file.at("position").at("batch").as_int();
  state.recipe = file.at("recipe").as_string();
  if (file.at("version").as_int() >= 2) state.environment = file.at("environment").as_string();
  return state;
}

}  // namespace

io::PickleValue pickle_state(const State& state) {
  io::PickleValue position = io::PickleValue::dict();
  position.set("step", state.step);
  position.set("epoch", state.epoch);
  position.set("batch", state.batch);
  io::PickleValue file = io::PickleValue::dict();
  file.set("format", file_format);
  file.set("version", file_version);
  file.set("model", to_dict(state.model));
  file.set("optimizer", to_dict(state.optimizer));
  file.set("rng", to_dict(state.rng));
  file.set("extra", to_dict(state.extra));
  file.set("position", position);
  file.set("recipe", state.recipe);
  file.set("environment", state.environment);
  return file;
}

State unpickle_state(const io::PickleValue& file, const std::string& path) {
  const io::PickleValue* format = file.is_dict() ? file.find("format") : nullptr;
  TORCH_CHECK_VALUE(
      format && format->is_string() && format->as_string() == file_format, "checkpoint: ", path,
      " is a torch.save file, but not a checkpoint of a training run. To read only weights, use load_tensors().");
  const int64_t version = file.at("version").as_int();
  TORCH_CHECK_VALUE(version >= 1 && version <= file_version, "checkpoint: ", path, " has version ", version,
                    ", but this program reads versions up to ", file_version, ". Use a newer Bellows.");
  try {
    return from_pickle(file);
  } catch (const c10::Error& error) {
    TORCH_CHECK_VALUE(false, "checkpoint: ", path, " is incomplete: ", user_message(error));
  }
}

namespace {

using nlohmann::json, nlohmann::ordered_json;

constexpr const char* index_format = "bellows.sharded_checkpoint";
constexpr int64_t index_version = 1;
constexpr std::string_view crc_begin = ",\n  \"crc32c\": \"", crc_end = "\"\n}\n";
constexpr size_t crc_digits = 8;

ordered_json to_json(const SavedFile& file) {
  return {{"name", file.name}, {"bytes", file.bytes}, {"header_crc32c", io::crc32_text(file.header_crc32c)}};
}

ordered_json to_json(const SavedPiece& piece) {
  ordered_json crc = json::array();
  for (const uint32_t value : piece.crc32c) crc.push_back(io::crc32_text(value));
  return {{"file", piece.file},
          {"key", piece.key},
          {"offset", piece.spec.offset},
          {"length", piece.spec.length},
          {"crc32c", std::move(crc)}};
}

ordered_json to_json(const SavedTensor& tensor) {
  ordered_json result = {{"name", tensor.name}, {"dtype", tensor.dtype}, {"sizes", tensor.sizes}};
  if (!tensor.strides.empty()) result["strides"] = tensor.strides;
  result["pieces"] = json::array();
  for (const SavedPiece& piece : tensor.pieces) result["pieces"].push_back(to_json(piece));
  return result;
}

std::string json_line(const ordered_json& value) {
  return value.dump(-1, ' ', false, json::error_handler_t::replace);
}

/// One line per item.
template <class Items>
std::string json_lines(const Items& items) {
  std::string text = "[";
  for (const auto& item : items) text += (text.size() > 1 ? ",\n    " : "\n    ") + json_line(to_json(item));
  return text + "]";
}

/// A value of the index with its location for errors.
class IndexValue {
 public:
  IndexValue(const json& value, std::string where) : value_(value), where_(std::move(where)) {}

  const std::string& where() const { return where_; }
  bool has(const char* key) const { return value_.contains(key); }
  IndexValue at(const char* key) const {
    expect(value_.is_object(), "an object");
    const auto found = value_.find(key);
    TORCH_CHECK_VALUE(found != value_.end(), where_, ": \"", key, "\" is missing.");
    return {*found, where_ + ", " + key};
  }
  template <class T>
  std::vector<T> list(T (IndexValue::*read)() const) const {
    expect(value_.is_array(), "a list");
    std::vector<T> result;
    result.reserve(value_.size());
    for (const json& item : value_) result.push_back((IndexValue(item, where_).*read)());
    return result;
  }
  /// Calls `action` for each item; errors name its index.
  template <class Action>
  void each(Action action) const {
    expect(value_.is_array(), "a list");
    for (size_t i = 0; i < value_.size(); ++i) action(IndexValue(value_[i], where_ + " " + std::to_string(i)));
  }
  std::string text() const {
    expect(value_.is_string(), "a text");
    return value_.get<std::string>();
  }
  int64_t number() const {
    constexpr uint64_t limit = uint64_t{1} << 62;
    expect(value_.is_number_unsigned() && value_.get<uint64_t>() <= limit, "a whole number from 0 to 2^62");
    return value_.get<int64_t>();
  }
  uint32_t crc() const {
    const std::string said = text();
    uint32_t result = 0;
    const auto end = std::from_chars(said.data(), said.data() + said.size(), result, 16).ptr;
    expect(said.size() == crc_digits && end == said.data() + said.size(), "eight hexadecimal digits");
    return result;
  }
  std::vector<int64_t> numbers() const { return list(&IndexValue::number); }

 private:
  void expect(bool fits, const char* expected) const {
    TORCH_CHECK_VALUE(fits, where_, ": expected ", expected, ", found ", io::shown_json(value_), ".");
  }

  const json& value_;
  std::string where_;
};

SavedFile read_saved_file(const IndexValue& value) {
  SavedFile file{.name = value.at("name").text(),
                 .bytes = static_cast<uint64_t>(value.at("bytes").number()),
                 .header_crc32c = value.at("header_crc32c").crc()};
  const bool plain = !file.name.empty() && !file.name.starts_with('.') &&
                     file.name.find_first_of(std::string_view("/\\\0", 3)) == std::string::npos;
  TORCH_CHECK_VALUE(plain, value.where(), ": expected the name of a file in the same folder, found ",
                    io::printable(file.name), ".");
  return file;
}

/// Whether the strides give each element its own location, without gaps.
bool is_dense(const std::vector<int64_t>& sizes, const std::vector<int64_t>& strides, int64_t numel) {
  if (strides.size() != sizes.size()) return false;
  if (numel == 0) return true;
  std::vector<std::pair<int64_t, int64_t>> dims;
  dims.reserve(sizes.size());
  for (size_t dim = 0; dim < sizes.size(); ++dim) {
    if (sizes[dim] > 1) dims.emplace_back(strides[dim], sizes[dim]);
  }
  std::sort(dims.begin(), dims.end());
  int64_t next = 1;
  for (const auto& [stride, size] : dims) {
    if (stride != std::exchange(next, next * size)) return false;
  }
  return true;
}

SavedPiece read_saved_piece(const IndexValue& value, const SavedTensor& tensor, const ShardedIndex& index) {
  SavedPiece piece{.file = static_cast<size_t>(value.at("file").number()),
                   .key = value.at("key").text(),
                   .spec = {tensor.sizes, value.at("offset").numbers(), value.at("length").numbers()},
                   .crc32c = value.at("crc32c").list(&IndexValue::crc)};
  TORCH_CHECK_VALUE(piece.file < index.files.size(), value.where(), ": expected one of the ", index.files.size(),
                    " files, found number ", piece.file, ".");
  TORCH_CHECK_VALUE(piece.spec.is_inside(), value.where(), ": expected a part of a tensor of sizes [",
                    c10::Join(", ", tensor.sizes), "], found offset [", c10::Join(", ", piece.spec.offset),
                    "], length [", c10::Join(", ", piece.spec.length), "].");
  const auto width = static_cast<uint64_t>(io::safetensors_bits(tensor.dtype)) / 8;
  const uint64_t bytes = static_cast<uint64_t>(piece.spec.numel()) * width;
  TORCH_CHECK_VALUE(piece.spec.numel() <= INT64_MAX / 16 && bytes <= index.files[piece.file].bytes, value.where(),
                    ": a piece of ", piece.spec.numel(), " elements is larger than its file.");
  const uint64_t chunks = bytes / index.chunk_bytes + (bytes % index.chunk_bytes != 0);
  TORCH_CHECK_VALUE(piece.crc32c.size() == chunks, value.where(), ": expected ", chunks, " checksums, found ",
                    piece.crc32c.size(), ".");
  return piece;
}

SavedTensor read_saved_tensor(const IndexValue& value, const ShardedIndex& index) {
  SavedTensor tensor{
      .name = value.at("name").text(), .dtype = value.at("dtype").text(), .sizes = value.at("sizes").numbers()};
  const std::string where = value.where() + " (" + io::printable(tensor.name, 200) + ")";
  const int bits = io::safetensors_bits(tensor.dtype);
  TORCH_CHECK_VALUE(bits >= 8 && bits % 8 == 0, where,
                    ": expected a safetensors dtype with a whole number of bytes, found ", io::printable(tensor.dtype),
                    ".");
  const int64_t numel = checked_numel(tensor.sizes, where);
  if (value.has("strides")) tensor.strides = value.at("strides").numbers();
  TORCH_CHECK_VALUE(tensor.strides.empty() || is_dense(tensor.sizes, tensor.strides, numel), where,
                    ": expected strides of a dense tensor [", c10::Join(", ", tensor.sizes), "], found [",
                    c10::Join(", ", tensor.strides), "].");
  value.at("pieces").each(
      [&](const IndexValue& piece) { tensor.pieces.push_back(read_saved_piece(piece, tensor, index)); });
  std::vector<const comm::ShardSpec*> specs;
  specs.reserve(tensor.pieces.size());
  for (const SavedPiece& piece : tensor.pieces) specs.push_back(&piece.spec);
  check_tiling(specs, tensor.sizes, where, [](size_t piece) { return "piece " + std::to_string(piece); });
  return tensor;
}

/// Compares the checksum in the last line with the text before it.
void check_index_crc(std::string_view text, const std::string& where) {
  const size_t tail = crc_begin.size() + crc_digits + crc_end.size();
  const bool complete =
      text.size() > tail && text.ends_with(crc_end) && text.substr(text.size() - tail).starts_with(crc_begin);
  TORCH_CHECK_VALUE(complete, where,
                    ": expected a checksum in the last line, found none. The file is truncated, or is not the index ",
                    "of a checkpoint (", text.size(), " bytes).");
  const std::string_view content = text.substr(0, text.size() - tail);
  const std::string_view written = text.substr(content.size() + crc_begin.size(), crc_digits);
  const std::string found = io::crc32_text(io::crc32c(io::as_bytes(content)));
  TORCH_CHECK_VALUE(found == written, where, ": expected the checksum ", io::printable(written), ", found ", found,
                    ": the file is damaged.");
}

}  // namespace

c10::ScalarType SavedTensor::scalar_type() const {
  return io::safetensors_dtype({.name = name, .dtype = dtype}, "checkpoint");
}

std::string rank_file_name(int rank, int ranks) {
  char name[64];
  std::snprintf(name, sizeof(name), "rank-%05d-of-%05d.safetensors", rank, ranks);
  return name;
}

std::string make_sharded_index(const ShardedIndex& index) {
  const ordered_json head = {{"format", index_format},
                             {"version", index_version},
                             {"ranks", index.ranks},
                             {"step", index.step},
                             {"epoch", index.epoch},
                             {"batch", index.batch},
                             {"consumed", index.consumed},
                             {"recipe", index.recipe},
                             {"environment", index.environment},
                             {"chunk_bytes", index.chunk_bytes}};
  std::string text = "{";
  for (const auto& [key, value] : head.items())
    text += (text.size() > 1 ? ",\n  \"" : "\n  \"") + key + "\": " + json_line(value);
  text += ",\n  \"files\": " + json_lines(index.files) + ",\n  \"tensors\": " + json_lines(index.tensors);
  const std::string crc = io::crc32_text(io::crc32c(io::as_bytes(text)));
  return text.append(crc_begin).append(crc).append(crc_end);
}

ShardedIndex parse_sharded_index(std::string_view text, const std::string& where) {
  check_index_crc(text, where);
  json content;
  try {
    content = io::parse_shallow_json(text, where, 16, /*throws=*/true);
  } catch (const json::exception& error) {
    TORCH_CHECK_VALUE(false, where, ": expected JSON. ", error.what());
  }
  const IndexValue value(content, where);
  TORCH_CHECK_VALUE(value.at("format").text() == index_format, where, ": expected the format ", index_format,
                    ", found ", io::printable(value.at("format").text()), ".");
  const int64_t version = value.at("version").number();
  TORCH_CHECK_VALUE(version >= 1 && version <= index_version, where, " has version ", version,
                    ", but this program reads versions up to ", index_version, ". Use a newer Bellows.");
  ShardedIndex index{.ranks = value.at("ranks").number(),
                     .step = value.at("step").number(),
                     .epoch = value.at("epoch").number(),
                     .batch = value.at("batch").number(),
                     .consumed = value.at("consumed").number(),
                     .recipe = value.at("recipe").text(),
                     .environment = value.at("environment").text(),
                     .chunk_bytes = static_cast<uint64_t>(value.at("chunk_bytes").number())};
  TORCH_CHECK_VALUE(index.chunk_bytes > 0, where, ": expected chunk_bytes above 0.");
  value.at("files").each([&](const IndexValue& file) { index.files.push_back(read_saved_file(file)); });
  std::set<std::string> names;
  value.at("tensors").each([&](const IndexValue& tensor) {
    index.tensors.push_back(read_saved_tensor(tensor, index));
    const std::string& name = index.tensors.back().name;
    TORCH_CHECK_VALUE(names.insert(name).second, where, ": ", io::printable(name, 200), " occurs twice.");
  });
  return index;
}

}  // namespace bellows::checkpoint
