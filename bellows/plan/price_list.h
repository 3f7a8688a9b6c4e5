#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace bellows::train {

/// A machine with one device, and its price.
struct PricedMachine {
  std::string name;
  double price_per_hour = 0;
  double memory_bytes = 0;
  double memory_bytes_per_second = 0;
  /// Floating-point operations per second at most: fp32, bf16, fp16, as in the data sheet.
  std::map<std::string, double> flops{};

  bool operator==(const PricedMachine&) const = default;
};

struct PriceList {
  std::string currency;  ///< such as USD; may be empty
  std::vector<PricedMachine> machines;
};

/// Parses a list of prices in YAML:
///
///     currency: USD
///     machines:
///       - name: one H100 SXM
///         price_per_hour: 2.5
///         memory_bytes: 80e9
///         memory_bytes_per_second: 3.35e12
///         flops: {fp32: 67e12, bf16: 989.4e12, fp16: 989.4e12}
///
/// Params: where – name of the text in messages, such as a path
/// Throws: c10::ValueError if the text is not valid YAML, if it has no machine, if two machines have the same name, or if
///         a key is unknown, missing or out of range
PriceList parse_price_list(std::string_view text, const std::string& where);
/// Throws: c10::ValueError like parse_price_list(), or if the file cannot be read
PriceList read_price_list(const std::string& path);

}  // namespace bellows::train
