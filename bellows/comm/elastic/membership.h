#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace bellows::comm {

/// The processes that take part in a job whose processes can be replaced while it runs. The launcher publishes a new
/// membership when a process that takes part was lost, or when a complete replica of the model is ready. Each process
/// has an ID that is never used again. Ranks are the positions in the list, and consecutive ranks form a replica.
/// Replicas that stay come before those with new processes.
struct Membership {
  int64_t generation = 0;     ///< number of the membership
  int ranks_per_replica = 1;  ///< the number of processes that hold the parts of one replica of the model
  std::vector<int> ids;

  std::string to_text() const;  ///< such as "3 2: 0 1 4 3"
  /// Throws: c10::ValueError if the text has another form
  static Membership parse(std::string_view text);

  /// The rank of a process; none if it does not take part.
  std::optional<int> rank_of(int id) const;
};

/// Keys of the job's store.
inline constexpr const char* membership_key = "membership";
inline constexpr const char* ranks_per_replica_key = "ranks_per_replica";  ///< set by the ranks; 1 if it is missing
std::string ready_key(int id);                                             ///< set when a process waits for a world
std::string joined_key(int id);                                            ///< set when a process has joined a world
/// Prefix of these keys after a number of restarts of all ranks, which use the same IDs again.
std::string members_prefix(int restarts);

}  // namespace bellows::comm
