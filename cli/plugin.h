#pragma once

#include <string>
#include <vector>

namespace bellows::cli {

/// Loads the plugins of a command line, so that their models can be asked for.
/// Throws: UsageError – one that cannot be loaded: what it is, or what it was built with
void load_plugins(const std::vector<std::string>& paths);

}  // namespace bellows::cli
