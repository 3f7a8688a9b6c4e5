#pragma once

#include <cmath>
#include <string>

namespace bellows {

/// Serializes a JSON value. Bytes that are not UTF-8, for example in file names, become U+FFFD. In contrast,
/// Json::dump() throws with its default arguments.
template <class Json>
std::string json_text(const Json& json, int indent = -1) {
  return json.dump(indent, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

/// Returns a number, or null for NaN and infinity, which JSON does not support.
template <class Json>
Json number_or_null(double value) {
  return std::isfinite(value) ? Json(value) : Json(nullptr);
}

}  // namespace bellows
