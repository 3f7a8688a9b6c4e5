#include "bellows/comm/launch/nodes.h"

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <thread>
#include <tuple>

#include "bellows/comm/rendezvous/listen.h"
#include "bellows/comm/rendezvous/rendezvous.h"
#include "bellows/comm/rendezvous/wait_report.h"
#include "bellows/core/error.h"
#include "bellows/core/log.h"
#include "bellows/system/random_token.h"

namespace bellows::comm {

namespace {

using namespace std::chrono_literals;

constexpr double meet_timeout_s = 300, reconnect_timeout_s = 10, leave_timeout_s = 5, lost_s = 2;
constexpr auto beat_period = 500ms, meet_period = 20ms;

Failure store_gone() {
  return {.how = "Node 0, which serves the store, has ended", .is_last = true};
}

/// Splits "HOST:PORT" or "[::1]:PORT".
std::pair<std::string, int> split_address(const std::string& text) {
  const size_t colon = text.rfind(':');
  int port = -1;
  if (colon != text.npos) {
    const auto [end, error] = std::from_chars(text.data() + colon + 1, text.data() + text.size(), port);
    if (error != std::errc() || end != text.data() + text.size()) port = -1;
  }
  TORCH_CHECK_VALUE(colon != 0 && port >= 0 && port <= 65535, "launch: expected `rendezvous` HOST:PORT, got \"", text,
                    "\".");
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

/// Calls `use` with a store entry, parsed as JSON.
template <class Use>
auto read_entry(const std::string& key, const std::string& text, Use use) {
  try {
    return use(nlohmann::json::parse(text));
  } catch (const nlohmann::json::exception&) {
    TORCH_CHECK_VALUE(false, "launch: the store's entry \"", key, "\" is damaged: \"", text.substr(0, 100),
                      "\", expected an entry of a launcher of the same version. Does another program use the port? "
                      "Start the job on all nodes again, or set another `rendezvous`.");
  }
}

Failure failure_of(const std::string& key, const std::string& text) {
  return read_entry(key, text, [](const nlohmann::json& json) -> Failure {
    return {.rank = json.at("rank"),
            .exit_code = json.at("exit_code"),
            .how = json.at("how"),
            .last_lines = json.at("lines"),
            .asked_for = json.at("asked_for")};
  });
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

/// Compares the number of nodes with that of node 0.
/// Throws: c10::ValueError if another node has another number
void check_same_nodes(const Store& job, int node, int nodes) {
  if (node == 0) {
    job.set("nodes", std::to_string(nodes));
    return;
  }
  const auto expected = job.wait_for("nodes", meet_timeout_s);
  TORCH_CHECK_VALUE(expected == std::to_string(nodes), "launch: ", node_name(node),
                    " was started with `nodes` = ", nodes, ", but node 0 with ", expected.value_or("none"),
                    ". Give all nodes the same number.");
}

}  // namespace

Nodes::Nodes(const LaunchOptions& options, const std::string& token, const Interrupted& interrupted)
    : nodes_(options.nodes),
      node_rank_(options.node_rank),
      min_nodes_(options.min_nodes > 0 ? options.min_nodes : options.nodes),
      node_timeout_s_(options.node_timeout_s),
      id_(random_token()),
      token_(token) {
  int port = 0;
  if (!options.rendezvous.empty()) std::tie(host_, port) = split_address(options.rendezvous);
  const std::string who = node_name(node_rank_);
  const auto enter = [=, node = node_rank_, nodes = nodes_](const Store& store) {
    const Store job = enter_job(store, token, who).under("launch/");
    check_same_nodes(job, node, nodes);
    return job;
  };
  if (node_rank_ == 0) {
    store_ = Store::serve(host_, port);
  } else if (!join_node_zero(port, enter, interrupted)) {
    return;
  }
  const Store job = node_rank_ == 0 ? enter(*store_) : *job_;
  if (nodes_ == 1) return;
  view_.emplace([=, host = host_, first = node_rank_ == 0] {
    if (first) return job.another();
    return enter_job(Store::join(host, port, reconnect_timeout_s), token, who).under("launch/");
  });
}

Store Nodes::store_of_ranks() const {
  return enter_job(*store_, token_, "launcher");
}

/// Returns false if the job is over; see over().
bool Nodes::join_node_zero(int port, const std::function<Store(const Store&)>& enter, const Interrupted& interrupted) {
  WaitReport wait("launch: " + node_name(node_rank_), meet_timeout_s);
  struct Stopped {};
  const auto look = [&] {
    if ((over_ = interrupted())) throw Stopped();
    wait.report([&] { return c10::str("node 0 at ", host_, ":", port); });
    TORCH_CHECK(wait.waited_s() < meet_timeout_s, "launch: found no node 0 at ", host_, ":", port, " for ",
                meet_timeout_s, " s. Start it, or check `rendezvous`.");
  };
  try {
    const auto joined = in_background(
        [host = host_, port, enter](const std::stop_token& stop) {
          const Store store = Store::join(host, port, 2 * meet_timeout_s, stop);
          return std::pair(store, enter(store));
        },
        look);
    store_ = joined.first;
    job_ = joined.second;
  } catch (const Stopped&) {
    return false;
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
  if (const auto text = view_->value("over")) over_ = failure_of("over", *text);
  return over_.has_value();
}

/// The nodes that want to take part in the round, as seen by node 0.
std::vector<Nodes::Member> Nodes::those_here(int ranks) {
  std::vector<Member> there = {{.node = 0, .ranks = ranks, .id = id_}};
  for (int node = 1; node < nodes_; ++node) {
    const std::string name = key("here/" + std::to_string(node));
    const auto text = view_->latest(name);
    if (!text) continue;
    there.push_back(read_entry(name, *text, [&](const nlohmann::json& json) -> Member {
      return {.node = node, .ranks = json.at(0), .id = json.at(1)};
    }));
  }
  return there;
}

std::string Nodes::missing_nodes(const std::vector<Member>& there) const {
  std::string missing;
  for (int node = 1; node < nodes_; ++node) {
    if (std::any_of(there.begin(), there.end(), [&](const Member& member) { return member.node == node; })) continue;
    missing += (missing.empty() ? "" : ", ") + node_name(node);
  }
  return missing;
}

void Nodes::check_patience(Clock::time_point since, const std::vector<Member>& there) const {
  TORCH_CHECK(age_s(since) < meet_timeout_s, "launch: waited ", meet_timeout_s, " s for ", nodes_, " nodes (at least ",
              min_nodes_, "), but ", missing_nodes(there), " did not join at ", host_, ":", port(), ".");
}

/// Node 0 decides which nodes take part. Returns false if the job is over; see over().
bool Nodes::gather(int ranks, const Interrupted& interrupted) {
  ++round_;
  view_->set("round", std::to_string(round_));
  const double patience_s = round_ == 0 ? meet_timeout_s : node_timeout_s_;
  const auto since = Clock::now();
  WaitReport wait("launch: node 0", meet_timeout_s);
  std::vector<Member> there = those_here(ranks);
  for (bool said = false; static_cast<int>(there.size()) < nodes_; there = those_here(ranks)) {
    if (has_to_stop(interrupted)) return false;
    if (age_s(since) > patience_s && static_cast<int>(there.size()) >= min_nodes_) break;
    check_patience(since, there);
    wait.report([&] {
      return c10::str(missing_nodes(there), "; ", there.size(), " of ", nodes_, " nodes are at ", host_, ":", port());
    });
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

/// The other nodes announce themselves and read the members. Returns false if the job is over; see over().
bool Nodes::attend(int ranks, const Interrupted& interrupted) {
  const int after = round_;
  const auto since = Clock::now();
  WaitReport wait("launch: " + node_name(node_rank_), meet_timeout_s);
  for (auto renewed = since; !has_to_stop(interrupted); std::this_thread::sleep_for(meet_period)) {
    if (view_->silent_s() > node_timeout_s_ && age_s(renewed) > node_timeout_s_) {
      view_->renew();  // after a network failure, TCP may take minutes to notice that the network is back
      renewed = Clock::now();
    }
    wait.report([&] { return c10::str("node 0 at ", host_, ":", port(), " to start the ranks of all nodes"); });
    TORCH_CHECK(view_->silent_s() < meet_timeout_s, "launch: node 0 has not answered at ", host_, ":", port(), " for ",
                meet_timeout_s, " s.");
    const int now = read_entry("round", view_->latest("round").value_or("-1"),
                               [](const nlohmann::json& number) { return number.get<int>(); });
    if (now <= after) continue;
    if (now != round_) {
      round_ = now;
      view_->set(key("here/" + std::to_string(node_rank_)), nlohmann::json({ranks, id_}).dump());
    }
    const auto text = view_->value(key("members"));
    if (!text) continue;
    const auto members = read_entry(key("members"), *text, [](const nlohmann::json& list) {
      std::vector<Member> all;
      for (const auto& entry : list) all.push_back({.node = entry.at(0), .ranks = entry.at(1), .id = entry.at(2)});
      return all;
    });
    if (take_place(members)) return true;
  }
  return false;
}

/// Returns false if this node came too late.
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
  if (const auto first = view_->wait_for(key("failed"), 1)) return failure_of(key("failed"), *first);
  return view_->is_gone() ? store_gone() : failure;  // ranks may notice before their launcher
}

std::optional<Failure> Nodes::heard() {
  if (!view_) return std::nullopt;
  give_sign_of_life();
  if (const auto failed = view_->value(key("failed"))) return failure_of(key("failed"), *failed);
  if (view_->is_gone()) return store_gone();
  if (node_rank_ == 0) return lost_node();
  if (view_->silent_s() < node_timeout_s_) return std::nullopt;
  return Failure{.how = "Node 0, which serves the store, has not answered for " + seconds_text(node_timeout_s_)};
}

/// Seconds since the other node's last heartbeat that this node has seen.
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
    if (!beat.empty() && !beat.starts_with(member.id)) return Failure{.how = name + " was restarted"};
    if (is_silent && !view_->value("bye/" + std::to_string(member.node)))
      return Failure{.how = name + " has sent no heartbeat for " + seconds_text(node_timeout_s_)};
  }
  return std::nullopt;
}

void Nodes::ended() {
  if (view_) view_->set(key("ended/" + std::to_string(node_rank_)), "1");
}

bool Nodes::all_ended() {
  if (!view_) return true;
  return not_ended().empty();
}

std::string Nodes::not_ended() {
  std::string names;
  for (const Member& member : members_) {
    if (member.node != node_rank_ && !view_->value(key("ended/" + std::to_string(member.node))))
      names += (names.empty() ? "" : ", ") + node_name(member.node);
  }
  return names;
}

void Nodes::leave(const std::optional<Failure>& failure) {
  if (!view_) return;
  view_->set("bye/" + std::to_string(node_rank_), "1");
  if (node_rank_ == 0) view_->set("over", to_json(failure.value_or(Failure{.exit_code = 0})));
  view_->flush(1);
  if (node_rank_ > 0) return;
  // Lost nodes no longer respond; nodes that wait for the next round keep polling "over".
  const auto since = Clock::now();
  const auto is_waited_for = [&](const Member& member) {
    return member.node > 0 && !view_->value("bye/" + std::to_string(member.node)) && silent_s(member.node) < lost_s;
  };
  while (age_s(since) < leave_timeout_s &&
         (age_s(since) < 0.3 || std::any_of(members_.begin(), members_.end(), is_waited_for)))
    std::this_thread::sleep_for(meet_period);
}

}  // namespace bellows::comm
