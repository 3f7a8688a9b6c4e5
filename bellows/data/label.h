#pragma once

#include "bellows/data/sample.h"

#include <string>
#include <variant>

namespace bellows::data {

/// Returns the field that holds a sample's label as text: `cls`, else `json`; null if there is neither.
const Field* find_label_text(const Sample& sample);

/// Returns the field that holds a sample's label: an array `label`, else the field from find_label_text(); null if
/// there is none.
const Field* find_label(const Sample& sample);

/// Parses the integer in a `.cls` text, or in a `.json` text: a number, or an object with a number under `key`.
/// Throws: c10::ValueError if the field holds anything else (the message quotes it)
int64_t parse_label(const Field& field, const std::string& key);

/// Like parse_label(), but also accepts the name of a class: a `.cls` text that is not an integer; a string in a
/// `.json` text, or under `key` in its object; any other text, such as the "label" column of a table.
/// Throws: c10::ValueError if the field is empty, null or another JSON value (the message quotes it)
std::variant<int64_t, std::string> parse_label_or_name(const Field& field, const std::string& key);

}  // namespace bellows::data
