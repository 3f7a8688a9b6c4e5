#include "cli/plugin.h"

#include "bellows/models/plugin.h"
#include "cli/usable.h"

namespace bellows::cli {

void load_plugins(const std::vector<std::string>& paths) {
  for (const std::string& path : paths) usable([&] { models::load_plugin(path); });
}

}  // namespace bellows::cli
