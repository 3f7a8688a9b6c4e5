#include <c10/util/Exception.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>
#include <utility>

#include "bellows/comm/rendezvous/listen.h"
#include "bellows/comm/rendezvous/rendezvous.h"
#include "bellows/comm/rendezvous/token.h"
#include "bellows/comm/rendezvous/wait_report.h"
#include "bellows/core/mutex.h"
#include "bellows/report/json_text.h"
#include "bellows/system/stop.h"

namespace bellows::comm {

namespace {

std::string hello_key(int rank) {
  return "hello/" + std::to_string(rank);
}

std::string place_of(const LaunchEnvironment& place) {
  if (!place.store_file.empty()) return "the file " + place.store_file;
  return place.master_address + ":" + std::to_string(place.master_port);
}

constexpr const char* one_job_a_port =
    " If these are two jobs, set a different MASTER_PORT and BELLOWS_TOKEN for each (openssl rand -hex 16).";

/// The ranks that the background thread is waiting for. Another thread logs them.
class Awaited {
 public:
  void set(std::string what) {
    const MutexLock lock(mutex_);
    what_ = std::move(what);
  }
  std::string text() const {
    const MutexLock lock(mutex_);
    return what_;
  }

 private:
  mutable Mutex mutex_;
  std::string what_ BELLOWS_GUARDED_BY(mutex_);
};

/// The signed description of a rank. Without the token, a process can write to the store, but cannot forge this entry.
std::string make_hello(const LaunchEnvironment& place) {
  const Peer peer = this_peer();
  nlohmann::json hello = {
      {"rank", place.rank}, {"world_size", place.world_size}, {"host", peer.host}, {"machine", peer.machine},
      {"pid", peer.pid},    {"start", peer.start_ticks},      {"job", place.job}};
  const std::string text = json_text(hello);
  return sign(place.token, text) + text;
}

/// Checks the description of another rank against this one.
Peer check_hello(const std::string& signed_text, int rank, const LaunchEnvironment& place) {
  constexpr size_t digits = 64;
  const std::string text = signed_text.substr(std::min(digits, signed_text.size()));
  TORCH_CHECK_VALUE(signed_text == sign(place.token, text) + text, "init: the process that claims to be rank ", rank,
                    " does not have the token of this job. Set the same BELLOWS_TOKEN as for rank ", place.rank, ".");
  const auto hello = nlohmann::json::parse(text);
  const Peer peer{
      .host = hello["host"], .machine = hello["machine"], .pid = hello["pid"], .start_ticks = hello["start"]};
  TORCH_CHECK_VALUE(hello["world_size"] == place.world_size, "init: rank ", rank, " (", name_of(peer),
                    ") was started for a world of ", hello["world_size"].get<int>(), ", but rank ", place.rank,
                    " for a world of ", place.world_size, ". Give all ranks the same WORLD_SIZE.", one_job_a_port);
  // Compared in JSON form, which differs from the name itself if the name is not UTF-8.
  const std::string job = hello.value("job", ""), own_job = nlohmann::json::parse(json_text(nlohmann::json(place.job)));
  TORCH_CHECK_VALUE(!place.token.empty() || job.empty() || own_job.empty() || job == own_job, "init: two jobs meet at ",
                    place_of(place), ": rank ", rank, " (", name_of(peer), ") belongs to job ", job, ", but rank ",
                    place.rank, " belongs to job ", place.job, ".", one_job_a_port);
  return peer;
}

std::vector<int> missing_ranks(const Store& job, const LaunchEnvironment& place) {
  std::vector<int> missing;
  for (int rank = 0; rank < place.world_size; ++rank) {
    if (!job.find(hello_key(rank))) missing.push_back(rank);
  }
  return missing;
}

[[noreturn]] void fail_missing(const Store& job, const Store& outside, const LaunchEnvironment& place,
                               double timeout_s) {
  const std::vector<int> missing = missing_ranks(job, place);
  std::string refused;
  for (const int rank : missing) {
    if (outside.find("refused/rank " + std::to_string(rank)))
      refused += (refused.empty() ? "" : ", ") + std::to_string(rank);
  }
  TORCH_CHECK(false, "init: waited ", timeout_s, " s for ", place.world_size, " ranks, but ", missing.size(),
              " did not join: ", c10::Join(", ", missing),
              refused.empty() ? "" : " (refused because of a different token: " + refused + ")",
              ". Check their output, or raise join_timeout_s.");
}

/// If two processes have the same rank, the second one writes its description here, so that all ranks stop waiting.
constexpr const char* twice_key = "twice";

[[noreturn]] void fail_twice(int rank, const Peer& first, const Peer& second) {
  TORCH_CHECK_VALUE(false, "init: rank ", rank, " has already joined (", name_of(first), "), and was started again (",
                    name_of(second), "). Give every process a different RANK.", one_job_a_port);
}

void check_nobody_twice(const Store& job, const LaunchEnvironment& place) {
  const auto hello = job.find(twice_key);
  if (!hello) return;
  constexpr size_t digits = 64;
  const int rank = nlohmann::json::parse(hello->substr(std::min(digits, hello->size()))).value("rank", 0);
  const Peer second = check_hello(*hello, rank, place);
  const auto first = job.find(hello_key(rank));
  // The rank that serves the store leaves last: the others check the key several times a second.
  if (place.rank == 0) std::this_thread::sleep_for(std::chrono::seconds(1));
  fail_twice(rank, first ? check_hello(*first, rank, place) : second, second);
}

/// Waits for the description of one rank.
std::string wait_for_hello(const Store& job, const Store& outside, const LaunchEnvironment& place, int rank,
                           const WaitReport& wait, double timeout_s, const std::stop_token& stop, Awaited& awaited) {
  for (double listed_s = -1;;) {
    if (auto hello = job.find(hello_key(rank))) return *hello;
    check_nobody_twice(job, place);
    TORCH_CHECK(!stop.stop_requested(), "init: stopped.");
    const double waited_s = wait.waited_s();
    if (waited_s > timeout_s) fail_missing(job, outside, place, timeout_s);
    // In a large world, only rank 0 checks all ranks, to limit the load on the store.
    const bool lists = place.rank == 0 || place.world_size <= 64;
    if (listed_s < 0 || waited_s > std::max(8.0, 1.9 * listed_s)) {
      listed_s = waited_s;
      const auto missing = lists && waited_s > 1 ? missing_ranks(job, place) : std::vector<int>{rank};
      awaited.set(c10::str(missing.size() == 1 ? "rank " : "ranks ", c10::Join(", ", missing),
                           lists && waited_s > 1 ? c10::str("; ", place.world_size - static_cast<int>(missing.size()),
                                                            " of ", place.world_size, " ranks have joined,")
                                                 : "",
                           " at ", place_of(place)));
    }
    std::this_thread::sleep_for(std::chrono::duration<double>(std::clamp(waited_s / 10, 0.002, 0.2)));
  }
}

/// If another process listens on this job's port, joins its store as a second rank 0, in order to report the conflict.
/// Returns nothing if it is not the store of a job.
std::optional<Store> join_as_second(const LaunchEnvironment& place) {
  const WaitReport wait("", 0);
  const auto look = [&] { TORCH_CHECK(wait.waited_s() < 3, "no answer"); };
  try {
    return in_background(
        [place](const std::stop_token& stop) -> std::optional<Store> {
          const Store store = Store::join(place.master_address, place.master_port, 2, stop);
          return store.wait_for("job", 1) ? std::optional(store) : std::nullopt;
        },
        look);
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

/// Opens the store from the environment: the launcher's, a file, or one that rank 0 serves here.
Store open_store(const LaunchEnvironment& place, double timeout_s, const std::stop_token& stop) {
  if (!place.store_file.empty()) return Store::in_file(place.store_file, place.world_size);
  TORCH_CHECK_VALUE(!place.token.empty() || is_loopback(place.master_address), "init: the ranks meet at ",
                    place.master_address,
                    ", which other machines can reach, but the job has no token. Set the same secret on every machine: "
                    "BELLOWS_TOKEN=$(openssl rand -hex 16).");
  if (place.rank > 0 || place.launcher_has_store)
    return Store::join(place.master_address, place.master_port, timeout_s, stop);
  try {
    return Store::serve(place.master_address, place.master_port);
  } catch (const c10::ValueError&) {
    if (auto store = join_as_second(place)) return *store;
    throw;
  }
}

Meeting meet_at(const Store& store, const LaunchEnvironment& place, int time, double timeout_s,
                const std::stop_token& stop, Awaited& awaited) {
  const WaitReport wait("", timeout_s);
  const Store job = enter_job(store, place.token, "rank " + std::to_string(place.rank))
                        .under("round/" + std::to_string(place.restart_count) + "." + std::to_string(time) + "/");
  const std::string mine = make_hello(place), there = job.set_first(hello_key(place.rank), mine);
  if (there != mine) {
    const Peer first = check_hello(there, place.rank, place);
    job.set_first(twice_key, mine);
    fail_twice(place.rank, first, this_peer());
  }
  Meeting meeting{.store = job};
  meeting.peers.reserve(static_cast<size_t>(place.world_size));
  for (int rank = 0; rank < place.world_size; ++rank) {
    const std::string hello = wait_for_hello(job, store, place, rank, wait, timeout_s, stop, awaited);
    meeting.peers.push_back(check_hello(hello, rank, place));
  }
  return meeting;
}

}  // namespace

Store enter_job(const Store& store, const std::string& token, const std::string& who) {
  const std::string mine = sign(token, "job");
  if (store.set_first("job", mine) != mine) {
    store.set("refused/" + who, "1");
    TORCH_CHECK_VALUE(false, "init: ", who,
                      " was refused, because its token differs from the token of the job at this address. Set the same "
                      "BELLOWS_TOKEN for all ranks. Does another job use the port?");
  }
  return store.under(sign(token, "keys"));
}

Meeting meet(const LaunchEnvironment& place, int time, double timeout_s, const std::function<void()>& check) {
  const auto awaited = std::make_shared<Awaited>();
  awaited->set((place.launcher_has_store ? "the launcher at " : "rank 0 at ") + place_of(place));
  const std::string who = "init: rank " + std::to_string(place.rank);
  WaitReport wait(who, timeout_s);
  const auto look = [&] {
    const auto text = [&] { return awaited->text(); };
    wait.report(text);
    if (check) check();
    throw_if_stopped(who + " waited for " + text());
    TORCH_CHECK(wait.waited_s() < 2 * timeout_s + 10, who, " waited ", static_cast<int64_t>(wait.waited_s()), " s for ",
                text(), ", which does not answer. Is that process stopped, or is the network interrupted?");
  };
  return in_background(
      [place, time, timeout_s, awaited](const std::stop_token& abandoned) {
        return meet_at(open_store(place, timeout_s, abandoned), place, time, timeout_s, abandoned, *awaited);
      },
      look);
}

}  // namespace bellows::comm
