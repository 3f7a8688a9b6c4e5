#pragma once

#include <c10/util/Exception.h>

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "bellows/io/bytes.h"

namespace bellows::io {

/// JSON out of a foreign file. Nesting is limited: whoever prints, copies or compares it walks through it recursively.
/// Params: where – begins messages
///         throws – Json::parse_error where it is no JSON; otherwise the result is discarded then
/// Throws: c10::ValueError – nested deeper than `deepest`
inline nlohmann::json parse_shallow_json(std::string_view text, std::string_view where, int deepest = 16,
                                         bool throws = false) {
  using Json = nlohmann::json;
  const auto limit = [&](int depth, Json::parse_event_t, const Json&) {
    TORCH_CHECK_VALUE(depth <= deepest, where, ": expected JSON of at most ", deepest,
                      " levels, found it nested too deeply.");
    return true;
  };
  return Json::parse(text, limit, throws);
}

/// A value as it may stand in a message.
inline std::string shown_json(const nlohmann::json& value, size_t limit = 60) {
  return printable(value.dump(-1, ' ', /*ensure_ascii=*/true, nlohmann::json::error_handler_t::replace), limit);
}

}  // namespace bellows::io
