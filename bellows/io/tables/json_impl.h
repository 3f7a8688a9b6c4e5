#pragma once

#include <c10/util/Exception.h>

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "bellows/io/bytes.h"

namespace bellows::io {

/// Parses JSON from an untrusted file. The nesting depth is limited, because printing, copying and comparing JSON are
/// recursive.
/// Params: where – prefix of error messages
///         throws – true: invalid JSON throws Json::parse_error; false: the result is a discarded value
/// Throws: c10::ValueError if the nesting is deeper than `deepest`
inline nlohmann::json parse_shallow_json(std::string_view text, std::string_view where, int deepest = 16,
                                         bool throws = false) {
  using Json = nlohmann::json;
  const auto limit = [&](int depth, Json::parse_event_t, const Json&) {
    TORCH_CHECK_VALUE(depth <= deepest, where, ": expected JSON of at most ", deepest,
                      " levels, found deeper nesting.");
    return true;
  };
  return Json::parse(text, limit, throws);
}

/// Formats a value for a message.
inline std::string shown_json(const nlohmann::json& value, size_t limit = 60) {
  return printable(value.dump(-1, ' ', /*ensure_ascii=*/true, nlohmann::json::error_handler_t::replace), limit);
}

}  // namespace bellows::io
