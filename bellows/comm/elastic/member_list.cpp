#include "bellows/comm/elastic/member_list.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <utility>

namespace bellows::comm {

MemberList::MemberList(Store job, int count) : job_(std::move(job)), next_id_(count) {
  for (int id = 0; id < count; ++id) processes_.push_back({id, id, true});
  published_.ids = complete_replicas();
  job_.set(membership_key, published_.to_text());
}

/// The processes of the complete replicas. Replicas without new processes come first.
std::vector<int> MemberList::complete_replicas() const {
  const int ranks = published_.ranks_per_replica;
  std::map<int, std::vector<Process>> replicas;
  for (const Process& process : processes_) {
    if (process.ready) replicas[process.place / ranks].push_back(process);
  }
  std::vector<std::pair<int, std::vector<int>>> complete;  // ID of the newest process, IDs of all
  for (auto& [number, replica] : replicas) {
    if (static_cast<int>(replica.size()) != ranks) continue;
    std::sort(replica.begin(), replica.end(), [](const Process& a, const Process& b) { return a.place < b.place; });
    auto& [newest, ids] = complete.emplace_back();
    for (const Process& process : replica) {
      newest = std::max(newest, process.id);
      ids.push_back(process.id);
    }
  }
  std::sort(complete.begin(), complete.end());
  std::vector<int> result;
  for (const auto& [newest, ids] : complete) result.insert(result.end(), ids.begin(), ids.end());
  return result;
}

void MemberList::publish_changes() {
  std::vector<int> ids = complete_replicas();
  if (ids.empty() || ids == published_.ids) return;
  published_.ids = std::move(ids);
  ++published_.generation;
  job_.set(membership_key, published_.to_text());
}

bool MemberList::can_spare(int id) const {
  const int needed = takes_part(id) ? published_.ranks_per_replica : 0;
  return static_cast<int>(published_.ids.size()) > needed;
}

int MemberList::add(int place) {
  processes_.push_back({next_id_, place, false});
  return next_id_++;
}

void MemberList::remove(int id) {
  std::erase_if(processes_, [&](const Process& process) { return process.id == id; });
  publish_changes();
}

void MemberList::admit_ready() {
  const auto given = job_.find(ranks_per_replica_key);
  const int ranks = given ? std::max(std::atoi(given->c_str()), 1) : 1;
  for (Process& process : processes_) process.ready = process.ready || job_.find(ready_key(process.id)).has_value();
  if (ranks != published_.ranks_per_replica) {
    published_.ranks_per_replica = ranks;
    published_.ids.clear();  // publishes the same processes again
  }
  publish_changes();
}

}  // namespace bellows::comm
