#include "cli/plugin.h"

#include "bellows/core/error.h"
#include "bellows/models/plugin.h"
#include "cli/options.h"

namespace bellows::cli {

void load_plugins(const std::vector<std::string>& paths) {
  for (const std::string& path : paths) {
    try {
      models::load_plugin(path);
    } catch (const c10::Error& error) {
      throw UsageError(user_message(error));
    }
  }
}

}  // namespace bellows::cli
