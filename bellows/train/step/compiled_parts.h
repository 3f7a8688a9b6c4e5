#pragma once

#include <functional>
#include <optional>
#include <string>

#include "bellows/compile/compile.h"

namespace bellows::train {

struct Recipe;

/// The compiled functions of a training loop, as the recipe's `compile` selects: none, forward passes and evaluation,
/// or complete steps and evaluation. Parts that are not compiled run eagerly.
/// Numerics: losses of the first 12 steps are within 2e-3 of eager ones (tests/train/compiled_test.cpp)
/// Threads:  not thread-safe
class CompiledParts {
 public:
  using Body = std::function<void()>;

  explicit CompiledParts(const Recipe& recipe);

  void step(const Body& body);        ///< a complete step, starting with its first batch
  void forward(const Body& body);     ///< forward pass and loss of one batch
  void evaluation(const Body& body);  ///< forward pass of one batch, without gradients

  /// Whether complete steps are compiled. Then a step's operators run at its end, and reading a value on the host
  /// within a step splits it.
  bool has_whole_steps() const { return step_.has_value(); }
  /// Whether no compilation is running in the background.
  bool ready() const;

 private:
  using Part = Compiled<void (*)(const Body&)>;

  std::optional<Part> step_, forward_, evaluation_;
};

/// The reason why a recipe's steps cannot be compiled; "" if they can.
std::string compile_conflict(const Recipe& recipe);

}  // namespace bellows::train
