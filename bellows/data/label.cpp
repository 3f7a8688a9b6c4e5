#include "bellows/data/label.h"

#include <c10/util/Exception.h>

#include <charconv>
#include <nlohmann/json.hpp>

#include "bellows/io/bytes.h"

namespace bellows::data {

const Field* find_label_text(const Sample& sample) {
  const Field* text = sample.find("cls");
  return text ? text : sample.find("json");
}

const Field* find_label(const Sample& sample) {
  const Field* array = sample.find("label");
  return array && array->is_array ? array : find_label_text(sample);
}

int64_t parse_label(const Field& field, const std::string& key) {
  std::string_view text = io::as_text(field.bytes);
  int64_t label = 0;
  if (field.name == "cls") {
    const size_t begin = std::min(text.find_first_not_of(" \t\r\n"), text.size());
    const size_t end = text.find_last_not_of(" \t\r\n") + 1;
    const std::string_view digits = begin < end ? text.substr(begin, end - begin) : std::string_view();
    const auto [rest, error] = std::from_chars(digits.data(), digits.data() + digits.size(), label);
    TORCH_CHECK_VALUE(!digits.empty() && error == std::errc() && rest == digits.data() + digits.size(),
                      "expected an integer label, found ", io::printable(text), ".");
    return label;
  }
  const auto document = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  const auto* value = document.is_object() && document.contains(key) ? &document[key] : &document;
  // A number above 2^63 - 1 would come out negative.
  const bool fits = value->is_number_integer() && !(value->is_number_unsigned() && value->get<uint64_t>() >> 63);
  TORCH_CHECK_VALUE(fits, "expected an integer, or an object with an integer \"", key, "\", found ",
                    io::printable(text), ".");
  return value->get<int64_t>();
}

}  // namespace bellows::data
