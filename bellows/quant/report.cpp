#include "bellows/quant/report.h"

#include <algorithm>
#include <cmath>
#include <iomanip>
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

std::string decibels(double value) {
  return std::isinf(value) ? "exact" : fixed(value);
}

}  // namespace

int64_t Report::quantized() const {
  return std::count_if(layers.begin(), layers.end(), [](const LayerReport& one) { return one.kept.empty(); });
}

std::string Report::to_text() const {
  size_t longest = 5;
  for (const LayerReport& layer : layers) longest = std::max(longest, layer.name.size());
  const auto width = static_cast<int>(longest + 2);
  std::ostringstream text;
  const auto column = [&](int size) { return std::setw(size); };
  text << std::left << column(width) << "layer" << column(13) << "kind" << std::right << column(10) << "before"
       << column(11) << "after" << column(12) << "weight dB" << column(12) << "result dB"
       << "\n";
  for (const LayerReport& layer : layers) {
    text << std::left << column(width) << layer.name << column(13) << name_of(layer.kind) << std::right << column(10)
         << size_text(layer.bytes_before);
    if (layer.kept.empty()) {
      text << column(11) << size_text(layer.bytes_after) << column(12) << decibels(layer.weight_sqnr) << column(12)
           << decibels(layer.result_sqnr) << "\n";
    } else {
      text << "  stays in floating point: " << layer.kept << "\n";
    }
  }
  text << quantized() << " of " << layers.size() << " layers quantized. All tensors: " << size_text(bytes_before)
       << " before, " << size_text(bytes_after) << " after ("
       << fixed(100.0 * static_cast<double>(bytes_after) / static_cast<double>(std::max<int64_t>(1, bytes_before)),
                " %")
       << ")\n";
  return text.str();
}

}  // namespace bellows::quant
