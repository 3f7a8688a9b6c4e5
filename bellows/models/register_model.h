#pragma once

// BELLOWS_MODEL: a model of the user's own, by name, for the `bellows` command and for recipes.

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>

#include "bellows/models/plugin.h"
#include "bellows/models/registry.h"

namespace bellows::models {

/// What a list of models says about one.
struct ModelNotes {
  std::string description = "a model of the user's";
  std::array<int64_t, 3> input_shape = {0, 0, 0};  ///< channels, height, width; 0: whatever the data have
  InputKind input = InputKind::image;              ///< tokens, series: input_shape as ModelEntry's
  OutputKind output = OutputKind::sample;
};

namespace detail {

template <class Net>
struct ModuleOf {
  using type = Net;
};
template <class Holder>
requires requires {
  typename Holder::ContainedType;
}
struct ModuleOf<Holder> {
  using type = typename Holder::ContainedType;
};

template <class Net>
Model make_registered(const std::string& name, int64_t num_classes, int64_t in_channels) {
  using Module = typename ModuleOf<Net>::type;
  if constexpr (std::is_constructible_v<Module, int64_t, int64_t>) {
    return Model::of(std::make_shared<Module>(num_classes, in_channels), name);
  } else if constexpr (std::is_constructible_v<Module, int64_t>) {
    return Model::of(std::make_shared<Module>(num_classes), name);
  } else {
    static_assert(std::is_default_constructible_v<Module>,
                  "BELLOWS_MODEL: expected a constructor that takes (int64_t num_classes, int64_t in_channels), "
                  "(int64_t num_classes) or nothing");
    return Model::of(std::make_shared<Module>(), name);
  }
}

template <class Net>
bool announce(const std::string& name, const ModelNotes& notes) {
  announce_model({name, notes.description, notes.input_shape,
                  [name](int64_t num_classes, int64_t in_channels) {
                    return make_registered<Net>(name, num_classes, in_channels);
                  },
                  notes.input, notes.output});
  return true;
}

}  // namespace detail

}  // namespace bellows::models

#define BELLOWS_JOINED_(a, b) a##b
#define BELLOWS_JOINED(a, b) BELLOWS_JOINED_(a, b)

/// models::load_plugin() looks for this in a file before any of the file's code runs.
extern "C" {
[[gnu::used, gnu::visibility("default")]] inline constexpr char bellows_plugin_abi[] =
    BELLOWS_PLUGIN_ABI_MARK BELLOWS_PLUGIN_ABI;
}

/// Registers a torch::nn module, or its holder, as a model: at namespace scope, in a source file of the program or of
/// a plugin (`bellows train --plugin libmynet.so`).
/// ```
/// struct MyNetImpl : torch::nn::Module {
///   MyNetImpl(int64_t num_classes, int64_t in_channels);   // or (num_classes), or ()
///   at::Tensor forward(const at::Tensor& x);
/// };
/// TORCH_MODULE(MyNet);
/// BELLOWS_MODEL("mynet", MyNet);
/// BELLOWS_MODEL("wide", Wide, .description = "twice as wide", .input_shape = {3, 32, 32});
/// ```
/// This is a static object. That is safe where the linker takes the whole source file: in a program's own sources and
/// in a plugin. From a static library the linker takes only files that somebody calls, and the object would vanish
/// without a word; there, call models::register_model() from a function.
/// Params: name – a text literal: the recipe's `model`
///         Net – a class derived from torch::nn::Module with `at::Tensor forward(at::Tensor)`, or its TORCH_MODULE
///         … – members of models::ModelNotes
#define BELLOWS_MODEL(name, Net, ...)                                              \
  [[maybe_unused]] static const bool BELLOWS_JOINED(bellows_model_, __COUNTER__) = \
      ::bellows::models::detail::announce<Net>(name, ::bellows::models::ModelNotes{__VA_ARGS__})
