#pragma once

#include <string>

namespace bellows {

/// The text of a JSON value. Strings may hold any bytes, such as file names: what is not UTF-8 becomes U+FFFD, where
/// dump() alone throws and the whole document is lost.
template <class Json>
std::string json_text(const Json& json, int indent = -1) {
  return json.dump(indent, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

}  // namespace bellows
