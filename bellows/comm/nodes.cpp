#include "bellows/comm/nodes_impl.h"

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <thread>
#include <tuple>

#include "bellows/comm/listen_impl.h"
#include "bellows/comm/rendezvous_impl.h"
#include "bellows/comm/token.h"
#include "bellows/core/error.h"
#include "bellows/core/log.h"

namespace bellows::comm {

namespace {

using namespace std::chrono_literals;

constexpr double meet_timeout_s = 300, reconnect_timeout_s = 10, leave_timeout_s = 5, lost_s = 2;
constexpr auto beat_period = 500ms, meet_period = 20ms;

Failure store_gone() {
  return {.how = "Node 0, which serves the store, is gone", .is_last = true};
}

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
  return {.rank = json["rank"],
          .exit_code = json["exit_code"],
          .how = json["how"],
          .last_lines = json["lines"],
          .asked_for = json["asked_for"]};
}

std::string node_name(int node) {
  return "node " + std::to_string(node);
}

std::string alive_key(int node) {
  return "alive/" + std::to_string(node);
}

std::string seconds_text(double seconds) {
  return c10::str(seconds, " s");
}

/// Node 0 decides.
/// Throws: c10::ValueError – on another node: it was told another number
void check_same_nodes(const Store& job, int node, int nodes) {
  if (node == 0) {
    job.set("nodes", std::to_string(nodes));
    return;
  }
  const auto expected = job.wait_for("nodes", meet_timeout_s);
  TORCH_CHECK_VALUE(expected == std::to_string(nodes), "launch: ", node_name(node), " was started with --nnodes ",
                    nodes, ", node 0 with ", expected.value_or("none"), ". Give all nodes the same number.");
}

}  // namespace

Nodes::Nodes(const LaunchOptions& options, const std::string& token, const Interrupted& interrupted)
    : nodes_(options.nodes),
      node_rank_(options.node_rank),
      min_nodes_(options.min_nodes > 0 ? options.min_nodes : options.nodes),
      node_timeout_s_(options.node_timeout_s),
      id_(make_token()) {
  int port = 0;
  if (!options.rendezvous.empty()) std::tie(host_, port) = split_address(options.rendezvous);
  if (node_rank_ > 0 && !wait_for_node_zero(port, interrupted)) return;
  store_ = node_rank_ == 0 ? Store::serve(host_, port) : Store::join(host_, port, meet_timeout_s);
  const std::string who = node_name(node_rank_);
  const Store job = enter_job(*store_, token, who).under("launch/");
  check_same_nodes(job, node_rank_, nodes_);
  if (nodes_ == 1) return;
  view_.emplace([=, host = host_, first = node_rank_ == 0] {
    if (first) return job.another();
    return enter_job(Store::join(host, port, reconnect_timeout_s), token, who).under("launch/");
  });
}

/// False: over().
bool Nodes::wait_for_node_zero(int port, const Interrupted& interrupted) {
  const auto since = Clock::now();
  while (!wait_for_listener(host_, port, 0)) {
    if ((over_ = interrupted())) return false;
    TORCH_CHECK(age_s(since) < meet_timeout_s, "launch: nobody listened at ", host_, ":", port, " for ", meet_timeout_s,
                " s, expected node 0 there. Start it, or check --rdzv.");
  }
  return true;
}

std::string Nodes::key(const std::string& what) const {
  return std::to_string(round_) + "/" + what;
}

double Nodes::age_s(Clock::time_point since) const {
  return std::chrono::duration<double>(Clock::now() - since).count();
}

void Nodes::give_sign_of_life() {
  if (Clock::now() - last_beat_ < beat_period) return;
  last_beat_ = Clock::now();
  view_->set(alive_key(node_rank_), id_ + " " + std::to_string(++beat_));
}

bool Nodes::has_to_stop(const Interrupted& interrupted) {
  give_sign_of_life();
  if (!over_) over_ = interrupted();
  if (!over_ && view_->is_gone()) over_ = store_gone();
  if (node_rank_ == 0 || over_) return over_.has_value();
  if (const auto text = view_->value("over")) over_ = failure_of(*text);
  return over_.has_value();
}

/// The nodes that want to take part in the round, as node 0 sees them.
std::vector<Nodes::Member> Nodes::those_here(int ranks) {
  std::vector<Member> there = {{.node = 0, .ranks = ranks, .id = id_}};
  for (int node = 1; node < nodes_; ++node) {
    const auto text = view_->latest(key("here/" + std::to_string(node)));
    if (!text) continue;
    const auto json = nlohmann::json::parse(*text);
    there.push_back({.node = node, .ranks = json[0], .id = json[1]});
  }
  return there;
}

void Nodes::check_patience(Clock::time_point since, const std::vector<Member>& there) const {
  if (age_s(since) < meet_timeout_s) return;
  std::string missing;
  for (int node = 1; node < nodes_; ++node) {
    if (std::any_of(there.begin(), there.end(), [&](const Member& member) { return member.node == node; })) continue;
    missing += (missing.empty() ? "" : ", ") + node_name(node);
  }
  TORCH_CHECK(false, "launch: waited ", meet_timeout_s, " s for ", nodes_, " nodes, at least ", min_nodes_, "; ",
              missing, " did not come to ", host_, ":", port(), ".");
}

/// Node 0 decides who takes part. False: over().
bool Nodes::gather(int ranks, const Interrupted& interrupted) {
  ++round_;
  view_->set("round", std::to_string(round_));
  const double patience_s = round_ == 0 ? meet_timeout_s : node_timeout_s_;
  const auto since = Clock::now();
  std::vector<Member> there = those_here(ranks);
  for (bool said = false; static_cast<int>(there.size()) < nodes_; there = those_here(ranks)) {
    if (has_to_stop(interrupted)) return false;
    if (age_s(since) > patience_s && static_cast<int>(there.size()) >= min_nodes_) break;
    check_patience(since, there);
    if (round_ > 0 && !said && age_s(since) > 2) {
      said = true;
      log_info("launch: ", there.size(), " of ", nodes_, " nodes are ready for the next round; waiting at most ",
               static_cast<int>(there.size()) >= min_nodes_ ? patience_s : meet_timeout_s, " s for the others");
    }
    std::this_thread::sleep_for(meet_period);
  }
  auto list = nlohmann::json::array();
  for (const Member& member : there) list.push_back({member.node, member.ranks, member.id});
  view_->set(key("members"), list.dump());
  return take_place(there);
}

/// The other nodes come, and hear who takes part. False: over().
bool Nodes::attend(int ranks, const Interrupted& interrupted) {
  const int after = round_;
  const auto since = Clock::now();
  for (auto renewed = since; !has_to_stop(interrupted); std::this_thread::sleep_for(meet_period)) {
    if (view_->silent_s() > node_timeout_s_ && age_s(renewed) > node_timeout_s_) {
      view_->renew();  // the network may be there again, and TCP not know of it for minutes
      renewed = Clock::now();
    }
    TORCH_CHECK(view_->silent_s() < meet_timeout_s, "launch: node 0 has not answered at ", host_, ":", port(), " for ",
                meet_timeout_s, " s.");
    const int now = std::stoi(view_->latest("round").value_or("-1"));
    if (now <= after) continue;
    if (now != round_) {
      round_ = now;
      view_->set(key("here/" + std::to_string(node_rank_)), nlohmann::json({ranks, id_}).dump());
    }
    const auto text = view_->value(key("members"));
    if (!text) continue;
    std::vector<Member> members;
    for (const auto& entry : nlohmann::json::parse(*text))
      members.push_back({.node = entry[0], .ranks = entry[1], .id = entry[2]});
    if (take_place(members)) return true;
  }
  return false;
}

/// False: this node came too late.
bool Nodes::take_place(const std::vector<Member>& members) {
  members_ = members;
  first_rank_ = world_size_ = 0;
  bool found = false;
  for (const Member& member : members) {
    found = found || member.id == id_;
    if (!found) first_rank_ += member.ranks;
    world_size_ += member.ranks;
  }
  for (const Member& member : members) beats_[member.node] = {.text = "", .since = Clock::now()};
  return found;
}

std::optional<int> Nodes::meet(int ranks, const Interrupted& interrupted) {
  if (over_) return std::nullopt;
  if (!view_) {
    world_size_ = ranks;
    return ++round_;
  }
  const bool met = node_rank_ == 0 ? gather(ranks, interrupted) : attend(ranks, interrupted);
  return met ? std::optional(round_) : std::nullopt;
}

Failure Nodes::report(const Failure& failure) {
  if (!view_) return failure;
  view_->set_first(key("failed"), to_json(failure));
  if (const auto first = view_->wait_for(key("failed"), 1)) return failure_of(*first);
  return view_->is_gone() ? store_gone() : failure;  // ranks may notice before their launcher does
}

std::optional<Failure> Nodes::heard() {
  if (!view_) return std::nullopt;
  give_sign_of_life();
  if (const auto failed = view_->value(key("failed"))) return failure_of(*failed);
  if (view_->is_gone()) return store_gone();
  if (node_rank_ == 0) return lost_node();
  if (view_->silent_s() < node_timeout_s_) return std::nullopt;
  return Failure{.how = "Node 0, which serves the store, has not answered for " + seconds_text(node_timeout_s_)};
}

/// Since another node's last sign of life, as far as this one was looking.
double Nodes::silent_s(int node) {
  Beat& beat = beats_[node];
  const std::string now = view_->latest(alive_key(node)).value_or("");
  if (now != beat.text) beat = {.text = now, .since = Clock::now()};
  return age_s(beat.since);
}

std::optional<Failure> Nodes::lost_node() {
  for (const Member& member : members_) {
    if (member.node == 0) continue;
    const bool is_silent = silent_s(member.node) > node_timeout_s_;
    const std::string name = "Node " + std::to_string(member.node), &beat = beats_[member.node].text;
    if (!beat.empty() && !beat.starts_with(member.id)) return Failure{.how = name + " was started anew"};
    if (is_silent && !view_->value("bye/" + std::to_string(member.node)))
      return Failure{.how = name + " has given no sign of life for " + seconds_text(node_timeout_s_)};
  }
  return std::nullopt;
}

void Nodes::ended() {
  if (view_) view_->set(key("ended/" + std::to_string(node_rank_)), "1");
}

bool Nodes::all_ended() {
  if (!view_) return true;
  return std::all_of(members_.begin(), members_.end(), [this](const Member& member) {
    return member.node == node_rank_ || view_->value(key("ended/" + std::to_string(member.node)));
  });
}

void Nodes::leave(const std::optional<Failure>& failure) {
  if (!view_) return;
  view_->set("bye/" + std::to_string(node_rank_), "1");
  if (node_rank_ == 0) view_->set("over", to_json(failure.value_or(Failure{.exit_code = 0})));
  view_->flush(1);
  if (node_rank_ > 0) return;
  // Those that are lost say nothing any more; those that wait for the next round look for "over" all the time.
  const auto since = Clock::now();
  const auto is_waited_for = [&](const Member& member) {
    return member.node > 0 && !view_->value("bye/" + std::to_string(member.node)) && silent_s(member.node) < lost_s;
  };
  while (age_s(since) < leave_timeout_s &&
         (age_s(since) < 0.3 || std::any_of(members_.begin(), members_.end(), is_waited_for)))
    std::this_thread::sleep_for(meet_period);
}

}  // namespace bellows::comm
