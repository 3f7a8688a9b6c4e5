#include "cli/option_values.h"

#include <charconv>

#include "cli/options.h"

namespace bellows::cli {

std::vector<std::string> split_at(const std::string& text, char separator) {
  std::vector<std::string> parts;
  for (size_t from = 0;;) {
    const size_t at = text.find(separator, from);
    parts.push_back(text.substr(from, at - from));
    if (at == std::string::npos) return parts;
    from = at + 1;
  }
}

std::vector<std::string> split_list(const std::string& text) {
  std::vector<std::string> parts = split_at(text, ',');
  std::erase(parts, "");
  return parts;
}

std::pair<std::string, std::string> named_value(const std::string& text, const std::string& option,
                                                const std::string& expected) {
  const size_t at = text.rfind('=');
  if (at == std::string::npos || at == 0 || at + 1 == text.size())
    throw UsageError(option + ": expected " + expected + ", got \"" + text + "\".");
  return {text.substr(0, at), text.substr(at + 1)};
}

int64_t integer_value(const std::string& text, int64_t low, const std::string& option) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < low) {
    const std::string expected = low == 0 ? "a whole number" : "an integer of at least " + std::to_string(low);
    throw UsageError(option + ": expected " + expected + ", got \"" + text + "\".");
  }
  return value;
}

}  // namespace bellows::cli
