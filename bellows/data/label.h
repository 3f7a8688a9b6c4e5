#pragma once

#include "bellows/data/sample.h"

#include <string>
#include <variant>

namespace bellows::data {

/// Returns the field that holds a sample's label as text. This is `cls` if it exists, otherwise `json`. Returns null if
/// the sample has neither of these fields.
const Field* find_label_text(const Sample& sample);

/// Returns the field that holds a sample's label. This is `label` if it exists and is an array, otherwise the result of
/// find_label_text().
const Field* find_label(const Sample& sample);

/// Parses the integer in a `.cls` text or in a `.json` text. The JSON must be an integer, or an object that has an
/// integer at `key`.
/// Throws: c10::ValueError if the field does not hold such an integer (the message quotes the field)
int64_t parse_label(const Field& field, const std::string& key);

/// Like parse_label(), but also accepts the name of a class. These texts are names:
/// - a `.cls` text that is not an integer
/// - a string in a `.json` text, or at `key` in its object
/// - any other text that is not empty, such as a cell of a table's "label" column
///
/// Throws: c10::ValueError if the field is empty, or if its JSON is null or of another kind than listed above (the
///         message quotes the field)
std::variant<int64_t, std::string> parse_label_or_name(const Field& field, const std::string& key);

}  // namespace bellows::data
