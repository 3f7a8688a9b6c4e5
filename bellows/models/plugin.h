#pragma once

#include <torch/headeronly/version.h>

#include <cstddef>
#include <string>
#include <vector>

#include "bellows/core/version.h"

#define BELLOWS_TEXT_OF_(x) #x
#define BELLOWS_TEXT_OF(x) BELLOWS_TEXT_OF_(x)
/// The versions that a plugin and the program that loads it must have in common. In a plugin's file, the mark precedes
/// them.
#define BELLOWS_PLUGIN_ABI                                                                                         \
  "Bellows " BELLOWS_VERSION                                                                                       \
  ", libtorch " BELLOWS_TEXT_OF(TORCH_VERSION_MAJOR) "." BELLOWS_TEXT_OF(TORCH_VERSION_MINOR) "." BELLOWS_TEXT_OF( \
      TORCH_VERSION_PATCH) ", libstdc++ ABI " BELLOWS_TEXT_OF(_GLIBCXX_USE_CXX11_ABI)
#define BELLOWS_PLUGIN_ABI_MARK "bellows-plugin-abi: "
/// A mark in the library's code. A plugin that contains it was linked with a copy of the library.
#define BELLOWS_LIBRARY_MARK "bellows-models-library"

namespace bellows::models {

/// Loads a shared library of the user. Its BELLOWS_MODEL lines (register_model.h) register models like the built-in
/// ones. The plugin must be built with the same versions of Bellows and libtorch, and must use the Bellows of the
/// program that loads it. In CMake: `add_library(mynet MODULE mynet.cpp)` and `target_link_libraries(mynet PRIVATE
/// bellows::plugin)`. It stays loaded until the process ends; loading it again does nothing.
/// Params:  path – also without a slash, the file itself: system folders are not searched
/// Returns: the names of the models in the plugin
/// Threads: not while another thread reads registry()
/// Throws:  c10::ValueError if the file does not exist, is not a plugin, was built with other versions (the message has
///          both), contains a copy of Bellows or registers no model; errors of the dynamic linker
std::vector<std::string> load_plugin(const std::string& path);

}  // namespace bellows::models
