#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "bellows/data/sample.h"

namespace bellows::data {

/// Properties of all numbers with the same name, over all lines.
struct JsonColumn {
  bool real = false;                   ///< some numbers have a fraction or an exponent
  bool negative = false, big = false;  ///< some numbers are below 0; some numbers are 2^63 or more
  bool inexact = false;                ///< some numbers are integers that float64 cannot represent exactly
  c10::ScalarType dtype() const { return real ? c10::kDouble : big ? c10::kUInt64 : c10::kLong; }
};
using JsonColumns = std::map<std::string, JsonColumn, std::less<>>;

/// Returns true if a field holds raw JSON instead of a text or an array. Raw JSON is null, an object, or a list of
/// mixed values.
inline bool is_json_value(const Field& field) {
  return !field.is_array && field.dtype == c10::ScalarType::Undefined;
}

/// Checks a line and updates `columns` with its numbers.
/// Params: where – returns the location of the line, for error messages
/// Throws: c10::ValueError if the line is invalid; the message contains the location and the reason
void learn_json_record(std::string_view line, const std::function<std::string()>& where, JsonColumns& columns);

/// Fills the fields of the sample from a line. A value "__key__" stays a field.
/// Throws: see learn_json_record()
void read_json_record(std::string_view line, const std::function<std::string()>& where, const JsonColumns& columns,
                      Sample& sample);

}  // namespace bellows::data
