#include "bellows/parallel/pipeline/timeline_page.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>
#include <c10/util/irange.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

#include "bellows/core/stats.h"
#include "bellows/report/html.h"
#include "bellows/system/file.h"

namespace bellows::parallel {

namespace {

constexpr double chart_left = 60, chart_right = 1070, row_height = 30, row_step = 36;
/// Actions of later stages are lower by this, because an outline would hide narrow actions.
constexpr double later_stage_inset = 9;

constexpr const char* pipeline_style = R"(
:root { --w0: #3b5f86; --w1: #2c7555; --w2: #7a5ba6; --w3: #a1530f; --on: #ffffff; }
@media (prefers-color-scheme: dark) { :root { --w0: #7fa8d6; --w1: #6cc3a0; --w2: #b79fe0; --w3: #f0a35e;
  --on: #15171a; } }
h1 { font-size: 1.7rem; margin: 0 0 4px; }
p, figcaption { margin: 0 0 12px; color: var(--soft); max-width: 76ch; }
figure, section { background: var(--card); border: 1px solid var(--line); border-radius: 12px; padding: 16px;
  margin: 18px 0 0; }
.scroll svg { min-width: 720px; }
svg .axis { fill: var(--soft); } svg .number { fill: var(--on); font-size: 11px; text-anchor: middle; }
svg .row { fill: var(--line); opacity: 0.4; }
.w0 { fill: var(--w0); background: var(--w0); } .w1 { fill: var(--w1); background: var(--w1); }
.w2 { fill: var(--w2); background: var(--w2); } .w3 { fill: var(--w3); background: var(--w3); }
.key .later { background: var(--soft); clip-path: inset(45% 0 0); } .key .row { background: var(--line); }
.scroll:focus-visible { outline: 2px solid var(--w0); outline-offset: 4px; }
th, td { text-align: right; padding: 5px 12px 5px 0; border-bottom: 1px solid var(--line); white-space: nowrap; }
td:first-child, th:first-child { text-align: left; }
thead th { white-space: normal; }
)";

std::string percent(double share) {
  return format_number("%.1f %%", 100 * share);
}

/// Returns whether the rank has another stage that comes earlier in the model.
bool is_later_stage(const PipelineSchedule& schedule, int stage) {
  const auto end = schedule.stage_ranks.begin() + stage;
  return std::find(schedule.stage_ranks.begin(), end, schedule.stage_ranks[static_cast<size_t>(stage)]) != end;
}

std::string action_mark(const PipelineSchedule& schedule, const TimedAction& timed, double first_s, double scale,
                        double y) {
  const auto& [work, stage, micro_batch] = timed.action;
  const double start_s = timed.start_s - first_s;
  const double x = chart_left + scale * start_s, room = scale * timed.duration_s;
  const double wide = std::max(room - std::min(1.0, room / 8), 0.5);
  const bool later = is_later_stage(schedule, stage);
  const double inset = later ? later_stage_inset : 0;
  const std::string number = std::to_string(micro_batch);
  const bool fits = wide > 4 + 7 * static_cast<double>(number.size());
  const std::string label = c10::str("<text class=\"number\" x=\"", format_number("%.1f", x + wide / 2), "\" y=\"",
                                     y + (row_height + inset) / 2 + 4, "\">", number, "</text>");
  return c10::str("<g><title>", to_string(work), " of micro-batch ", number, " in stage ", stage, ": ",
                  format_seconds(timed.duration_s), " from ", format_seconds(start_s), "</title><rect class=\"w",
                  static_cast<int>(work), later ? " later" : "", "\" x=\"", format_number("%.2f", x), "\" y=\"",
                  y + inset, "\" width=\"", format_number("%.2f", wide), "\" height=\"", row_height - inset, "\"/>",
                  fits ? label : "", "</g>\n");
}

std::string timeline_chart(const PipelineSchedule& schedule, const PipelineTimeline& timeline,
                           const std::string& title) {
  const double length = timeline.length_s(), scale = length > 0 ? (chart_right - chart_left) / length : 0;
  const double first = timeline.start_s();
  std::string marks;
  for (const auto rank : c10::irange(timeline.ranks.size())) {
    const double y = 1 + row_step * static_cast<double>(rank);
    marks += c10::str("<text class=\"axis\" x=\"0\" y=\"", y + row_height / 2 + 4, "\">rank ", rank,
                      "</text><rect class=\"row\" x=\"", chart_left, "\" y=\"", y, "\" width=\"",
                      chart_right - chart_left, "\" height=\"", row_height, "\"/>\n");
    for (const TimedAction& timed : timeline.ranks[rank]) marks += action_mark(schedule, timed, first, scale, y);
  }
  const double bottom = row_step * static_cast<double>(timeline.ranks.size()) + 12;
  return c10::str("<svg viewBox=\"0 0 ", chart_right, " ", bottom + 6, "\" role=\"img\" aria-label=\"", title,
                  " schedule, ", format_seconds(length), ", bubble share ", percent(timeline.bubble_share()),
                  ". The table below has the numbers.\">\n", marks, "<text class=\"axis\" x=\"", chart_left, "\" y=\"",
                  bottom, "\">0</text><text class=\"axis\" text-anchor=\"end\" x=\"", chart_right, "\" y=\"", bottom,
                  "\">", format_seconds(length), "</text>\n</svg>\n");
}

std::string timeline_key(const PipelineSchedule& schedule) {
  std::array<bool, 4> used{};
  bool later = false;
  for (const auto& actions : schedule.ranks) {
    for (const PipelineAction& action : actions) {
      used[static_cast<size_t>(action.work)] = true;
      later = later || is_later_stage(schedule, action.stage);
    }
  }
  std::string key = "<div class=\"key\">";
  for (const auto work : c10::irange(used.size())) {
    if (used[work])
      key += c10::str("<span><i class=\"w", work, "\"></i>", to_string(static_cast<PipelineWork>(work)), "</span>");
  }
  if (later) key += "<span><i class=\"later\"></i>a later stage of the same rank</span>";
  return key + "<span><i class=\"row\"></i>waiting</span></div>\n";
}

std::string timeline_figure(const PipelineSchedule& schedule, const PipelineTimeline& timeline,
                            const std::string& title) {
  return c10::str("<figure>\n<h2>", title, ": bubble share ", percent(timeline.bubble_share()),
                  "</h2>\n<figcaption>The step takes ", format_seconds(timeline.length_s()),
                  ". Numbers are micro-batches. Point at an action to see its stage and times.</figcaption>\n",
                  timeline_key(schedule), "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"", title,
                  " schedule\">\n", timeline_chart(schedule, timeline, title), "</div>\n</figure>\n");
}

std::string busy_cells(const PipelineTimeline& timeline, size_t rank) {
  const double busy = timeline.busy_s(rank), length = timeline.length_s();
  return c10::str("<td>", format_seconds(busy), "</td><td>", percent(length > 0 ? 1 - busy / length : 0), "</td>");
}

std::string ranks_table(const PipelineSchedule& schedule, const PipelineTimeline& planned,
                        const PipelineTimeline& measured) {
  const bool both = !measured.ranks.empty();
  const std::vector<int> activations = activations_in_flight(schedule);
  std::string rows;
  for (const auto rank : c10::irange(schedule.ranks.size())) {
    std::vector<int> stages;
    for (const auto stage : c10::irange(schedule.stages())) {
      if (schedule.stage_ranks[static_cast<size_t>(stage)] == static_cast<int>(rank)) stages.push_back(stage);
    }
    rows += c10::str("<tr><td>rank ", rank, "</td><td>", c10::Join(", ", stages), "</td><td>", activations[rank],
                     "</td>", busy_cells(planned, rank), both ? busy_cells(measured, rank) : "", "</tr>\n");
  }
  return c10::str(
      "<section>\n<h2>Ranks</h2>\n<p>A rank keeps the activations of a micro-batch in a stage from forward "
      "to the end of backward. The column shows the largest number at the same time.</p>\n"
      "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"Ranks\">\n<table>\n<thead><tr>"
      "<th>rank</th><th>stages</th><th>activations</th><th>planned work</th><th>planned bubble</th>",
      both ? "<th>measured work</th><th>measured bubble</th>" : "", "</tr></thead>\n<tbody>\n", rows,
      "</tbody>\n</table>\n</div>\n</section>\n");
}

void check_ranks(const PipelineSchedule& schedule, const PipelineTimeline& timeline, const char* name) {
  TORCH_CHECK_VALUE(timeline.ranks.size() == schedule.ranks.size(), "pipeline_page: the ", name, " timeline has ",
                    timeline.ranks.size(), " ranks, but schedule ", schedule.name, " has ", schedule.ranks.size(),
                    ". Pass timelines of this schedule.");
}

}  // namespace

std::string pipeline_page(const PipelineSchedule& schedule, const PipelineTimeline& planned,
                          const PipelineTimeline& measured) {
  const bool both = !measured.ranks.empty();
  check_ranks(schedule, planned, "planned");
  if (both) check_ranks(schedule, measured, "measured");
  return c10::str(begin_page("Pipeline schedule " + schedule.name, pipeline_style), "<h1>", escape_html(schedule.name),
                  ": ", percent(planned.bubble_share()), " bubble planned",
                  both ? ", " + percent(measured.bubble_share()) + " measured" : "", "</h1>\n<p>", schedule.stages(),
                  " stages on ", schedule.ranks.size(), " ranks, ", schedule.micro_batches,
                  " micro-batches. The bubble is the time in which ranks run no action.</p>\n",
                  timeline_figure(schedule, planned, "Planned"),
                  both ? timeline_figure(schedule, measured, "Measured") : "", ranks_table(schedule, planned, measured),
                  "</main>\n</body>\n</html>\n");
}

void write_pipeline_page(const PipelineSchedule& schedule, const PipelineTimeline& planned,
                         const PipelineTimeline& measured, const std::string& path) {
  write_text_file(path, pipeline_page(schedule, planned, measured));
}

}  // namespace bellows::parallel
