#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "bellows/data/sample.h"

namespace bellows::data {

/// Properties of the numbers under one name, over all lines.
struct JsonColumn {
  bool real = false;                   ///< some have a fraction or an exponent
  bool negative = false, big = false;  ///< some are below 0; some are 2^63 or more
  bool inexact = false;                ///< some are integers that float64 cannot represent exactly
  c10::ScalarType dtype() const { return real ? c10::kDouble : big ? c10::kUInt64 : c10::kLong; }
};
using JsonColumns = std::map<std::string, JsonColumn, std::less<>>;

/// True if a field is neither a text nor an array but raw JSON: null, an object, or a list of mixed values.
inline bool is_json_value(const Field& field) {
  return !field.is_array && field.dtype == c10::ScalarType::Undefined;
}

/// Checks a line and updates its columns.
/// Throws: c10::ValueError if the line is invalid; the message contains `where` and the reason
void learn_json_record(std::string_view line, const std::function<std::string()>& where, JsonColumns& columns);

/// Fills the sample's fields and key from a line.
/// Throws: as learn_json_record
void read_json_record(std::string_view line, const std::function<std::string()>& where, const JsonColumns& columns,
                      Sample& sample);

}  // namespace bellows::data
