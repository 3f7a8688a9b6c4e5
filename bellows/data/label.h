#pragma once

#include "bellows/data/sample.h"

#include <string>
#include <variant>

namespace bellows::data {

/// Returns the field that holds a sample's label as text: `cls`, otherwise `json`. Returns null if the sample has
/// neither.
const Field* find_label_text(const Sample& sample);

/// Returns the field that holds a sample's label: an array `label`, otherwise the result of find_label_text().
const Field* find_label(const Sample& sample);

/// Parses the integer in a `.cls` text or in a `.json` text. The JSON is a number, or an object that has a number at
/// `key`.
/// Throws: c10::ValueError if the field does not hold such an integer (the message quotes the field)
int64_t parse_label(const Field& field, const std::string& key);

/// Like parse_label(), but also accepts the name of a class. These texts are names:
/// - a `.cls` text that is not an integer
/// - a string in a `.json` text, or at `key` in its object
/// - any other text that is not empty, such as a cell of a table's "label" column
///
/// Throws: c10::ValueError if the field is empty, null or any other kind of JSON value (the message quotes the field)
std::variant<int64_t, std::string> parse_label_or_name(const Field& field, const std::string& key);

}  // namespace bellows::data
