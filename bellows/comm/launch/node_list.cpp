#include "bellows/comm/launch/node_list.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <charconv>

namespace bellows::comm {

namespace {

constexpr size_t most_names = 100000, most_digits = 18;

/// Splits a list at the commas outside brackets.
std::vector<std::string_view> split_outside_brackets(std::string_view list) {
  std::vector<std::string_view> parts;
  int depth = 0;
  size_t start = 0;
  for (size_t i = 0; i <= list.size(); ++i) {
    const char letter = i < list.size() ? list[i] : ',';
    depth += letter == '[' ? 1 : letter == ']' ? -1 : 0;
    TORCH_CHECK_VALUE(depth == 0 || depth == 1, "node list \"", list, "\": the bracket at offset ", i,
                      " has no counterpart.");
    if (letter != ',' || (depth == 1 && i < list.size())) continue;
    TORCH_CHECK_VALUE(depth == 0, "node list \"", list, "\": a bracket is not closed.");
    parts.push_back(list.substr(start, i - start));
    start = i + 1;
  }
  return parts;
}

int64_t bound(std::string_view digits, std::string_view list) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  const bool whole = error == std::errc() && end == digits.data() + digits.size() && number >= 0;
  TORCH_CHECK_VALUE(whole && digits.size() <= most_digits, "node list \"", list, "\": expected a number of at most ",
                    most_digits, " digits, or a range such as 01-12, in brackets, got \"", digits, "\".");
  return number;
}

/// Expands one range in a bracket: "01-03" or "7". Keeps the leading zeros of the first bound.
void append_range(std::string_view range, std::string_view list, std::vector<std::string>& numbers) {
  const size_t dash = range.find('-');
  const std::string_view first = range.substr(0, dash), last = dash == range.npos ? first : range.substr(dash + 1);
  const int64_t from = bound(first, list), to = bound(last, list);
  TORCH_CHECK_VALUE(from <= to, "node list \"", list, "\": the range ", range, " runs backwards.");
  const size_t count = static_cast<size_t>(to - from) + 1 + numbers.size();
  TORCH_CHECK_VALUE(count <= most_names, "node list \"", list, "\": with the range ", range, " the list has more than ",
                    most_names, " nodes.");
  for (int64_t i = from; i <= to; ++i) {
    std::string digits = std::to_string(i);
    digits.insert(0, first.size() > digits.size() ? first.size() - digits.size() : 0, '0');
    numbers.push_back(std::move(digits));
  }
}

std::vector<std::string> expand_name(std::string_view name, std::string_view list) {
  const size_t open = name.find('['), close = name.find(']');
  if (open == name.npos) return {std::string(name)};
  std::vector<std::string> numbers, names;
  for (const std::string_view range : split_outside_brackets(name.substr(open + 1, close - open - 1))) {
    append_range(range, list, numbers);
  }
  const std::vector<std::string> tails = expand_name(name.substr(close + 1), list);
  TORCH_CHECK_VALUE(numbers.size() * tails.size() <= most_names, "node list \"", list, "\": more than ", most_names,
                    " nodes.");
  names.reserve(numbers.size() * tails.size());
  for (const std::string& number : numbers) {
    for (const std::string& tail : tails) names.push_back(std::string(name.substr(0, open)) + number + tail);
  }
  return names;
}

}  // namespace

std::vector<std::string> expand_node_list(std::string_view list) {
  std::vector<std::string> names;
  for (const std::string_view part : split_outside_brackets(list)) {
    TORCH_CHECK_VALUE(!part.empty(), "node list \"", list, "\": a name is empty.");
    for (std::string& name : expand_name(part, list)) names.push_back(std::move(name));
    TORCH_CHECK_VALUE(names.size() <= most_names, "node list \"", list, "\": more than ", most_names, " nodes.");
  }
  return names;
}

}  // namespace bellows::comm
