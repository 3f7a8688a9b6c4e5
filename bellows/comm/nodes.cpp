#include <charconv>
#include <nlohmann/json.hpp>
#include <thread>
#include <tuple>

#include "bellows/comm/listen_impl.h"
#include "bellows/comm/nodes_impl.h"
#include "bellows/comm/rendezvous_impl.h"
#include "bellows/core/error.h"

namespace bellows::comm {

namespace {

using namespace std::chrono_literals;

constexpr double meet_timeout_s = 300;
constexpr auto beat_period = 1s, lost_after = 30s;

/// "HOST:PORT", also "[::1]:PORT".
std::pair<std::string, int> split_address(const std::string& text) {
  const size_t colon = text.rfind(':');
  int port = -1;
  if (colon != text.npos) {
    const auto [end, error] = std::from_chars(text.data() + colon + 1, text.data() + text.size(), port);
    if (error != std::errc() || end != text.data() + text.size()) port = -1;
  }
  TORCH_CHECK_VALUE(colon != 0 && port >= 0 && port <= 65535, "launch: expected --rdzv HOST:PORT, got \"", text, "\".");
  std::string host = text.substr(0, colon);
  if (host.starts_with("[") && host.ends_with("]")) host = host.substr(1, host.size() - 2);
  return {host, port};
}

std::string to_json(const Failure& failure) {
  return nlohmann::json{{"rank", failure.rank},
                        {"exit_code", failure.exit_code},
                        {"how", failure.how},
                        {"lines", failure.last_lines},
                        {"asked_for", failure.asked_for}}
      .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

Failure failure_of(const std::string& text) {
  const auto json = nlohmann::json::parse(text);
  return {json["rank"], json["exit_code"], json["how"], json["lines"], json["asked_for"]};
}

std::string round_key(int round, const char* what) {
  return "round/" + std::to_string(round) + "/" + what;
}

}  // namespace

Nodes::Nodes(const LaunchOptions& options, const std::string& token)
    : nodes_(options.nodes), node_rank_(options.node_rank) {
  int port = 0;
  if (!options.rendezvous.empty()) std::tie(host_, port) = split_address(options.rendezvous);
  store_ = node_rank_ == 0 ? Store::serve(host_, port) : Store::join(host_, port, meet_timeout_s);
  const std::string who = "node " + std::to_string(node_rank_);
  job_ = enter_job(*store_, token, who).under("launch/");
  beats_.resize(static_cast<size_t>(nodes_), {"", Clock::now()});
  meet(options.ranks);
}

void Nodes::meet(int ranks) {
  job_->set("node/" + std::to_string(node_rank_), std::to_string(ranks));
  const auto end = Clock::now() + std::chrono::duration<double>(meet_timeout_s);
  for (int node = 0; node < nodes_; ++node) {
    const auto there =
        job_->wait_for("node/" + std::to_string(node), std::chrono::duration<double>(end - Clock::now()).count());
    TORCH_CHECK(there, "launch: waited ", meet_timeout_s, " s for ", nodes_, " nodes; node ", node, " did not come to ",
                host_, ":", port(), ".");
    if (node < node_rank_) first_rank_ += std::stoi(*there);
    world_size_ += std::stoi(*there);
  }
}

Failure Nodes::report(int round, const Failure& failure) {
  return failure_of(job_->set_first(round_key(round, "failed"), to_json(failure)));
}

std::optional<Failure> Nodes::heard(int round) {
  if (nodes_ == 1) return std::nullopt;
  if (Clock::now() - last_beat_ > beat_period) {
    last_beat_ = Clock::now();
    job_->set("alive/" + std::to_string(node_rank_), std::to_string(++beat_));
    if (const auto lost = node_rank_ == 0 ? lost_node() : std::nullopt) return report(round, *lost);
  }
  const auto failed = job_->find(round_key(round, "failed"));
  return failed ? std::optional(failure_of(*failed)) : std::nullopt;
}

std::optional<Failure> Nodes::lost_node() {
  for (int node = 1; node < nodes_; ++node) {
    auto& [beat, since] = beats_[static_cast<size_t>(node)];
    const std::string now = job_->find("alive/" + std::to_string(node)).value_or("");
    if (now != beat) {
      beat = now;
      since = Clock::now();
    } else if (Clock::now() - since > lost_after && !job_->find("bye/" + std::to_string(node))) {
      return Failure{.how = "Node " + std::to_string(node) + " has given no sign of life for 30 s", .asked_for = true};
    }
  }
  return std::nullopt;
}

void Nodes::ended(int round) {
  if (nodes_ > 1) job_->set(round_key(round, "ended/") + std::to_string(node_rank_), "1");
}

bool Nodes::all_have(const std::string& key) const {
  for (int node = 0; node < nodes_; ++node) {
    if (node != node_rank_ && !job_->find(key + std::to_string(node))) return false;
  }
  return true;
}

bool Nodes::all_ended(int round) {
  return all_have(round_key(round, "ended/"));
}

void Nodes::leave() {
  if (nodes_ == 1) return;
  try {
    job_->set("bye/" + std::to_string(node_rank_), "1");
    if (node_rank_ > 0) return;
    for (const auto end = Clock::now() + 10s; !all_have("bye/") && Clock::now() < end;)
      std::this_thread::sleep_for(50ms);
  } catch (const c10::Error&) {
    // Node 0 is gone, and so is the store: nobody is left to tell.
  }
}

}  // namespace bellows::comm
