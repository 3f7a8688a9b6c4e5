#include "bellows/comm/elastic/membership.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <set>
#include <sstream>

namespace bellows::comm {

std::string Membership::to_text() const {
  return c10::str(generation, " ", ranks_per_replica, ": ", c10::Join(" ", ids));
}

Membership Membership::parse(std::string_view text) {
  std::istringstream in{std::string(text)};
  Membership result;
  char colon = 0;
  in >> result.generation >> result.ranks_per_replica >> colon;
  for (int id = 0; in >> id;) result.ids.push_back(id);
  const bool distinct = std::set<int>(result.ids.begin(), result.ids.end()).size() == result.ids.size();
  TORCH_CHECK_VALUE(in.eof() && colon == ':' && result.generation >= 0 && result.ranks_per_replica > 0 &&
                        !result.ids.empty() && distinct &&
                        result.ids.size() % static_cast<size_t>(result.ranks_per_replica) == 0,
                    "the launcher's list of processes is damaged: expected text such as \"3 2: 0 1 4 3\", got \"",
                    text.substr(0, 100), "\". Does another program use the port?");
  return result;
}

std::optional<int> Membership::rank_of(int id) const {
  const auto found = std::find(ids.begin(), ids.end(), id);
  if (found == ids.end()) return std::nullopt;
  return static_cast<int>(found - ids.begin());
}

std::string ready_key(int id) {
  return "ready/" + std::to_string(id);
}

std::string joined_key(int id) {
  return "joined/" + std::to_string(id);
}

std::string members_prefix(int restarts) {
  return "members/" + std::to_string(restarts) + "/";
}

}  // namespace bellows::comm
