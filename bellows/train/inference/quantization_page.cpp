#include <algorithm>
#include <cmath>
#include <iomanip>
#include <sstream>

#include "bellows/core/stats.h"
#include "bellows/report/html.h"
#include "bellows/train/inference/quantization.h"

namespace bellows::train {

namespace {

constexpr double longest_bar_db = 60;

constexpr const char* style = R"(
.bar { background: #4477aa; height: 0.9em; border-radius: 2px; min-width: 1px; }
.low { background: #cc6677; }
td.chart { width: 50%; padding-left: 1em; }
th { text-align: left; }
td.number, th.number { text-align: right; white-space: nowrap; }
)";

std::string fixed(double number, int digits, const char* unit) {
  if (!std::isfinite(number)) return "-";
  std::ostringstream text;
  text << std::fixed << std::setprecision(digits) << number << unit;
  return text.str();
}

std::string cells(const std::string& name, const std::string& before, const std::string& after) {
  return "<tr><td>" + name + "</td><td class=\"number\">" + before + "</td><td class=\"number\">" + after +
         "</td></tr>\n";
}

std::string comparison(const QuantizationResult& result) {
  const ModelEvaluation &before = result.before, &after = result.after;
  std::string text = "<table><tr><th></th><th class=\"number\">original</th><th class=\"number\">quantized</th></tr>\n";
  text += cells("accuracy", fixed(100 * before.evaluation.accuracy, 2, " %"),
                fixed(100 * after.evaluation.accuracy, 2, " %"));
  text += cells("loss", fixed(before.evaluation.loss, 4, ""), fixed(after.evaluation.loss, 4, ""));
  text += cells("latency, median", fixed(1e3 * before.latency_median_s, 2, " ms"),
                fixed(1e3 * after.latency_median_s, 2, " ms"));
  text += cells("weights", format_bytes(static_cast<double>(before.weight_bytes)),
                format_bytes(static_cast<double>(after.weight_bytes)));
  return text + "</table>\n";
}

std::string row_of(const quant::LayerReport& layer, double median) {
  std::string text = "<tr><td>" + escape_html(layer.name) + "</td><td>" + quant::name_of(layer.kind) + "</td>";
  if (!layer.kept.empty())
    return text + "<td colspan=\"3\">floating point: " + escape_html(layer.kept) + "</td></tr>\n";
  const double level = std::isfinite(layer.result_sqnr) ? layer.result_sqnr : longest_bar_db;
  const double share = std::clamp(level / longest_bar_db, 0.0, 1.0);
  const bool low = level < median - 6;
  return text + "<td class=\"number\">" + format_bytes(static_cast<double>(layer.bytes_after)) +
         "</td><td class=\"number\">" + fixed(layer.result_sqnr, 1, " dB") +
         "</td><td class=\"chart\"><div class=\"bar" + (low ? " low" : "") +
         "\" style=\"width: " + fixed(100 * share, 1, "%") + "\"></div></td></tr>\n";
}

double median_of(const quant::Report& report) {
  std::vector<double> levels;
  for (const quant::LayerReport& layer : report.layers) {
    if (layer.kept.empty() && std::isfinite(layer.result_sqnr)) levels.push_back(layer.result_sqnr);
  }
  return levels.empty() ? 0 : median(levels);
}

}  // namespace

std::string quantization_page(const TrainedModel& trained, const QuantizationResult& result) {
  const quant::Report& report = result.quantized.report;
  std::string page = begin_page("Quantization of " + trained.job.recipe.model, style);
  page += "<h1>Quantization of " + escape_html(trained.job.recipe.model) + "</h1>\n" + comparison(result);
  if (result.trained_ranges) page += "<p>The ranges of activations are those of quantization-aware training.</p>\n";
  page +=
      "<h2>Sensitivity of the layers</h2>\n<p>Signal-to-noise ratio of each layer's result if only this layer is "
      "quantized. A longer bar is better. 6 dB correspond to one bit. Red: at least 6 dB below the median.</p>\n";
  page +=
      "<div class=\"scroll\"><table><tr><th>layer</th><th>kind</th><th class=\"number\">size</th>"
      "<th class=\"number\">ratio</th><th></th></tr>\n";
  const double median = median_of(report);
  for (const quant::LayerReport& layer : report.layers) page += row_of(layer, median);
  return page + "</table></div>\n</main>\n</body>\n</html>\n";
}

}  // namespace bellows::train
