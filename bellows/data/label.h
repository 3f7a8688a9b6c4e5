#pragma once

#include "bellows/data/sample.h"

#include <string>
#include <variant>

namespace bellows::data {

/// The field that holds a sample's label as text: `cls`, else `json`. Null when there is none.
const Field* find_label_text(const Sample& sample);

/// The field that holds a sample's label: an array `label`, else as text. Null when there is none.
const Field* find_label(const Sample& sample);

/// The integer in a `.cls` text, or in a `.json` text: a number, or an object with a number under `key`.
/// Throws: c10::ValueError – anything else; quotes what was found
int64_t parse_label(const Field& field, const std::string& key);

/// The same, or a class's name: a `.cls` text that is no whole number; a string in a `.json` text, or under `key` in its object;
/// any other text, such as the column "label" of a table.
/// Throws: c10::ValueError – nothing, null, or another JSON value; quotes what was found
std::variant<int64_t, std::string> parse_label_or_name(const Field& field, const std::string& key);

}  // namespace bellows::data
