#pragma once

// BELLOWS_MODEL registers your model by name for the `bellows` command and for recipes.

#include <array>
#include <concepts>
#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "bellows/models/plugin.h"
#include "bellows/models/registry.h"

namespace bellows::models {

/// Optional description of a registered model.
struct ModelNotes {
  std::string description = "a model of the user's";
  std::array<int64_t, 3> input_shape = {0, 0, 0};  ///< channels, height and width; 0 means any size
  /// For tokens, series and arrays, input_shape has the same meaning as in ModelEntry.
  InputKind input = InputKind::image;
  OutputKind output = OutputKind::sample;
  /// Names and shapes of forward's parameters. Required if forward has several parameters.
  std::vector<InputSpec> inputs = {};
  std::vector<std::string> outputs = {"output"};  ///< names of forward's results, in order
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

template <class Module>
std::shared_ptr<Module> make_module(int64_t num_classes, int64_t in_channels) {
  if constexpr (std::is_constructible_v<Module, int64_t, int64_t>) {
    return std::make_shared<Module>(num_classes, in_channels);
  } else if constexpr (std::is_constructible_v<Module, int64_t>) {
    return std::make_shared<Module>(num_classes);
  } else {
    static_assert(std::is_default_constructible_v<Module>,
                  "BELLOWS_MODEL: expected a constructor that takes (int64_t num_classes, int64_t in_channels), "
                  "(int64_t num_classes) or nothing");
    return std::make_shared<Module>();
  }
}

template <class Net>
Model make_registered(const std::string& name, const ModelNotes& notes, int64_t num_classes, int64_t in_channels) {
  using Module = typename ModuleOf<Net>::type;
  const auto module = make_module<Module>(num_classes, in_channels);
  constexpr bool single = requires(Module & net, const at::Tensor& x) {
    { net.forward(x) } -> std::convertible_to<at::Tensor>;
  };
  if constexpr (single) {
    if (notes.inputs.empty()) return Model::of(module, name);
  } else {
    TORCH_CHECK_VALUE(!notes.inputs.empty(), "BELLOWS_MODEL(\"", name,
                      "\"): its forward takes several tensors, or returns several. Name them: .inputs = {{\"left\"}, "
                      "{\"right\"}}, .outputs = {\"distance\"}.");
  }
  std::vector<std::string> inputs;
  for (const InputSpec& input : notes.inputs) inputs.push_back(input.name);
  return Model::of(module, std::move(inputs), notes.outputs, name);
}

template <class Net>
bool announce(const std::string& name, const ModelNotes& notes) {
  announce_model({name, notes.description, notes.input_shape,
                  [name, notes](int64_t num_classes, int64_t in_channels) {
                    return make_registered<Net>(name, notes, num_classes, in_channels);
                  },
                  notes.inputs.empty() ? notes.input : InputKind::arrays, notes.output, notes.inputs});
  return true;
}

}  // namespace detail

}  // namespace bellows::models

#define BELLOWS_JOINED_(a, b) a##b
#define BELLOWS_JOINED(a, b) BELLOWS_JOINED_(a, b)

/// models::load_plugin() searches a file for this text before any of the file's code runs.
extern "C" {
[[gnu::used, gnu::visibility("default")]] inline constexpr char bellows_plugin_abi[] =
    BELLOWS_PLUGIN_ABI_MARK BELLOWS_PLUGIN_ABI;
}

/// Registers a torch::nn module, or its holder, as a model. Use this macro at namespace scope in a source file of your
/// program or plugin (`bellows train --plugin libmynet.so`).
/// ```
/// struct MyNetImpl : torch::nn::Module {
///   MyNetImpl(int64_t num_classes, int64_t in_channels);   // or (num_classes), or ()
///   at::Tensor forward(const at::Tensor& x);
/// };
/// TORCH_MODULE(MyNet);
/// BELLOWS_MODEL("mynet", MyNet);
/// BELLOWS_MODEL("wide", Wide, .description = "twice as wide", .input_shape = {3, 32, 32});
/// BELLOWS_MODEL("siamese", Siamese, .inputs = {{"left", {1, 28, 28}}, {"right", {1, 28, 28}}}, .outputs = {"scores"});
/// ```
/// The macro defines a static object. Linkers keep this object if it is in a program's own sources or in a plugin. From
/// a static library, linkers use only object files whose symbols are referenced, so they would drop the static object
/// silently. In a static library, call models::register_model() from a function instead.
/// Params: name – a string literal, which is the value of `model` in a recipe
///         Net – a class derived from torch::nn::Module with `at::Tensor forward(at::Tensor)`, or its TORCH_MODULE
///               holder. If forward has several parameters or results, set `inputs` and `outputs`
///         … – members of models::ModelNotes
#define BELLOWS_MODEL(name, Net, ...)                                              \
  [[maybe_unused]] static const bool BELLOWS_JOINED(bellows_model_, __COUNTER__) = \
      ::bellows::models::detail::announce<Net>(name, ::bellows::models::ModelNotes{__VA_ARGS__})
