#include "bellows/quant/report.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <iomanip>
#include <map>
#include <sstream>

namespace bellows::quant {

namespace {

std::string fixed(double number, const char* unit = "") {
  std::ostringstream text;
  text << std::fixed << std::setprecision(1) << number << unit;
  return text.str();
}

std::string size_text(int64_t bytes) {
  const auto number = static_cast<double>(bytes);
  return bytes < 100'000 ? fixed(number / 1e3, " kB") : fixed(number / 1e6, " MB");
}

std::string level_text(double value) {
  return std::isinf(value) ? "exact" : fixed(value);
}

}  // namespace

int64_t Report::quantized() const {
  return std::count_if(layers.begin(), layers.end(), [](const LayerReport& one) { return one.kept.empty(); });
}

std::string Report::to_text() const {
  size_t longest = 5;
  for (const LayerReport& layer : layers) longest = std::max(longest, layer.name.size());
  const auto width = static_cast<int>(longest + 1);
  std::ostringstream text;
  const auto row = [&](const std::string& name, const std::array<std::string, 4>& cells) {
    text << std::left << std::setw(width) << name << std::right;
    for (const std::string& cell : cells) text << std::setw(9) << cell;
    text << "\n";
  };
  row("layer", {"before", "after", "weight", "result"});
  std::map<std::string, int> reasons;
  for (const LayerReport& layer : layers) {
    const bool quantized = layer.kept.empty();
    row(layer.name, {size_text(layer.bytes_before), quantized ? size_text(layer.bytes_after) : "float",
                     quantized ? level_text(layer.weight_sqnr) : "", quantized ? level_text(layer.result_sqnr) : ""});
    if (!quantized) ++reasons[layer.kept];
  }
  text << "weight, result: signal-to-noise ratio in dB\n";
  for (const auto& [reason, count] : reasons)
    text << "float: " << reason << " (" << count << (count == 1 ? " layer)\n" : " layers)\n");
  const double share = static_cast<double>(bytes_after) / static_cast<double>(std::max<int64_t>(1, bytes_before));
  text << quantized() << " of " << layers.size() << " layers quantized\nall tensors: " << size_text(bytes_before)
       << " before, " << size_text(bytes_after) << " after (" << fixed(100 * share, " %") << ")\n";
  return text.str();
}

}  // namespace bellows::quant
