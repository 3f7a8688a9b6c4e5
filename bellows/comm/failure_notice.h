#pragma once

#include <optional>
#include <string>

#include "bellows/comm/group.h"

/// Before a failing rank closes its connections, it publishes the reason to the other ranks of the group. Their calls
/// then end with errors, and they can report the reason instead of a lost connection.
///
/// Threads: thread-safe
namespace bellows::comm {

/// Publishes a reason. Only the first reason of a group is kept.
/// Returns: the first reason, which may come from another rank, or `reason` if the store has ended
std::string announce_failure(const Group& group, const std::string& reason);

/// Returns the reason that a rank of the group published, or nothing.
std::optional<std::string> announced_failure(const Group& group);

}  // namespace bellows::comm
