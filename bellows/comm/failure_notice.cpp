#include "bellows/comm/failure_notice.h"

#include "bellows/comm/group_impl.h"

namespace bellows::comm {

namespace {

std::string failure_key(const Group& group) {
  return "failure/" + group.name();
}

}  // namespace

std::string announce_failure(const Group& group, const std::string& reason) {
  if (group.size() == 1) return reason;
  try {
    return group.state()->store->set_first(failure_key(group), reason);
  } catch (const std::exception&) {
    return reason;  // the store has ended, and so have the other ranks
  }
}

std::optional<std::string> announced_failure(const Group& group) {
  if (group.size() == 1) return std::nullopt;
  try {
    return group.state()->store->find(failure_key(group));
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

}  // namespace bellows::comm
