#pragma once

#include <string>
#include <vector>

namespace bellows::cli {

/// Loads the plugins that the command line lists, and registers their models.
/// Throws: UsageError if a plugin cannot be loaded. The message states the reason, for example that the plugin was
///         built with different versions of Bellows or libtorch
void load_plugins(const std::vector<std::string>& paths);

}  // namespace bellows::cli
