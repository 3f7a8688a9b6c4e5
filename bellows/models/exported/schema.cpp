#include "bellows/models/exported/schema.h"

#include <array>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "bellows/io/tables/json_impl.h"

namespace bellows::models::exported {

namespace {

template <class Value, size_t count>
Value value_of(const char* what, const Json& number, const std::array<std::pair<int, Value>, count>& table) {
  for (const auto& [code, value] : table) {
    if (number == code) return value;
  }
  TORCH_CHECK_VALUE(false, "unknown ", what, " ", io::shown_json(number), ".");
}

}  // namespace

c10::ScalarType dtype_of(const Json& number) {
  using Row = std::pair<int, c10::ScalarType>;
  static constexpr std::array table{Row{1, c10::kByte},
                                    Row{2, c10::kChar},
                                    Row{3, c10::kShort},
                                    Row{4, c10::kInt},
                                    Row{5, c10::kLong},
                                    Row{6, c10::kHalf},
                                    Row{7, c10::kFloat},
                                    Row{8, c10::kDouble},
                                    Row{9, c10::kComplexHalf},
                                    Row{10, c10::kComplexFloat},
                                    Row{11, c10::kComplexDouble},
                                    Row{12, c10::kBool},
                                    Row{13, c10::kBFloat16},
                                    Row{28, c10::kUInt16},
                                    Row{29, c10::kFloat8_e4m3fn},
                                    Row{30, c10::kFloat8_e5m2},
                                    Row{31, c10::kFloat8_e4m3fnuz},
                                    Row{32, c10::kFloat8_e5m2fnuz}};
  return value_of("dtype", number, table);
}

c10::Layout layout_of(const Json& number) {
  using Row = std::pair<int, c10::Layout>;
  static constexpr std::array table{Row{1, c10::kSparse},    Row{2, c10::kSparseCsr}, Row{3, c10::kSparseCsc},
                                    Row{4, c10::kSparseBsr}, Row{5, c10::kSparseBsc}, Row{6, c10::kMkldnn},
                                    Row{7, c10::kStrided}};
  return value_of("layout", number, table);
}

c10::MemoryFormat memory_format_of(const Json& number) {
  using Format = c10::MemoryFormat;
  using Row = std::pair<int, Format>;
  static constexpr std::array table{Row{1, Format::Contiguous}, Row{2, Format::ChannelsLast},
                                    Row{3, Format::ChannelsLast3d}, Row{4, Format::Preserve}};
  return value_of("memory format", number, table);
}

c10::Device device_of(const Json& device) {
  const std::string& type = device.at("type").get_ref<const std::string&>();
  const Json& index = device.contains("index") ? device.at("index") : Json();
  constexpr int64_t most_devices = 127;
  TORCH_CHECK_VALUE(index.is_null() || (index.is_number_integer() && index >= 0 && index <= most_devices),
                    "invalid device index ", io::shown_json(index), ".");
  for (const c10::DeviceType known : {c10::kCPU, c10::kCUDA, c10::kMeta, c10::kMPS, c10::kXPU, c10::kHPU}) {
    if (type == c10::DeviceTypeName(known, /*lower_case=*/true))
      return {known, index.is_null() ? c10::DeviceIndex{-1} : index.get<c10::DeviceIndex>()};
  }
  TORCH_CHECK_VALUE(false, "unknown device ", io::printable(type), ".");
}

int64_t integer_of(const Json& value) {
  const bool fits = value.is_number_integer() && (!value.is_number_unsigned() || value <= INT64_MAX);
  TORCH_CHECK_VALUE(fits, "expected an integer of 64 bits, found ", io::shown_json(value), ".");
  return value.get<int64_t>();
}

double float_of(const Json& value) {
  if (!value.is_string()) return value.get<double>();
  if (value == "Infinity") return std::numeric_limits<double>::infinity();
  if (value == "-Infinity") return -std::numeric_limits<double>::infinity();
  TORCH_CHECK_VALUE(value == "NaN", "expected a number, found ", io::shown_json(value), ".");
  return std::numeric_limits<double>::quiet_NaN();
}

std::string plain_text(std::string_view text, size_t limit) {
  const std::string quoted = io::printable(text, limit);
  return quoted.size() >= 2 && quoted.front() == '"' && quoted.back() == '"' ? quoted.substr(1, quoted.size() - 2)
                                                                             : quoted;
}

std::string source_line(const Json& node) {
  if (!node.contains("metadata") || !node.at("metadata").contains("stack_trace")) return "";
  const Json& trace = node.at("metadata").at("stack_trace");
  if (!trace.is_string()) return "";
  const std::string& text = trace.get_ref<const std::string&>();
  const size_t start = text.rfind("File \""), end = text.find('\n', start == std::string::npos ? 0 : start);
  if (start == std::string::npos) return "";
  std::string line = text.substr(start + 6, end == std::string::npos ? end : end - start - 6);
  const size_t quote = line.find("\", line ");
  if (quote != std::string::npos) line.replace(quote, 8, ":");
  const size_t slash = line.rfind('/', quote);
  return plain_text(slash == std::string::npos ? line : line.substr(slash + 1), 200);
}

Alternative alternative_of(const Json& object) {
  TORCH_CHECK_VALUE(object.is_object() && object.size() == 1, "expected an object with one entry, found ",
                    io::shown_json(object), ".");
  return {object.begin().key(), object.begin().value()};
}

}  // namespace bellows::models::exported
