#include "bellows/comm/elastic/member_list.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace bellows::comm {

MemberList::MemberList(Store job, int count) : job_(std::move(job)), next_id_(count) {
  members_.ids.resize(static_cast<size_t>(count));
  std::iota(members_.ids.begin(), members_.ids.end(), 0);
  job_.set(membership_key, members_.to_text());
}

void MemberList::publish() {
  ++members_.generation;
  job_.set(membership_key, members_.to_text());
}

int MemberList::add() {
  waiting_.push_back(next_id_);
  return next_id_++;
}

void MemberList::remove(int id) {
  std::erase(waiting_, id);
  if (std::erase(members_.ids, id) > 0 && !members_.ids.empty()) publish();
}

void MemberList::look() {
  const size_t before = members_.ids.size();
  if (before == 0) return;
  std::erase_if(waiting_, [&](int id) {
    const bool ready = job_.find(ready_key(id)).has_value();
    if (ready) members_.ids.push_back(id);
    return ready;
  });
  std::sort(members_.ids.begin(), members_.ids.end());
  if (members_.ids.size() != before) publish();
}

}  // namespace bellows::comm
