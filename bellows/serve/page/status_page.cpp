#include "bellows/serve/page/status_page.h"

#include <map>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "bellows/core/error.h"
#include "bellows/core/version.h"
#include "bellows/report/json_text.h"
#include "bellows/system/random_token.h"

namespace bellows::serve {

extern const std::string_view status_page_html;  // the build creates it from status_page.html

namespace {

using nlohmann::ordered_json;

ordered_json load_json(const StatisticsValues& values) {
  uint64_t failures = 0;
  for (const uint64_t count : values.failures) failures += count;
  ordered_json latency = ordered_json::array();
  for (size_t i = 0; i < LatencyCounts::buckets; ++i) {
    if (values.latency.counts[i] == 0) continue;
    const double low = i == 0 ? 0 : LatencyCounts::bound_us(i - 1);
    latency.push_back({LatencyCounts::bound_us(i), values.latency.counts[i], low});
  }
  return {{"success", values.success.count}, {"failures", failures},
          {"pending", values.pending},       {"inferences", values.inferences},
          {"executions", values.executions}, {"latency", std::move(latency)}};
}

}  // namespace

HttpResponse status_page() {
  constexpr std::string_view place = "{{nonce}}";
  const std::string nonce = random_token();  // the browser runs only scripts and styles that have it
  std::string page(status_page_html);
  for (size_t at = 0; (at = page.find(place, at)) != std::string::npos; at += nonce.size())
    page.replace(at, place.size(), nonce);
  HttpResponse response{.content_type = "text/html; charset=utf-8", .body = std::move(page)};
  response.headers = {
      {"Content-Security-Policy", "default-src 'none'; script-src 'nonce-" + nonce + "'; style-src 'nonce-" + nonce +
                                      "'; connect-src 'self'; img-src data:; base-uri 'none'; "
                                      "form-action 'none'; frame-ancestors 'none'"},
      {"Cache-Control", "no-store"},
      {"Referrer-Policy", "no-referrer"},
      {"X-Content-Type-Options", "nosniff"}};
  return response;
}

std::string status_json(const Repository& repository, const ServerStatus& server) {
  std::map<std::pair<std::string, std::string>, StatisticsValues> values;
  for (const auto& [key, statistics] : repository.statistics()) values.emplace(key, statistics->values());
  ordered_json models = ordered_json::array();
  for (const IndexEntry& entry : repository.index()) {
    const auto found = values.find({entry.name, entry.version});
    models.push_back({{"name", entry.name},
                      {"version", entry.version},
                      {"state", entry.state},
                      {"reason", entry.reason},
                      {"load", load_json(found == values.end() ? StatisticsValues{} : found->second)}});
  }
  return json_text(ordered_json{{"server",
                                 {{"version", BELLOWS_VERSION},
                                  {"ready", server.ready},
                                  {"uptime_s", server.uptime_s},
                                  {"connections", server.connections}}},
                                {"models", std::move(models)}});
}

}  // namespace bellows::serve
