#pragma once

#include <functional>
#include <optional>
#include <string>

#include "bellows/compile/compile.h"

namespace bellows::train {

struct Recipe;

/// The parts of a training loop that are compiled functions, as the recipe's `compile` says: none, forward passes and evaluation, or whole
/// steps and evaluation. A part that is not runs plainly.
/// Numerics: losses of the first 12 steps within 2e-3 of plain ones (tests/train/compiled_test.cpp)
/// Threads:  one owner
class CompiledParts {
 public:
  using Body = std::function<void()>;

  explicit CompiledParts(const Recipe& recipe);

  void step(const Body& body);        ///< a whole step, from its first batch on
  void forward(const Body& body);     ///< forward pass and loss of one batch
  void evaluation(const Body& body);  ///< forward pass of one batch, without gradients

  /// A step's operators run when it ends: a value that the host looks at inside of it cuts it in two.
  bool has_whole_steps() const { return step_.has_value(); }
  /// Nothing is being made faster in the background.
  bool ready() const;

 private:
  using Part = Compiled<void (*)(const Body&)>;

  std::optional<Part> step_, forward_, evaluation_;
};

/// Why a recipe's steps cannot be compiled as it says; "" – they can.
std::string compile_conflict(const Recipe& recipe);

}  // namespace bellows::train
