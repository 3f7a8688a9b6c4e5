#include "bellows/tune/study_page.h"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cmath>

#include "bellows/core/stats.h"
#include "bellows/report/html.h"
#include "bellows/tune/importance.h"

namespace bellows::tune {

namespace {

constexpr std::string_view style = R"(
h1 { font-size: 1.6rem; margin: 0 0 8px; } .soft { color: var(--soft); }
section { background: var(--card); border: 1px solid var(--line); border-radius: 12px; padding: 18px; margin: 18px 0; }
.axis { stroke: var(--line); } .line { fill: none; stroke: #7a8794; stroke-opacity: 0.45; }
.good { stroke: #2a78d6; stroke-opacity: 0.8; } .best { fill: none; stroke: #d9480f; stroke-width: 2.5; }
.dot { fill: #2a78d6; } .violating { fill: #b08900; } .bar { fill: #2a78d6; }
td, th { text-align: left; padding: 4px 10px 4px 0; border-top: 1px solid var(--line); }
.key .best { background: #d9480f; } .key .dot { background: #2a78d6; } .key .violating { background: #b08900; }
)";

constexpr double chart_width = 1000, left = 70, right = 20, top = 30;

std::string shown_number(double value, const char* format = "%.4g") {
  return std::isfinite(value) ? format_number(format, value) : "–";
}

std::string at(double position) {
  return shown_number(position, "%.1f");
}

std::string svg(const std::string& title, double height, const std::string& content) {
  return "<div class=\"scroll\"><svg role=\"img\" aria-label=\"" + escape_html(title) + "\" viewBox=\"0 0 " +
         at(chart_width) + " " + at(height) + "\">\n" + content + "</svg></div>\n";
}

std::string words_at(double x, double y, const std::string& words, const char* anchor) {
  return "<text x=\"" + at(x) + "\" y=\"" + at(y) + "\" text-anchor=\"" + anchor + "\">" + escape_html(words) +
         "</text>\n";
}

std::string line_between(double x1, double y1, double x2, double y2) {
  return "<line class=\"axis\" x1=\"" + at(x1) + "\" y1=\"" + at(y1) + "\" x2=\"" + at(x2) + "\" y2=\"" + at(y2) +
         "\"/>\n";
}

std::string section(const std::string& title, const std::string& explanation, const std::string& content) {
  return "<section>\n<h2>" + title + "</h2>\n<p class=\"soft\">" + explanation + "</p>\n" + content + "</section>\n";
}

std::vector<const Trial*> complete_trials(const Study& study) {
  std::vector<const Trial*> result;
  result.reserve(study.trials().size());
  for (const Trial& trial : study.trials()) {
    if (trial.state == TrialState::complete) result.push_back(&trial);
  }
  return result;
}

/// A range of values that is mapped to an axis.
struct Scale {
  double low = 0, high = 1;
  double share(double value) const { return high > low ? (value - low) / (high - low) : 0.5; }
};

Scale objective_scale(const Study& study, const std::vector<const Trial*>& trials) {
  Scale scale{HUGE_VAL, -HUGE_VAL};
  for (const Trial* trial : trials) {
    scale.low = std::min(scale.low, study.options().metric_of(*trial));
    scale.high = std::max(scale.high, study.options().metric_of(*trial));
  }
  return scale;
}

std::string history_chart(const Study& study, const std::vector<const Trial*>& trials) {
  constexpr double height = 320, bottom = 30;
  const Scale scale = objective_scale(study, trials);
  const double last = std::max(1.0, static_cast<double>(study.trials().size()) - 1);
  const auto x = [&](const Trial& t) {
    return left + static_cast<double>(t.number) / last * (chart_width - left - right);
  };
  const auto y = [&](double value) { return height - bottom - scale.share(value) * (height - bottom - top); };
  std::string dots, path;
  double best = HUGE_VAL;
  for (const Trial* trial : trials) {
    const double value = study.options().metric_of(*trial);
    dots += "<circle class=\"" + std::string(trial->feasible() ? "dot" : "violating") + "\" cx=\"" + at(x(*trial)) +
            "\" cy=\"" + at(y(value)) + "\" r=\"4\"><title>trial " + std::to_string(trial->number) + ": " +
            shown_number(value) + "</title></circle>\n";
    if (!trial->feasible() || trial->objective >= best) continue;
    best = trial->objective;
    path += (path.empty() ? "M" : "H" + at(x(*trial)) + "V") + (path.empty() ? at(x(*trial)) + " " : "") + at(y(value));
  }
  if (!path.empty()) path += "H" + at(chart_width - right);
  return svg("History", height,
             line_between(left, top, left, height - bottom) +
                 line_between(left, height - bottom, chart_width - right, height - bottom) +
                 words_at(left - 8, y(scale.low) + 4, shown_number(scale.low), "end") +
                 words_at(left - 8, y(scale.high) + 4, shown_number(scale.high), "end") +
                 words_at(chart_width - right, height - 8, "trial", "end") + dots + "<path class=\"best\" d=\"" + path +
                 "\"/>\n");
}

/// The position of a parameter's value on its axis, from 0 to 1.
double axis_share(const Parameter& parameter, double value) {
  const Scale scale{parameter.inner_low(), parameter.inner_high()};
  return scale.share(parameter.log ? std::log(value) : value);
}

std::string coordinates_chart(const Study& study, const std::vector<const Trial*>& trials) {
  constexpr double height = 380, bottom = 40;
  const std::vector<Parameter>& parameters = study.options().space.parameters;
  const Scale scale = objective_scale(study, trials);
  const double between = (chart_width - 2 * left) / static_cast<double>(parameters.size());
  const auto x = [&](size_t axis) { return left + static_cast<double>(axis) * between; };
  const auto y = [&](double share) { return height - bottom - share * (height - bottom - top); };
  std::string axes, lines;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const Parameter& p = parameters[i];
    axes += line_between(x(i), top, x(i), height - bottom) + words_at(x(i), top - 12, p.name, "middle") +
            words_at(x(i), height - bottom + 18, p.text(p.low), "middle") +
            words_at(x(i), height - bottom + 32, p.text(p.high) + " (top)", "middle");
  }
  const double end = x(parameters.size());
  axes += line_between(end, top, end, height - bottom) + words_at(end, top - 12, study.options().objective, "middle") +
          words_at(end, height - bottom + 18, shown_number(scale.low), "middle") +
          words_at(end, height - bottom + 32, shown_number(scale.high) + " (top)", "middle");
  const Trial* best = best_trial(study.trials());
  for (const Trial* trial : trials) {
    std::string points;
    for (size_t i = 0; i < parameters.size(); ++i)
      points += at(x(i)) + "," + at(y(axis_share(parameters[i], trial->values[i]))) + " ";
    points += at(end) + "," + at(y(scale.share(study.options().metric_of(*trial))));
    lines += "<polyline class=\"" +
             std::string(trial == best       ? "best"
                         : trial->feasible() ? "line good"
                                             : "line") +
             "\" points=\"" + points + "\"><title>trial " + std::to_string(trial->number) + ": " +
             escape_html(study.options().space.text(trial->values)) + "</title></polyline>\n";
  }
  return svg("Parallel coordinates", height, axes + lines);
}

std::string importance_chart(const Study& study) {
  constexpr double row = 30, names = 220;
  const std::vector<double> shares = parameter_importance(study.options().space, study.trials());
  std::string rows;
  for (size_t i = 0; i < shares.size(); ++i) {
    const double y = static_cast<double>(i) * row;
    rows += words_at(names - 10, y + 19, study.options().space.parameters[i].name, "end") + "<rect class=\"bar\" x=\"" +
            at(names) + "\" y=\"" + at(y + 5) + "\" height=\"18\" width=\"" +
            at(shares[i] * (chart_width - names - 100)) + "\"/>\n" +
            words_at(names + shares[i] * (chart_width - names - 100) + 8, y + 19,
                     shown_number(100 * shares[i], "%.0f %%"), "start");
  }
  return svg("Importance", row * static_cast<double>(shares.size()), rows);
}

std::string trial_row(const Study& study, const Trial& trial) {
  std::string cells = "<td>" + std::to_string(trial.number) + "</td><td>" + state_name(trial.state) +
                      (trial.violation > 0 ? ", violates" : "") + "</td><td>" +
                      shown_number(study.options().metric_of(trial)) + "</td>";
  for (size_t i = 0; i < trial.values.size(); ++i)
    cells += "<td>" + escape_html(study.options().space.parameters[i].text(trial.values[i])) + "</td>";
  return "<tr>" + cells + "<td>" + shown_number(trial.seconds, "%.1f") + "</td><td>" + escape_html(trial.failure) +
         "</td></tr>\n";
}

std::string trials_table(const Study& study) {
  std::string head = "<th>trial</th><th>state</th><th>" + escape_html(study.options().objective) + "</th>", rows;
  for (const Parameter& parameter : study.options().space.parameters)
    head += "<th>" + escape_html(parameter.name) + "</th>";
  for (const Trial& trial : study.trials()) rows += trial_row(study, trial);
  return "<div class=\"scroll\"><table><thead><tr>" + head + "<th>seconds</th><th>failure</th></tr></thead><tbody>\n" +
         rows + "</tbody></table></div>\n";
}

std::string page_heading(const Study& study, const std::string& title) {
  const Trial* best = best_trial(study.trials());
  std::string constraints;
  for (const Constraint& constraint : study.options().constraints) constraints += ", " + constraint.text();
  const bool any = std::any_of(study.trials().begin(), study.trials().end(),
                               [](const Trial& trial) { return trial.state == TrialState::complete; });
  return "<h1>" +
         (best
              ? "Best " + escape_html(study.options().objective) + ": " + shown_number(study.options().metric_of(*best))
              : std::string(any ? "No trial satisfies the constraints" : "No trial is complete")) +
         "</h1>\n<p class=\"soft\">" + escape_html(title) + ", " + std::to_string(study.finished()) +
         " trials, sampler " + escape_html(study.options().sampler) + escape_html(constraints) + "</p>\n" +
         (best ? "<p>" + escape_html(study.options().space.text(best->values)) + "</p>\n" : "");
}

}  // namespace

std::string study_page(const Study& study, const std::string& title) {
  const std::vector<const Trial*> trials = complete_trials(study);
  std::string page = begin_page("bellows tune: " + title, style) + page_heading(study, title);
  if (!trials.empty()) {
    page +=
        section("History",
                "One dot per complete trial. The line is the best trial so far that satisfies the constraints.",
                "<div class=\"key\"><span><i class=\"dot\"></i>satisfies the constraints</span><span><i "
                "class=\"violating\"></i>violates a constraint</span><span><i class=\"best\"></i>best so "
                "far</span></div>\n" +
                    history_chart(study, trials)) +
        section("Parallel coordinates",
                "One line per complete trial. The thick line is the best trial, and gray lines violate a "
                "constraint.",
                coordinates_chart(study, trials)) +
        section("Importance", "The share of the variance of the objective's ranks that each parameter explains alone.",
                importance_chart(study));
  }
  return page + section("Trials", "All trials in the order in which they started.", trials_table(study)) +
         "</main>\n</body>\n</html>\n";
}

}  // namespace bellows::tune
