#include "bellows/quant/report.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <iomanip>
#include <map>
#include <sstream>

#include "bellows/core/stats.h"

namespace bellows::quant {

namespace {

std::string fixed(double number, const char* unit = "") {
  std::ostringstream text;
  text << std::fixed << std::setprecision(1) << number << unit;
  return text.str();
}

std::string size_text(int64_t bytes) {
  return format_bytes(static_cast<double>(bytes));
}

std::string level_text(double value) {
  return std::isinf(value) ? "exact" : fixed(value);
}

}  // namespace

std::string AttentionReport::name() const {
  size_t same = 0;
  while (same < std::min({query.size(), key.size(), value.size()}) && query[same] == key[same] &&
         key[same] == value[same])
    ++same;
  const size_t end = query == key && key == value ? std::string::npos : query.rfind('.', same);
  return end == std::string::npos || end == 0 ? query : query.substr(0, end);
}

int64_t Report::quantized() const {
  return std::count_if(layers.begin(), layers.end(), [](const LayerReport& one) { return one.kept.empty(); });
}

std::string Report::to_text() const {
  size_t longest = 5;
  for (const AttentionReport& one : attentions) longest = std::max(longest, one.name().size());
  for (const LayerReport& layer : layers) longest = std::max(longest, layer.name.size());
  const auto width = static_cast<int>(longest);
  std::ostringstream text;
  const auto row = [&](const std::string& name, const std::array<std::string, 4>& cells) {
    text << std::left << std::setw(width) << name << std::right;
    for (size_t i = 0; i < cells.size(); ++i) text << std::setw(i < 2 ? 11 : 7) << cells[i];
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
  for (const AttentionReport& one : attentions) {
    const bool quantized = one.kept.empty();
    row(one.name(), {"attention", quantized ? "int8" : "float", "", quantized ? level_text(one.result_sqnr) : ""});
  }
  text << "weight, result: signal-to-noise ratio in dB\n";
  for (const auto& [reason, count] : reasons)
    text << "float: " << reason << " (" << count << (count == 1 ? " layer)\n" : " layers)\n");
  const double share = static_cast<double>(bytes_after) / static_cast<double>(std::max<int64_t>(1, bytes_before));
  text << quantized() << " of " << layers.size() << " layers quantized\n";
  const auto floating =
      std::count_if(attentions.begin(), attentions.end(), [](const auto& one) { return !one.kept.empty(); });
  if (!attentions.empty()) {
    text << attentions.size() - static_cast<size_t>(floating) << " of " << attentions.size()
         << " attentions quantized\n";
  }
  text << "all tensors: " << size_text(bytes_before) << " before, " << size_text(bytes_after) << " after ("
       << fixed(100 * share, " %") << ")\n";
  return text.str();
}

}  // namespace bellows::quant
