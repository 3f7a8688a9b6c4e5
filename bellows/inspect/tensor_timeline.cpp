#include "bellows/inspect/tensor_timeline.h"

#include <c10/util/StringUtil.h>
#include <c10/util/irange.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "bellows/core/stats.h"
#include "bellows/report/html.h"
#include "bellows/report/json_text.h"

namespace bellows::inspect {

namespace {

constexpr double chart_width = 1000, chart_height = 300, bar_height = 12;
constexpr size_t columns = 500, bars = 60;

constexpr const char* timeline_style = R"(
:root { --k0: #3b5f86; --k1: #7d9cbd; --k2: #b8410c; --k3: #2f7d5b; --k4: #d9a21b; --k5: #9fb8d1; --k6: #a88bc4;
  --k7: #5d6b78; --k8: #c98fa3; --k9: #b5b0a8; }
@media (prefers-color-scheme: dark) { :root { --k0: #6f9bcb; --k2: #ff8a4c; --k3: #5cc09a; --k6: #a988cc;
  --k7: #8b98a5; } }
h1 { font-size: 1.7rem; margin: 0 0 4px; }
p { margin: 0 0 12px; color: var(--soft); max-width: 76ch; }
section { background: var(--card); border: 1px solid var(--line); border-radius: 12px; padding: 16px; margin-top: 18px; }
svg { font-size: 11px; } svg .soft { fill: var(--soft); } svg line { stroke: var(--line); }
svg .peak { stroke: var(--ink); stroke-dasharray: 4 3; }
.scroll svg { min-width: 720px; }
th, td { text-align: left; padding: 5px 12px 5px 0; border-bottom: 1px solid var(--line); white-space: nowrap; }
td:first-child, th:first-child { text-align: right; }
)";

std::string size_text(int64_t bytes) {
  return format_bytes(static_cast<double>(bytes));
}

std::string digits(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f", value);
  return text;
}

std::string colour(TensorKind kind) {
  return c10::str("var(--k", static_cast<int>(kind), ")");
}

double at_event(const TensorTimeline& timeline, int64_t event) {
  return chart_width * static_cast<double>(event + 1) / static_cast<double>(timeline.events + 1);
}

/// Describes a tensor: kind, creator and lifetime.
std::string words(const TensorTimeline& timeline, const TensorLife& tensor) {
  return c10::str(size_text(tensor.bytes), " ", to_string(tensor.kind), tensor.name.empty() ? "" : ": ", tensor.name,
                  tensor.op.empty() ? "" : ", by ", tensor.op, tensor.node.empty() ? "" : " in ", tensor.node,
                  tensor.module.empty() ? "" : ", module ", tensor.module,
                  tensor.born < 0 ? ", allocated before the step" : c10::str(", from event ", tensor.born),
                  tensor.died == timeline.events ? ", not freed" : c10::str(" to ", tensor.died));
}

std::vector<const TensorLife*> largest_of(const TensorTimeline& timeline, size_t count, bool made_in_step) {
  std::vector<const TensorLife*> result;
  for (const TensorLife& tensor : timeline.tensors) {
    if (!made_in_step || tensor.born >= 0) result.push_back(&tensor);
  }
  std::stable_sort(result.begin(), result.end(), [](const auto* a, const auto* b) { return a->bytes > b->bytes; });
  if (result.size() > count) result.resize(count);
  std::stable_sort(result.begin(), result.end(), [](const auto* a, const auto* b) { return a->born < b->born; });
  return result;
}

/// Bytes by kind after each event.
std::array<std::vector<int64_t>, tensor_kinds> kinds_over_time(const TensorTimeline& timeline) {
  std::array<std::vector<int64_t>, tensor_kinds> result;
  for (auto& bytes : result) bytes.resize(timeline.events + 1);
  for (const TensorLife& tensor : timeline.tensors) {
    auto& bytes = result[static_cast<size_t>(tensor.kind)];
    bytes[tensor.born + 1] += tensor.bytes;
    if (tensor.died < timeline.events) bytes[tensor.died + 1] -= tensor.bytes;
  }
  for (auto& bytes : result) {
    for (const auto i : c10::irange(timeline.events)) bytes[i + 1] += bytes[i];
  }
  return result;
}

/// Divides the step into stretches and returns the moment with the most bytes of each, so that no peak is lost in the
/// chart.
std::vector<int64_t> shown_moments(const std::vector<int64_t>& bytes) {
  const size_t count = std::min(columns, bytes.size());
  std::vector<int64_t> result;
  result.reserve(count);
  for (const auto i : c10::irange(count)) {
    const auto first = bytes.begin() + static_cast<int64_t>(i * bytes.size() / count);
    const auto last = bytes.begin() + static_cast<int64_t>((i + 1) * bytes.size() / count);
    result.push_back(std::max_element(first, last) - bytes.begin());
  }
  return result;
}

std::string phase_marks(const TensorTimeline& timeline, double height) {
  std::string result, phase;
  for (const TensorLife& tensor : timeline.tensors) {
    if (tensor.born < 0 || tensor.phase == phase || tensor.phase.empty()) continue;
    phase = tensor.phase;
    const std::string x = digits(at_event(timeline, tensor.born));
    result += c10::str("<line x1=\"", x, "\" x2=\"", x, "\" y1=\"0\" y2=\"", height, "\"/><text class=\"soft\" x=\"",
                       digits(at_event(timeline, tensor.born) + 3), "\" y=\"10\">", escape_html(phase), "</text>");
  }
  return result;
}

std::string area_chart(const TensorTimeline& timeline) {
  const auto by_kind = kinds_over_time(timeline);
  const TensorTimeline::Moment peak = timeline.peak();
  const std::vector<int64_t> moments = shown_moments(timeline.bytes_over_time());
  const double scale = (chart_height - 20) / static_cast<double>(std::max<int64_t>(peak.bytes, 1));
  std::vector<double> below(moments.size(), 0);
  std::string areas;
  for (const auto kind : c10::irange(tensor_kinds)) {
    std::string over, under;
    for (const auto i : c10::irange(moments.size())) {
      const double x = at_event(timeline, moments[i] - 1);
      under = c10::str(digits(x), ",", digits(chart_height - below[i]), " ") + under;
      below[i] += scale * static_cast<double>(by_kind[kind][moments[i]]);
      over += c10::str(digits(x), ",", digits(chart_height - below[i]), " ");
    }
    const auto of_kind = static_cast<TensorKind>(kind);
    areas += c10::str("<polygon fill=\"", colour(of_kind), "\" points=\"", over, under, "\"><title>",
                      to_string(of_kind), "</title></polygon>");
  }
  const std::string x = digits(at_event(timeline, peak.event));
  return c10::str("<svg viewBox=\"0 0 ", chart_width, " ", chart_height, "\" role=\"img\">", areas,
                  phase_marks(timeline, chart_height), "<line class=\"peak\" x1=\"", x, "\" x2=\"", x,
                  "\" y1=\"14\" y2=\"", chart_height, "\"/></svg>");
}

std::string life_chart(const TensorTimeline& timeline) {
  const std::vector<const TensorLife*> shown = largest_of(timeline, bars, true);
  const double height = 16 + (bar_height + 3) * static_cast<double>(shown.size());
  std::string rows = phase_marks(timeline, height);
  for (const auto i : c10::irange(shown.size())) {
    const TensorLife& tensor = *shown[i];
    const double y = 16 + (bar_height + 3) * static_cast<double>(i), x = at_event(timeline, tensor.born);
    const double wide = std::max(1.5, at_event(timeline, tensor.died) - x);
    const bool label_left = x > 0.6 * chart_width;
    rows += c10::str("<g><title>", escape_html(words(timeline, tensor)), "</title><rect x=\"", digits(x), "\" y=\"", y,
                     "\" width=\"", digits(wide), "\" height=\"", bar_height, "\" rx=\"2\" fill=\"",
                     colour(tensor.kind), "\"/><text x=\"", digits(label_left ? x - 4 : x + 4), "\" y=\"", y + 10, "\"",
                     label_left ? " text-anchor=\"end\"" : "", ">", size_text(tensor.bytes), " ",
                     escape_html(tensor.name.empty() ? tensor.op : tensor.name), " ", escape_html(tensor.module),
                     "</text></g>");
  }
  return c10::str("<svg viewBox=\"0 0 ", chart_width, " ", height, "\" role=\"img\">", rows, "</svg>");
}

std::string key_of(const TensorTimeline& timeline, const TensorTimeline::Moment& peak) {
  std::array<bool, tensor_kinds> there{};
  for (const TensorLife& tensor : timeline.tensors) there[static_cast<size_t>(tensor.kind)] = true;
  std::string result = "<div class=\"key\">";
  for (const auto i : c10::irange(tensor_kinds)) {
    const auto kind = static_cast<TensorKind>(i);
    if (there[i]) {
      result += c10::str("<span><i style=\"background:", colour(kind), "\"></i>", to_string(kind), " ",
                         size_text(peak.of(kind)), "</span>");
    }
  }
  return result + "</div>";
}

std::string peak_table(const TensorTimeline& timeline, const TensorTimeline::Moment& peak) {
  std::vector<const TensorLife*> there;
  for (const TensorLife& tensor : timeline.tensors) {
    if (tensor.alive_after(peak.event)) there.push_back(&tensor);
  }
  std::stable_sort(there.begin(), there.end(), [](const auto* a, const auto* b) { return a->bytes > b->bytes; });
  if (there.size() > 40) there.resize(40);
  std::string rows;
  for (const TensorLife* tensor : there) {
    rows += c10::str("<tr><td>", size_text(tensor->bytes), "</td><td>", to_string(tensor->kind), "</td><td>",
                     escape_html(tensor->name.empty() ? tensor->op : tensor->name), "</td><td>",
                     escape_html(tensor->module), "</td></tr>\n");
  }
  return "<div class=\"scroll\"><table><thead><tr><th>size</th><th>kind</th><th>name or "
         "operator</th><th>module</th></tr></thead><tbody>\n" +
         rows + "</tbody></table></div>";
}

}  // namespace

std::string_view to_string(TensorKind kind) {
  constexpr std::array<std::string_view, tensor_kinds> names = {
      "weights",       "master weights", "gradients", "optimizer state", "activations",
      "weight copies", "temporaries",    "buffers",   "inputs",          "other"};
  return names[static_cast<size_t>(kind)];
}

std::vector<int64_t> TensorTimeline::bytes_over_time() const {
  std::vector<int64_t> bytes(events + 1);
  for (const TensorLife& tensor : tensors) {
    bytes[tensor.born + 1] += tensor.bytes;
    if (tensor.died < events) bytes[tensor.died + 1] -= tensor.bytes;
  }
  for (const auto i : c10::irange(events)) bytes[i + 1] += bytes[i];
  return bytes;
}

TensorTimeline::Moment TensorTimeline::peak() const {
  const std::vector<int64_t> bytes = bytes_over_time();
  const auto highest = std::max_element(bytes.begin(), bytes.end());
  Moment result{.event = highest - bytes.begin() - 1, .bytes = *highest};
  for (const TensorLife& tensor : tensors) {
    if (tensor.alive_after(result.event)) result.by_kind[static_cast<size_t>(tensor.kind)] += tensor.bytes;
  }
  return result;
}

std::string TensorTimeline::to_string(size_t largest) const {
  const Moment moment = peak();
  std::string text = "peak " + format_bytes(static_cast<double>(moment.bytes)) + "\n";
  for (const auto kind : c10::irange(tensor_kinds)) {
    if (moment.by_kind[kind] == 0) continue;
    text += c10::str("  ", inspect::to_string(static_cast<TensorKind>(kind)), " ",
                     format_bytes(static_cast<double>(moment.by_kind[kind])), "\n");
  }
  std::vector<const TensorLife*> there;
  for (const TensorLife& tensor : tensors) {
    if (tensor.alive_after(moment.event)) there.push_back(&tensor);
  }
  std::stable_sort(there.begin(), there.end(), [](const auto* a, const auto* b) { return a->bytes > b->bytes; });
  if (there.size() > largest) there.resize(largest);
  for (const TensorLife* tensor : there) {
    text += c10::str("  ", format_bytes(static_cast<double>(tensor->bytes)), " ", inspect::to_string(tensor->kind),
                     ": ", tensor->name.empty() ? tensor->op : tensor->name, tensor->module.empty() ? "" : " in ",
                     tensor->module, "\n");
  }
  return text;
}

std::string TensorTimeline::html_sections() const {
  const Moment moment = peak();
  return c10::str(
      "<section><h2>Memory by kind</h2><p>The horizontal axis shows the allocations and frees in the order ",
      "of the step.</p>", key_of(*this, moment), area_chart(*this),
      "</section>\n<section><h2>Lifetime of each tensor</h2><p>The largest tensors that the step "
      "allocates, in the order of allocation.</p><div class=\"scroll\">",
      life_chart(*this),
      "</div></section>\n<section><h2>The peak</h2><p>The largest tensors at the peak, which the dashed "
      "line above marks.</p>",
      peak_table(*this, moment), "</section>\n");
}

std::string TensorTimeline::html_style() {
  return timeline_style;
}

std::string TensorTimeline::to_html(const std::string& title) const {
  const Moment moment = peak();
  return c10::str(begin_page(title, timeline_style), "<h1>", escape_html(title), "</h1>\n<p>Peak ",
                  size_text(moment.bytes), " after event ", moment.event, " of ", events, ".</p>\n", html_sections(),
                  "</main></body></html>\n");
}

void TensorTimeline::draw(TraceWriter& writer, size_t largest) const {
  const auto by_kind = kinds_over_time(*this);
  std::vector<double> times(events + 1, begin_us);
  for (const TensorLife& tensor : tensors) {
    if (tensor.born >= 0) times[tensor.born + 1] = tensor.born_us;
    if (tensor.died < events) times[tensor.died + 1] = tensor.died_us;
  }
  for (const auto kind : c10::irange(tensor_kinds)) {
    const std::string name = c10::str(inspect::to_string(static_cast<TensorKind>(kind)), " [MiB]");
    for (const auto i : c10::irange(times.size())) {
      if (i > 0 && by_kind[kind][i] == by_kind[kind][i - 1]) continue;
      writer.counter(name, times[i], static_cast<double>(by_kind[kind][i]) / (1 << 20));
    }
  }
  constexpr uint64_t first_row = 1'000'000;  // above the numbers of threads
  std::vector<double> free_from;
  for (const TensorLife* tensor : largest_of(*this, largest, true)) {
    const auto row = std::find_if(free_from.begin(), free_from.end(), [&](double t) { return t <= tensor->born_us; });
    const size_t index = row - free_from.begin();
    if (row == free_from.end()) {
      free_from.push_back(0);
      writer.name_thread(first_row + index, c10::str("tensors ", index + 1));
    }
    free_from[index] = tensor->died_us;
    const nlohmann::json args = {{"bytes", tensor->bytes},
                                 {"kind", inspect::to_string(tensor->kind)},
                                 {"module", tensor->module},
                                 {"node", tensor->node}};
    writer.add({size_text(tensor->bytes) + " " + (tensor->name.empty() ? tensor->op : tensor->name), "memory",
                tensor->born_us, tensor->died_us - tensor->born_us, first_row + index, json_text(args)});
  }
}

}  // namespace bellows::inspect
