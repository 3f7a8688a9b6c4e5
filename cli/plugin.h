#pragma once

#include <string>
#include <vector>

namespace bellows::cli {

/// Loads the plugins of a command line and registers their models.
/// Throws: UsageError if a plugin cannot be loaded (the message has the reason, such as the versions it was built with)
void load_plugins(const std::vector<std::string>& paths);

}  // namespace bellows::cli
