#pragma once

#include <torch/headeronly/version.h>

#include <cstddef>
#include <string>
#include <vector>

#include "bellows/core/version.h"

#define BELLOWS_TEXT_OF_(x) #x
#define BELLOWS_TEXT_OF(x) BELLOWS_TEXT_OF_(x)
/// The versions that a plugin and the program that loads it must have in common. In the plugin's file, they follow the
/// mark BELLOWS_PLUGIN_ABI_MARK.
#define BELLOWS_PLUGIN_ABI                                                                                         \
  "Bellows " BELLOWS_VERSION                                                                                       \
  ", libtorch " BELLOWS_TEXT_OF(TORCH_VERSION_MAJOR) "." BELLOWS_TEXT_OF(TORCH_VERSION_MINOR) "." BELLOWS_TEXT_OF( \
      TORCH_VERSION_PATCH) ", libstdc++ ABI " BELLOWS_TEXT_OF(_GLIBCXX_USE_CXX11_ABI)
#define BELLOWS_PLUGIN_ABI_MARK "bellows-plugin-abi: "
/// A mark in the library's code. If a plugin contains it, the plugin was linked with a copy of the library.
#define BELLOWS_LIBRARY_MARK "bellows-models-library"

namespace bellows::models {

/// Loads a shared library that you have written. Its BELLOWS_MODEL lines (register_model.h) register models, which you
/// then use like built-in models. Build the plugin with the same versions of Bellows and libtorch as the program that
/// loads it. The plugin must use the program's copy of Bellows, not its own. In CMake, write
/// `add_library(mynet MODULE mynet.cpp)` and `target_link_libraries(mynet PRIVATE bellows::plugin)`.
/// The plugin stays loaded until the process ends. Loading it again has no effect.
/// Params:  path – path of the file. System folders are not searched, even if the path has no slash
/// Returns: the names of the models in the plugin
/// Threads: do not call it while another thread reads registry()
/// Throws:  c10::ValueError if the file does not exist, is not a plugin, was built with other versions (the message
///          states both), contains a copy of Bellows, or registers no model. It is also thrown if the dynamic linker
///          reports an error
std::vector<std::string> load_plugin(const std::string& path);

}  // namespace bellows::models
