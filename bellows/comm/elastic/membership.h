#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace bellows::comm {

/// The processes of a job whose processes can be replaced while it runs. The launcher publishes a new membership when
/// a process was lost, or when a new process is ready. Each process has an ID that is never used again. Ranks are the
/// positions in the list, so processes that stay come before new ones.
struct Membership {
  int64_t generation = 0;  ///< number of the membership
  std::vector<int> ids;    ///< in ascending order

  std::string to_text() const;  ///< such as "3: 0 1 4"
  /// Throws: c10::ValueError if the text has another form
  static Membership parse(std::string_view text);

  /// The rank of a process; none if it is not a member.
  std::optional<int> rank_of(int id) const;
};

/// Keys of the job's store.
inline constexpr const char* membership_key = "membership";
std::string ready_key(int id);   ///< set when a process waits for a world
std::string joined_key(int id);  ///< set when a process has joined a world

}  // namespace bellows::comm
