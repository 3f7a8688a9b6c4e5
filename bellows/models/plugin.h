#pragma once

#include <torch/headeronly/version.h>

#include <cstddef>
#include <string>
#include <vector>

#include "bellows/core/version.h"

#define BELLOWS_TEXT_OF_(x) #x
#define BELLOWS_TEXT_OF(x) BELLOWS_TEXT_OF_(x)
/// What a plugin and the program that loads it must have in common. The mark stands before it in a plugin's file.
#define BELLOWS_PLUGIN_ABI                                                                                         \
  "Bellows " BELLOWS_VERSION                                                                                       \
  ", libtorch " BELLOWS_TEXT_OF(TORCH_VERSION_MAJOR) "." BELLOWS_TEXT_OF(TORCH_VERSION_MINOR) "." BELLOWS_TEXT_OF( \
      TORCH_VERSION_PATCH) ", libstdc++ ABI " BELLOWS_TEXT_OF(_GLIBCXX_USE_CXX11_ABI)
#define BELLOWS_PLUGIN_ABI_MARK "bellows-plugin-abi: "
/// In the library's own code: a plugin that has it, too, was linked with a copy of it.
#define BELLOWS_LIBRARY_MARK "bellows-models-library"

namespace bellows::models {

/// Loads a shared library of the user's, whose BELLOWS_MODEL lines (register_model.h) then are models like any other.
/// It must be built with the same versions of Bellows and libtorch, and take Bellows from the program that loads it: in
/// CMake `add_library(mynet MODULE mynet.cpp)` and `target_link_libraries(mynet PRIVATE bellows::plugin)`. It stays
/// loaded until the process ends; loading it again does nothing.
/// Params:  path – with or without a slash: never searched for in the system's folders
/// Returns: the names of the models that came with it
/// Threads: not while another thread reads registry()
/// Throws:  c10::ValueError – no such file, no plugin, built with other versions (found, expected), with a copy of
///          Bellows inside, with no model; what the dynamic linker says
std::vector<std::string> load_plugin(const std::string& path);

}  // namespace bellows::models
