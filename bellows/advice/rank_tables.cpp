#include <c10/util/StringUtil.h>

#include <nlohmann/json.hpp>

#include "bellows/advice/rank_profile.h"
#include "bellows/core/stats.h"
#include "bellows/inspect/op_info.h"
#include "bellows/report/html.h"
#include "bellows/report/json_text.h"

namespace bellows::train {

namespace {

using inspect::StepPhase;
using inspect::TimedStep;

std::string shown(const std::string& phase) {
  return phase.empty() ? "(other)" : phase;
}

std::string cell(const std::string& text) {
  return "<td>" + escape_html(text) + "</td>";
}

std::string milliseconds_cell(double seconds) {
  return "<td class=\"number\">" + format_number("%.3f", 1e3 * seconds) + "</td>";
}

/// One row per rank, with its own time in each phase of rank 0.
std::string rank_rows(const RanksProfile& profile) {
  std::string rows = "<tr><th>rank</th><th>host</th><th class=\"number\">step ms</th>";
  for (const StepPhase& phase : profile.ranks.front().phases)
    rows += "<th class=\"number\">" + escape_html(shown(phase.name)) + "</th>";
  rows += "<th class=\"number\">waiting</th></tr>\n";
  for (size_t i = 0; i < profile.ranks.size(); ++i) {
    const RankProfile& rank = profile.ranks[i];
    rows += "<tr>" + cell(std::to_string(i)) + cell(rank.host) + milliseconds_cell(rank.step_s());
    for (const StepPhase& phase : profile.ranks.front().phases) rows += milliseconds_cell(rank.own_s(phase.name));
    rows += milliseconds_cell(rank.wait_s()) + "</tr>\n";
  }
  return rows;
}

std::string exchange_rows(const RanksProfile& profile) {
  std::string rows;
  for (const RankExchange& exchange : profile.exchanges)
    rows += "<tr>" + cell(exchange.name) + cell(format_number("%.1f", exchange.calls)) +
            cell(format_bytes(exchange.bytes)) + milliseconds_cell(exchange.seconds) +
            cell(format_bytes(exchange.bytes_per_second()) + "/s") + "</tr>\n";
  return rows;
}

nlohmann::ordered_json rank_object(const RankProfile& rank) {
  auto phases = nlohmann::ordered_json::array(), steps = nlohmann::ordered_json::array();
  for (const StepPhase& phase : rank.phases)
    phases.push_back({{"name", phase.name}, {"seconds", phase.seconds}, {"wait_s", phase.wait_s}});
  for (const TimedStep& step : rank.steps) {
    nlohmann::ordered_json record = {{"seconds", step.seconds}, {"wait_s", step.wait_s()}};
    for (const StepPhase& phase : step.phases) record["phases"][shown(phase.name)] = phase.seconds;
    steps.push_back(std::move(record));
  }
  return {{"host", rank.host},       {"step_s", rank.step_s()},     {"own_s", rank.own_s()},
          {"wait_s", rank.wait_s()}, {"phases", std::move(phases)}, {"steps", std::move(steps)}};
}

}  // namespace

std::string ranks_text(const RanksProfile& profile) {
  std::string text =
      format_number("\n%-6s %-24s %10s %10s %10s %8s\n", "rank", "host", "step ms", "own ms", "wait ms", "wait");
  for (size_t i = 0; i < profile.ranks.size(); ++i) {
    const RankProfile& rank = profile.ranks[i];
    text += format_number("%-6zu %-24s %10.3f %10.3f %10.3f %6.0f %%\n", i, inspect::shortened(rank.host, 24).c_str(),
                          1e3 * rank.step_s(), 1e3 * rank.own_s(), 1e3 * rank.wait_s(),
                          100 * rank.wait_s() / rank.step_s());
  }
  if (profile.exchanges.empty()) return text;
  text += format_number("\n%-31s %9s %12s %9s %11s\n", "collectives per step", "calls", "bytes", "ms", "MB/s");
  for (const RankExchange& exchange : profile.exchanges)
    text +=
        format_number("%-31s %9.1f %12s %9.3f %11.1f\n", exchange.name.c_str(), exchange.calls,
                      format_bytes(exchange.bytes).c_str(), 1e3 * exchange.seconds, exchange.bytes_per_second() / 1e6);
  return text;
}

std::string ranks_json(const RanksProfile& profile) {
  auto ranks = nlohmann::ordered_json::array(), exchanges = nlohmann::ordered_json::array();
  for (const RankProfile& rank : profile.ranks) ranks.push_back(rank_object(rank));
  for (const RankExchange& exchange : profile.exchanges)
    exchanges.push_back({{"name", exchange.name},
                         {"calls", exchange.calls},
                         {"bytes", exchange.bytes},
                         {"seconds", exchange.seconds},
                         {"bytes_per_second", exchange.bytes_per_second()}});
  return json_text(nlohmann::ordered_json{{"exposed_s", profile.exposed_s()},
                                          {"slowest_rank", profile.slowest()},
                                          {"lost_s", profile.lost_s()},
                                          {"ranks", std::move(ranks)},
                                          {"collectives", std::move(exchanges)}},
                   2);
}

std::string ranks_sections(const RanksProfile& profile) {
  std::string text =
      "<section><h2>Ranks</h2><p>Mean milliseconds per step. The times of phases do not include waiting for other "
      "ranks.</p><div class=\"scroll\"><table>" +
      rank_rows(profile) + "</table></div></section>\n";
  if (profile.exchanges.empty()) return text;
  return text +
         "<section><h2>Collectives</h2><p>Per step, of the rank with the most bytes. The time of a call begins when "
         "the "
         "last rank calls it.</p><div class=\"scroll\"><table><tr><th>collective</th><th>calls</th><th>bytes</th>"
         "<th class=\"number\">ms</th><th>bandwidth</th></tr>\n" +
         exchange_rows(profile) + "</table></div></section>\n";
}

}  // namespace bellows::train
