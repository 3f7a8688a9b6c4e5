#include <c10/util/StringUtil.h>

#include "bellows/advice/findings.h"
#include "bellows/core/stats.h"
#include "bellows/report/html.h"

namespace bellows::train {

namespace {

constexpr const char* findings_style = R"(
.finding { border-left: 4px solid var(--l1); padding-left: 12px; margin: 14px 0; }
.finding b { color: var(--ink); } .finding code { color: var(--ink); }
)";

std::string gain_text(double gain) {
  return gain > 0 ? format_number("%.2f× faster", gain) : "not estimated";
}

/// As YAML: "num_workers=-1" becomes "num_workers: -1".
std::string yaml_setting(const std::string& setting) {
  const size_t equals = setting.find('=');
  return setting.substr(0, equals) + ": " + setting.substr(equals + 1);
}

std::string finding_part(const Finding& finding) {
  std::string part = "<div class=\"finding\"><b>" + escape_html(finding.title) + "</b><p>" + escape_html(finding.text) +
                     "</p><p>Expected: " + gain_text(finding.gain) + ".";
  for (const std::string& setting : finding.settings)
    part += " <code>" + escape_html(yaml_setting(setting)) + "</code>";
  part += "</p>";
  for (const std::string& place : finding.places) part += "<p>" + escape_html(place) + "</p>";
  return part + "</div>\n";
}

}  // namespace

std::string profile_page(const RecipeProfile& profile, const std::vector<Finding>& findings) {
  const std::string title = "Profile of " + profile.recipe.model;
  std::string page = begin_page(title, inspect::StepProfile::html_style() + findings_style);
  page += c10::str("<h1>", escape_html(title), "</h1>\n<p class=\"verdict\">", escape_html(profile.step.verdict()),
                   "</p>\n<p>Batches of ", profile.batch_size, " samples, ", profile.step.steps, " timed steps, ",
                   escape_html(profile.machine.cpu), ", ", profile.machine.torch_threads, " threads.</p>\n");
  page += "<section><h2>What to change</h2>\n";
  if (findings.empty()) page += "<p>No rule applies.</p>\n";
  for (const Finding& finding : findings) page += finding_part(finding);
  page += "</section>\n";
  if (profile.ranks) page += ranks_sections(*profile.ranks);
  return page + profile.step.html_sections() + "</main></body></html>\n";
}

}  // namespace bellows::train
