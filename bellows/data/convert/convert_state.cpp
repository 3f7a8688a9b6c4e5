#include "bellows/data/convert/convert_state.h"

#include <c10/util/Exception.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "bellows/system/file.h"

namespace bellows::data {

ConvertState::ConvertState(std::string path, Identity identity)
    : path_(std::move(path)), identity_(std::move(identity)) {
  std::error_code ignored;
  if (std::filesystem::exists(path_, ignored)) {
    load(read_text_file(path_));
  } else {
    save();
  }
}

void ConvertState::load(const std::string& text) {
  Identity found;
  try {
    const auto json = nlohmann::json::parse(text);
    found = json.at("conversion").get<Identity>();
    for (const auto& shard : json.at("shards")) {
      shards_.push_back({shard.at("name").get<std::string>(), shard.at("samples").get<int64_t>(),
                         shard.at("kept").get<int64_t>(), shard.at("unnamed").get<int64_t>(),
                         shard.at("digest").get<uint64_t>()});
    }
    if (json.contains("compared")) compared_ = json.at("compared").get<int64_t>();
  } catch (const nlohmann::json::exception& error) {
    TORCH_CHECK_VALUE(false, "convert: ", path_, " is damaged (", error.what(),
                      "). Remove its folder and start again.");
  }
  for (const auto& [key, value] : identity_) {
    const auto other = found.find(key);
    TORCH_CHECK_VALUE(other != found.end() && other->second == value, "convert: ", path_,
                      " belongs to an unfinished conversion with a different ", key, ": expected ", value, ", found ",
                      other == found.end() ? "none" : other->second,
                      ". Resume it with the same command, or remove its folder and start again.");
  }
}

void ConvertState::save() const {
  nlohmann::ordered_json json;
  json["what"] = "a conversion by bellows that is not finished; the same command resumes it";
  json["conversion"] = identity_;
  json["shards"] = nlohmann::ordered_json::array();
  for (const FinishedShard& shard : shards_)
    json["shards"].push_back({{"name", shard.name},
                              {"samples", shard.samples},
                              {"kept", shard.kept},
                              {"unnamed", shard.unnamed},
                              {"digest", shard.digest}});
  if (compared_) json["compared"] = *compared_;
  write_text_file(path_, json.dump(1) + "\n");
}

void ConvertState::add(FinishedShard shard) {
  shards_.push_back(std::move(shard));
  save();
}

void ConvertState::set_compared(int64_t samples) {
  compared_ = samples;
  save();
}

}  // namespace bellows::data
