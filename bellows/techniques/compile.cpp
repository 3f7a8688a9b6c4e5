#include "bellows/techniques/technique_rows.h"
#include "bellows/train/recipe/recipe.h"
#include "bellows/train/step/compiled_parts.h"

namespace bellows::train {

namespace {

Technique compiled_part(const std::string& part) {
  return {
      .apply =
          [part](Recipe& recipe) {
            recipe.compile = part;
            if (part != "step") recipe.memory_budget = 1;
            recipe.teacher_compile = false;  // the teacher is compiled together with the model
            // "sync" would split the step.
            if (part == "step" && recipe.train_metrics == "sync") recipe.train_metrics = "device";
          },
      .obstacle =
          [part](Recipe recipe, const Machine&) {
            recipe.compile = part;
            return compile_conflict(recipe);
          },
      .exactness = Exactness::rounding,
      .tolerance = "sums in a different order, no rounding inside a kernel: losses of the first 12 steps within 2e-3",
      .source = "torch.compile; docs/compile.md"};
}

Technique compiled_forward() {
  Technique row = compiled_part("forward");
  row.name = "compiled_forward";
  row.title = "compiled forward";
  row.changes =
      "Records the operators of forward passes and evaluation, and runs a compiled program instead. The program has "
      "generated kernels for chains of small operators, and keeps oneDNN's memory layout between convolutions. Recipe: "
      "`compile: forward`.";
  row.expected = {.time_factor = 0.95,
                  .memory_factor = 1,
                  .words =
                      "Saves the memory traffic of small operators between matmuls. Backward is not compiled, so "
                      "compiling a whole step gains more."};
  return row;
}

Technique compiled_step() {
  Technique row = compiled_part("step");
  row.name = "compiled_step";
  row.title = "compiled step";
  row.changes =
      "Records the operators of a whole step (forward, backward and update), and runs a compiled program instead. The "
      "program has generated kernels and one loop for all updates, and keeps oneDNN's memory layout between "
      "convolutions. Losses and metrics are read when they are logged. Recipe: `compile: step`.";
  row.expected = {
      .time_factor = 0.85,
      .memory_factor = 1,
      .words =
          "Saves the memory traffic of small operators. The gain is largest in convolutional networks. Following costs "
          "about 1 µs per operator, so tiny models become slower."};
  return row;
}

}  // namespace

std::vector<Technique> compile_techniques() {
  return {compiled_forward(), compiled_step()};
}

}  // namespace bellows::train
