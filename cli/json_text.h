#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "bellows/report/json_text.h"

namespace bellows::cli {

/// Returns the value as text, in the JSON format of the `bellows` command: indented by two spaces, with a line break at
/// the end.
inline std::string json_text(const nlohmann::ordered_json& json) {
  return bellows::json_text(json, 2) + "\n";
}

}  // namespace bellows::cli
