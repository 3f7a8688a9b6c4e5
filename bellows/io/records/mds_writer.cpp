#include <c10/util/Exception.h>

#include <nlohmann/json.hpp>

#include "bellows/io/records/mds.h"

namespace bellows::io {

namespace {

using Json = nlohmann::json;

/// JSON as Python's json.dumps(…, sort_keys=True) writes it.
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
  TORCH_CHECK_VALUE(first + samples_.size() <= UINT32_MAX, "mds: a shard of ", first + samples_.size(),
                    " bytes; it can have less than 4 GiB.");
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
