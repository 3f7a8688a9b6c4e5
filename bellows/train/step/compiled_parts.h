#pragma once

#include <functional>
#include <optional>
#include <string>

#include "bellows/compile/compile.h"

namespace bellows::train {

struct Recipe;

/// The compiled functions of a training loop. The recipe's `compile` selects the compiled parts: none, forward passes
/// and evaluation, or complete steps and evaluation. All other parts run eagerly. With pipeline parallelism, all parts
/// run eagerly, because CompiledStages compiles the stages.
/// Numerics: losses of the first 12 steps differ from eager losses by less than 2e-3 (tests/train/compiled_test.cpp)
/// Threads:  not thread-safe
class CompiledParts {
 public:
  using Body = std::function<void()>;

  explicit CompiledParts(const Recipe& recipe);

  void step(const Body& body);        ///< a complete step, from its first batch
  void forward(const Body& body);     ///< forward pass and loss of one batch
  void evaluation(const Body& body);  ///< forward pass of one batch without gradients

  /// Whether complete steps are compiled. The operators of a step then run at the end of the step. If the host reads a
  /// value earlier, the step is split into several programs.
  bool has_whole_steps() const { return step_.has_value(); }
  /// Whether the background compilation of steps and forward passes has finished. Evaluation is not considered.
  bool ready() const;

 private:
  using Part = Compiled<void (*)(const Body&)>;

  std::optional<Part> step_, forward_, evaluation_;
};

/// The compiled functions of pipeline stages. The recipe's `compile` selects them: forward passes of micro-batches, or
/// forward and backward. Messages between the ranks are not part of them. All micro-batches of a stage with the same
/// sizes share their programs.
/// Numerics: like CompiledParts (tests/train/parallel/compiled_mesh_test.cpp)
/// Threads:  not thread-safe
class CompiledStages {
 public:
  using Body = CompiledParts::Body;

  explicit CompiledStages(const Recipe& recipe);

  bool on() const { return forward_.has_value(); }
  void forward(const Body& body);   ///< forward pass of one micro-batch in a stage, also in evaluation
  void backward(const Body& body);  ///< backward of one micro-batch in a stage

 private:
  std::optional<Compiled<void (*)(const Body&)>> forward_, backward_;
};

/// Returns the reason why this recipe cannot use its `compile` setting, or "" if it can.
std::string compile_conflict(const Recipe& recipe);

}  // namespace bellows::train
