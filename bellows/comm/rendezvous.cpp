#include <c10/util/Exception.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>

#include "bellows/comm/listen_impl.h"
#include "bellows/comm/rendezvous_impl.h"
#include "bellows/comm/token.h"

namespace bellows::comm {

namespace {

using Clock = std::chrono::steady_clock;

std::string hello_key(int rank) {
  return "hello/" + std::to_string(rank);
}

/// What a rank says of itself, signed: a stranger can write into the store, but not this.
std::string make_hello(const LaunchEnvironment& place) {
  const Peer peer = this_peer();
  nlohmann::json hello = {{"rank", place.rank}, {"world_size", place.world_size},
                          {"host", peer.host},  {"machine", peer.machine},
                          {"pid", peer.pid},    {"start", peer.start_ticks}};
  const std::string text = hello.dump();
  return sign(place.token, text) + text;
}

/// Of the rank that is behind the key; compared with what this one knows.
Peer check_hello(const std::string& signed_text, int rank, const LaunchEnvironment& place) {
  constexpr size_t digits = 64;
  const std::string text = signed_text.substr(std::min(digits, signed_text.size()));
  TORCH_CHECK_VALUE(signed_text == sign(place.token, text) + text, "init: who claims to be rank ", rank,
                    " does not know this job's token; expected the BELLOWS_TOKEN of rank ", place.rank, ".");
  const auto hello = nlohmann::json::parse(text);
  const Peer peer{
      .host = hello["host"], .machine = hello["machine"], .pid = hello["pid"], .start_ticks = hello["start"]};
  TORCH_CHECK_VALUE(hello["world_size"] == place.world_size, "init: rank ", rank, " (", name_of(peer),
                    ") was started for a world of ", hello["world_size"].get<int>(), ", rank ", place.rank,
                    " for one of ", place.world_size, ". Give all ranks the same WORLD_SIZE.");
  return peer;
}

void fail_missing(const Store& job, const Store& outside, const LaunchEnvironment& place, double timeout_s) {
  std::string missing, refused;
  int count = 0;
  for (int rank = 0; rank < place.world_size; ++rank) {
    if (const auto hello = job.find(hello_key(rank))) {
      check_hello(*hello, rank, place);
      continue;
    }
    missing += (count++ ? ", " : "") + std::to_string(rank);
    if (outside.find("refused/rank " + std::to_string(rank)))
      refused += (refused.empty() ? "" : ", ") + std::to_string(rank);
  }
  TORCH_CHECK(false, "init: waited ", timeout_s, " s for ", place.world_size, " ranks, ", count,
              " did not come: ", missing,
              refused.empty() ? "" : " (refused, because of another token: " + refused + ")",
              ". Look at their output, or raise join_timeout_s.");
}

}  // namespace

Store open_store(const LaunchEnvironment& place, double timeout_s) {
  if (!place.store_file.empty()) return Store::in_file(place.store_file, place.world_size);
  TORCH_CHECK_VALUE(!place.token.empty() || is_loopback(place.master_address), "init: the ranks meet at ",
                    place.master_address,
                    ", which other machines reach, and the job has no token. Export the same "
                    "secret on every machine: BELLOWS_TOKEN=$(openssl rand -hex 16).");
  if (place.rank == 0 && !place.launcher_has_store) return Store::serve(place.master_address, place.master_port);
  return Store::join(place.master_address, place.master_port, timeout_s);
}

Store enter_job(const Store& store, const std::string& token, const std::string& who) {
  const std::string mine = sign(token, "job");
  if (store.set_first("job", mine) != mine) {
    store.set("refused/" + who, "1");
    TORCH_CHECK_VALUE(false, "init: ", who,
                      " is refused: its token is not that of the job that meets here. Expected the "
                      "same BELLOWS_TOKEN for all ranks; is another job using the port?");
  }
  return store.under(sign(token, "keys"));
}

Meeting meet(const Store& store, const LaunchEnvironment& place, int time, double timeout_s) {
  const Store job = enter_job(store, place.token, "rank " + std::to_string(place.rank))
                        .under("round/" + std::to_string(place.restart_count) + "." + std::to_string(time) + "/");
  const std::string mine = make_hello(place), there = job.set_first(hello_key(place.rank), mine);
  TORCH_CHECK_VALUE(there == mine, "init: rank ", place.rank, " is there already (",
                    name_of(check_hello(there, place.rank, place)), "), this is ", name_of(this_peer()),
                    ". Give every process a RANK of its own.");
  const auto end = Clock::now() + std::chrono::duration<double>(timeout_s);
  Meeting meeting{.store = job};
  meeting.peers.reserve(static_cast<size_t>(place.world_size));
  for (int rank = 0; rank < place.world_size; ++rank) {
    const auto hello = job.wait_for(hello_key(rank), std::chrono::duration<double>(end - Clock::now()).count());
    if (!hello) fail_missing(job, store, place, timeout_s);
    meeting.peers.push_back(check_hello(*hello, rank, place));
  }
  return meeting;
}

}  // namespace bellows::comm
