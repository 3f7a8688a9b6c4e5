#pragma once

#include <optional>
#include <string>

#include "bellows/comm/group.h"

/// A rank that fails tells the other ranks of a group the reason, before it closes its connections. Their calls then
/// end with errors, and they can report the reason instead of a lost connection.
///
/// Threads: thread-safe
namespace bellows::comm {

/// Publishes a reason. Only the first reason of a group counts.
/// Returns: the first reason, which may be that of another rank. If the store has ended, `reason`
std::string announce_failure(const Group& group, const std::string& reason);

/// Returns the reason that a rank of the group published, or nothing.
std::optional<std::string> announced_failure(const Group& group);

}  // namespace bellows::comm
