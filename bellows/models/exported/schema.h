#pragma once

#include <ATen/core/Tensor.h>

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace bellows::models::exported {

using Json = nlohmann::json;

// Values in the JSON of an exported program. The schema numbers dtypes, layouts and memory formats differently from
// libtorch. All functions throw c10::ValueError if a value is unknown.

c10::ScalarType dtype_of(const Json& number);
c10::Layout layout_of(const Json& number);
c10::MemoryFormat memory_format_of(const Json& number);
c10::Device device_of(const Json& device);
int64_t integer_of(const Json& value);
/// JSON has no infinities and NaN. The exporter writes them as text.
double float_of(const Json& value);

/// Formats untrusted text for a message, without quotes.
std::string plain_text(std::string_view text, size_t limit = 100);

/// The line of the exported Python code that created a node, such as `net.py:12, in forward`; "" if it is unknown.
std::string source_line(const Json& node);

/// The entry of an object with a single entry, as the schema writes alternatives.
struct Alternative {
  const std::string& kind;
  const Json& value;
};
Alternative alternative_of(const Json& object);

}  // namespace bellows::models::exported
