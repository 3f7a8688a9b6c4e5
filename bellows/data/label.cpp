#include "bellows/data/label.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>

#include "bellows/io/bytes.h"

namespace bellows::data {

namespace {

/// A class's number, its name, or neither.
using FoundLabel = std::variant<std::monostate, int64_t, std::string>;

FoundLabel found_in_json(std::string_view text, const std::string& key) {
  const auto document = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  const auto* value = document.is_object() && document.contains(key) ? &document[key] : &document;
  if (value->is_string() && !value->get_ref<const std::string&>().empty()) return value->get<std::string>();
  // A number above 2^63 - 1 would become negative.
  const bool fits = value->is_number_integer() && !(value->is_number_unsigned() && value->get<uint64_t>() >> 63);
  return fits ? FoundLabel(value->get<int64_t>()) : FoundLabel();
}

FoundLabel found_in(const Field& field, const std::string& key) {
  const std::string_view text = io::as_text(field.bytes);
  if (field.name == "json" || field.dtype == c10::ScalarType::Undefined) return found_in_json(text, key);
  const size_t begin = std::min(text.find_first_not_of(" \t\r\n"), text.size());
  const size_t end = text.find_last_not_of(" \t\r\n") + 1;
  if (begin >= end) return {};
  if (field.name != "cls") return std::string(text);
  const std::string_view word = text.substr(begin, end - begin);
  int64_t number = 0;
  const auto [rest, error] = std::from_chars(word.data(), word.data() + word.size(), number);
  if (rest != word.data() + word.size()) return std::string(word);
  return error == std::errc() ? FoundLabel(number) : FoundLabel();  // a number that is too large is not a name, either
}

}  // namespace

const Field* find_label_text(const Sample& sample) {
  const Field* text = sample.find("cls");
  return text ? text : sample.find("json");
}

const Field* find_label(const Sample& sample) {
  const Field* array = sample.find("label");
  return array && array->is_array ? array : find_label_text(sample);
}

int64_t parse_label(const Field& field, const std::string& key) {
  const FoundLabel found = found_in(field, key);
  const auto* const number = std::get_if<int64_t>(&found);
  TORCH_CHECK_VALUE(
      number, "expected ",
      field.name == "cls" ? "an integer label" : "an integer, or an object with an integer \"" + key + "\"", ", found ",
      io::printable(io::as_text(field.bytes)), ".");
  return *number;
}

std::variant<int64_t, std::string> parse_label_or_name(const Field& field, const std::string& key) {
  FoundLabel found = found_in(field, key);
  if (const auto* const number = std::get_if<int64_t>(&found)) return *number;
  TORCH_CHECK_VALUE(!std::holds_alternative<std::monostate>(found),
                    "expected the number or the name of a class, found ", io::printable(io::as_text(field.bytes)),
                    ". Add a label, or leave out the sample.");
  return std::get<std::string>(std::move(found));
}

}  // namespace bellows::data
