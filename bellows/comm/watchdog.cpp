#include <algorithm>
#include <charconv>
#include <cmath>
#include <future>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "bellows/comm/watchdog.h"
#include "bellows/core/log.h"
#include "bellows/report/json_text.h"
#include "bellows/system/thread.h"

namespace bellows::comm {

namespace {

using namespace std::chrono_literals;

constexpr size_t noted_calls = 8;  // per group
constexpr auto note_period = 250ms, life_period = 1000ms;

std::string note_key(int rank) {
  return "note/" + std::to_string(rank);
}

std::string call_text(int64_t number, const std::string& what) {
  return "#" + std::to_string(number) + " " + what;
}

}  // namespace

std::shared_ptr<Watchdog> Watchdog::start(const Store& store, int rank, std::vector<Peer> peers, double warn_after_s) {
  std::shared_ptr<Watchdog> watchdog(new Watchdog(store, rank, std::move(peers), warn_after_s));
  // Detached, so that a store that does not respond cannot prevent the process from ending.
  start_thread("process group", [watchdog] { watchdog->run(); }).detach();
  return watchdog;
}

Watchdog::Watchdog(const Store& store, int rank, std::vector<Peer> peers, double warn_after_s)
    : store_(store), rank_(rank), peers_(std::move(peers)), warn_after_s_(warn_after_s) {}

void Watchdog::add_group(const std::string& name, const std::vector<int>& ranks) {
  MutexLock lock(mutex_);
  groups_[name] = {.callers = ranks, .all = ranks};
}

std::string Watchdog::add_channel(const std::string& group, int from, int to, int tag) {
  std::string name = c10::str(group, ", ", from, " to ", to);
  if (tag != 0) name += ", tag " + std::to_string(tag);
  MutexLock lock(mutex_);
  if (groups_.count(name) != 0) return name;
  const std::vector<int> ranks = groups_.at(group).all;
  groups_[name] = {.callers = {ranks.at(static_cast<size_t>(from)), ranks.at(static_cast<size_t>(to))},
                   .all = ranks,
                   .between_two = true};
  return name;
}

Call Watchdog::enter(const std::string& group, std::string what) {
  MutexLock lock(mutex_);
  auto& calls = calls_[group];
  // Number 0 is the call that connects the group.
  const int64_t first_number = groups_[group].between_two ? 1 : 0;
  const int64_t number = calls.empty() ? first_number : calls.back().number + 1;
  calls.push_back({group, number, std::move(what)});
  if (calls.size() > noted_calls) calls.pop_front();
  running_.push_back({.call = calls.back(), .since = Clock::now(), .next_warning_s = warn_after_s_});
  changed_ = true;
  return calls.back();
}

void Watchdog::started(const Call& call, std::function<bool()> done) {
  MutexLock lock(mutex_);
  const auto found = std::find_if(running_.begin(), running_.end(), [&](const Running& running) {
    return running.call.number == call.number && running.call.group == call.group;
  });
  if (found != running_.end()) found->done = std::move(done);
}

void Watchdog::finished(const Call& call) {
  MutexLock lock(mutex_);
  std::erase_if(running_, [&](const Running& running) {
    return running.call.number == call.number && running.call.group == call.group;
  });
}

bool Watchdog::is_busy(const std::string& group) {
  MutexLock lock(mutex_);
  std::erase_if(running_, [](const Running& running) { return running.done && running.done(); });
  return std::any_of(running_.begin(), running_.end(),
                     [&](const Running& running) { return running.call.group == group; });
}

void Watchdog::run() {
  try {
    const Store own = store_.another();
    UniqueLock lock(mutex_);
    for (auto written = Clock::time_point(); end_.empty();) {
      if (changed_ || Clock::now() - written >= life_period) {
        lock.unlock();
        write_note(own);
        lock.lock();
        written = Clock::now();
      }
      lock.unlock();
      warn_of_long_calls();
      lock.lock();
      wake_.wait_for(lock, note_period, [this]() BELLOWS_REQUIRES(mutex_) { return !end_.empty(); });
    }
    lock.unlock();
    write_note(own);
  } catch (const std::exception&) {
    // The store failed because its owner ended. The next collective reports it.
  }
  MutexLock lock(mutex_);
  ended_ = true;
  wake_.notify_all();
}

void Watchdog::write_note(const Store& store) {
  nlohmann::json note;
  {
    MutexLock lock(mutex_);
    note = {{"beat", ++beat_}, {"end", end_}, {"calls", nlohmann::json::object()}};
    for (const auto& [group, calls] : calls_) {
      for (const Call& call : calls) note["calls"][group][std::to_string(call.number)] = call.what;
    }
    changed_ = false;
  }
  store.set(note_key(rank_), json_text(note));
}

void Watchdog::warn_of_long_calls() {
  std::optional<std::pair<Call, double>> late;
  {
    MutexLock lock(mutex_);
    std::erase_if(running_, [](const Running& running) { return running.done && running.done(); });
    for (Running& running : running_) {
      const double waited_s = std::chrono::duration<double>(Clock::now() - running.since).count();
      if (waited_s < running.next_warning_s) continue;
      running.next_warning_s = 2 * waited_s;
      if (!late) late = {running.call, waited_s};
    }
  }
  if (!late) return;
  // On another thread, because this one must keep sending heartbeats.
  const auto warn = [self = shared_from_this(), call = late->first, waited_s = late->second] {
    try {
      const Blame blame = self->examine(call);
      const Members members = self->members_of(call.group);
      // A send counts as running until its rank waits for it, which may be at the end of a long step.
      if (blame.text.empty() && members.between_two) return;
      const std::vector<int>& ranks = members.callers;
      const auto speaker = std::find_if(ranks.begin(), ranks.end(), [&](int rank) {
        return std::find(blame.ranks.begin(), blame.ranks.end(), rank) == blame.ranks.end();
      });
      if (speaker == ranks.end() || *speaker != self->rank_) return;  // only the first unaffected rank logs
      log_warn("group ", call.group, ": ", call_text(call.number, call.what), " has been waiting for ",
               std::round(10 * waited_s) / 10, " s. ", blame.text.empty() ? "All ranks have called it." : blame.text);
    } catch (const std::exception&) {
      // Without the store there is nothing to report.
    }
  };
  try {
    std::thread(warn).detach();
  } catch (const std::system_error&) {
    // Without a thread the warning is skipped.
  }
}

Watchdog::Members Watchdog::members_of(const std::string& group) const {
  MutexLock lock(mutex_);
  return groups_.at(group);
}

Watchdog::Note Watchdog::read_note(int rank) const {
  const auto text = store_.find(note_key(rank));
  if (!text) return {};
  const auto json = nlohmann::json::parse(*text);
  Note note{.beat = json["beat"], .end = json["end"]};
  for (const auto& [group, calls] : json["calls"].items()) {
    for (const auto& [number, what] : calls.items()) {
      int64_t parsed = 0;
      const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), parsed);
      if (error == std::errc() && end == number.data() + number.size()) note.calls[group][parsed] = what;
    }
  }
  return note;
}

/// Whether the rank ended or stopped for its own reasons, not after another rank's failure. Only known on the same
/// machine.
bool Watchdog::is_gone(int rank, const Note& note) const {
  const PeerState state = look_up(peers_[rank]);
  return state == PeerState::stopped || (state == PeerState::ended && note.end != "failed");
}

/// Waits for a note that was written after this call; sets `silent` if there is none before `end`.
Watchdog::Note Watchdog::fresh_note(int rank, Clock::time_point end, bool& silent) const {
  Note note = read_note(rank);
  const int64_t first = note.beat;
  while (note.end.empty() && note.beat == first && !is_gone(rank, note)) {
    if ((silent = Clock::now() > end)) break;
    std::this_thread::sleep_for(100ms);
    note = read_note(rank);
  }
  return note;
}

/// Returns "" if the rank takes part in the call correctly.
std::string Watchdog::trouble_of(int rank, const Call& call, const Note& note, bool silent) const {
  const auto group = note.calls.find(call.group);
  const auto* calls = group == note.calls.end() ? nullptr : &group->second;
  const int64_t last = calls ? calls->rbegin()->first : -1;
  const std::string last_text = calls ? call_text(last, calls->rbegin()->second) : "none";
  const PeerState state = look_up(peers_[rank]);
  std::string text;
  if (state == PeerState::stopped) {
    text = "is stopped (SIGSTOP or a debugger); its last reported call is " + last_text;
  } else if (state == PeerState::ended && note.end.empty()) {
    text = "has ended unexpectedly; its last reported call is " + last_text;
  } else if (silent && state != PeerState::ended) {
    text = "sends no heartbeat; its last reported call is " + last_text;
  } else if (last < call.number) {
    text = (note.end.empty() ? "" : "has " + note.end + " and ") + "did not call it; its last call in this group was " +
           last_text;
  } else if (const auto same = calls->find(call.number); same != calls->end() && same->second != call.what) {
    text = "called " + call_text(call.number, same->second) + " instead";
  } else if (note.end == "failed") {
    text = "has failed";
  }
  return text.empty() ? "" : c10::str("Rank ", rank, " (", name_of(peers_[rank]), ") ", text, ".");
}

/// Describes a rank that does not make the call, but whose end can be the cause of its failure: ranks that waited for
/// it also failed. Returns "" if it did not end unexpectedly.
std::string Watchdog::end_of_other_member(int rank, const Note& note) const {
  const PeerState state = look_up(peers_[rank]);
  if (state != PeerState::stopped && !(state == PeerState::ended && note.end.empty())) return "";
  return c10::str("Rank ", rank, " (", name_of(peers_[rank]), ") ",
                  state == PeerState::stopped ? "is stopped (SIGSTOP or a debugger)." : "has ended unexpectedly.");
}

void Watchdog::Blame::add(int rank, const std::string& trouble) {
  if (trouble.empty()) return;
  ranks.push_back(rank);
  text += (text.empty() ? "" : " ") + trouble;
}

Watchdog::Blame Watchdog::examine(const Call& call) const {
  Members members = members_of(call.group);
  std::vector<int>& others = members.callers;
  std::erase(others, rank_);
  std::erase(members.all, rank_);
  Blame gone, first, followers;
  for (const int rank : members.all) {
    const PeerState state = look_up(peers_[rank]);
    if (state != PeerState::stopped && state != PeerState::ended) continue;  // no need to read its note
    const Note note = read_note(rank);
    if (!is_gone(rank, note)) continue;
    const bool calls = std::find(others.begin(), others.end(), rank) != others.end();
    gone.add(rank, calls ? trouble_of(rank, call, note, false) : end_of_other_member(rank, note));
  }
  if (!gone.ranks.empty()) return gone;  // notes of the others may be older than the call
  const auto end = Clock::now() + 3s;
  for (const int rank : others) {
    bool silent = false;
    const Note note = fresh_note(rank, end, silent);
    // Ranks that failed or are late because of another rank are listed only if there is no other cause.
    (note.end == "failed" ? followers : silent ? gone : first).add(rank, trouble_of(rank, call, note, silent));
  }
  if (!gone.ranks.empty()) return gone;
  return first.ranks.empty() ? followers : first;
}

std::string Watchdog::explain(const Call& call) {
  auto found = std::make_shared<std::promise<std::string>>();
  auto text = found->get_future();
  const auto examine_call = [self = shared_from_this(), call, found] {
    try {
      found->set_value(self->examine(call).text);
    } catch (const std::exception&) {
      found->set_value("The job's store is gone: the process that serves it (rank 0 or the launcher) has ended.");
    }
  };
  try {
    std::thread(examine_call).detach();
  } catch (const std::system_error& error) {
    found->set_value("The cause is unknown: " + no_thread_message(error));
  }
  const bool in_time = text.wait_for(5s) == std::future_status::ready;
  {
    MutexLock lock(mutex_);
    if (end_.empty()) end_ = "failed";
    wake_.notify_all();
  }
  if (in_time) return text.get();
  std::vector<int> others = members_of(call.group).callers;
  std::erase(others, rank_);
  return c10::str(
      "The job's store does not answer: the process that serves it (rank 0 or the launcher) hangs, or rank ", rank_,
      " cannot reach it, and therefore cannot reach rank ", c10::Join(", ", others), ".");
}

std::string Watchdog::error_text(const Call& call, const std::string& reason) {
  std::optional<std::string> blame;
  {
    MutexLock lock(mutex_);
    if (const auto known = blames_.find(call.group); known != blames_.end()) blame = known->second;
  }
  if (!blame) {
    blame = explain(call);
    MutexLock lock(mutex_);
    blame = blames_.emplace(call.group, *blame).first->second;
  }
  return c10::str(call_text(call.number, call.what), " failed on rank ", rank_, ", group ", call.group, ": ",
                  blame->empty() ? "" : *blame + " ", "(", reason.substr(0, reason.find('\n')), ")");
}

void Watchdog::leave() {
  UniqueLock lock(mutex_);
  if (end_.empty()) end_ = "left";
  wake_.notify_all();
  wake_.wait_for(lock, 1s, [this]() BELLOWS_REQUIRES(mutex_) { return ended_; });
}

}  // namespace bellows::comm
