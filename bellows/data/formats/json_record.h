#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "bellows/data/sample.h"

namespace bellows::data {

/// The numbers under one name, in all lines.
struct JsonColumn {
  bool real = false;                   ///< some have a fraction or an exponent
  bool negative = false, big = false;  ///< some are below 0; some are 2^63 or more
  bool inexact = false;                ///< some are whole and not exact as float64
  c10::ScalarType dtype() const { return real ? c10::kDouble : big ? c10::kUInt64 : c10::kLong; }
};
using JsonColumns = std::map<std::string, JsonColumn, std::less<>>;

/// Whether a field is neither text nor array, but JSON as it stands: null, an object, a list of different things.
inline bool is_json_value(const Field& field) {
  return !field.is_array && field.dtype == c10::ScalarType::Undefined;
}

/// Checks a line and notes its columns.
/// Throws: c10::ValueError – `where` and what is wrong
void learn_json_record(std::string_view line, const std::function<std::string()>& where, JsonColumns& columns);

/// Fills the sample's fields and key from a line.
/// Throws: as learn_json_record
void read_json_record(std::string_view line, const std::function<std::string()>& where, const JsonColumns& columns,
                      Sample& sample);

}  // namespace bellows::data
