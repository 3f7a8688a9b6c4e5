#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace bellows::cli {

/// As the command writes JSON: two spaces deep, a line break at the end; bytes that are not UTF-8, as in a path, are
/// replaced.
inline std::string json_text(const nlohmann::ordered_json& json) {
  return json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace bellows::cli
