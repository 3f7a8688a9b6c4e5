#include "bellows/models/plugin.h"

#include <dlfcn.h>

#include <filesystem>

#include "bellows/core/error.h"
#include "bellows/io/bytes.h"
#include "bellows/models/registry.h"
#include "bellows/system/file.h"

namespace bellows::models {

namespace {

/// Returns the text after BELLOWS_PLUGIN_ABI_MARK in the file; "" if there is none. Skips marks without text, such as
/// the one in this function.
std::string abi_in(std::string_view bytes) {
  constexpr std::string_view mark = BELLOWS_PLUGIN_ABI_MARK;
  for (size_t at = bytes.find(mark); at != std::string_view::npos; at = bytes.find(mark, at + 1)) {
    const std::string_view rest = bytes.substr(at + mark.size());
    if (const std::string_view abi = rest.substr(0, rest.find('\0')); !abi.empty()) return std::string(abi);
  }
  return "";
}

/// Checks the file before any of its code runs.
void check_plugin_file(const std::string& path) {
  const MappedFile file(path);
  const std::string_view bytes = io::as_text(file.bytes());
  TORCH_CHECK_VALUE(bytes.starts_with("\x7f"
                                      "ELF"),
                    "load_plugin: ", path, " is not a shared library. Build it with add_library(… MODULE …).");
  const std::string abi = abi_in(bytes);
  TORCH_CHECK_VALUE(!abi.empty(), "load_plugin: ", path,
                    " is not a plugin: no model in it was registered with "
                    "BELLOWS_MODEL (bellows/models/register_model.h).");
  TORCH_CHECK_VALUE(abi == BELLOWS_PLUGIN_ABI, "load_plugin: ", path, " was built with ", abi, ", but this program is ",
                    BELLOWS_PLUGIN_ABI, ". Build the plugin again with the package of this program.");
  TORCH_CHECK_VALUE(bytes.find(BELLOWS_LIBRARY_MARK) == std::string::npos, "load_plugin: ", path,
                    " contains a copy of Bellows, so the program would not find its models. Link the plugin with "
                    "bellows::plugin instead of other targets of Bellows.");
}

}  // namespace

std::vector<std::string> load_plugin(const std::string& path) {
  const size_t before = registry().rows().size();
  check_plugin_file(path);
  const std::string absolute = std::filesystem::absolute(path).string();
  if (void* loaded = dlopen(absolute.c_str(), RTLD_NOW | RTLD_NOLOAD)) {
    dlclose(loaded);  // only decrements the reference count; the plugin stays loaded
    return {};
  }
  if (!dlopen(absolute.c_str(), RTLD_NOW | RTLD_LOCAL)) {
    const char* words = dlerror();
    TORCH_CHECK_VALUE(false, "load_plugin: ", words ? words : path.c_str(),
                      ". A plugin uses the symbols of Bellows in the program that loads it. Such a program must link "
                      "bellows::cli, as the `bellows` command does.");
  }
  const std::vector<std::string> names = registry().names();
  TORCH_CHECK_VALUE(names.size() > before, "load_plugin: ", path, " registered no model. Add a BELLOWS_MODEL line.");
  return {names.begin() + static_cast<std::ptrdiff_t>(before), names.end()};
}

}  // namespace bellows::models
