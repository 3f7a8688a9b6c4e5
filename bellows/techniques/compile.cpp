#include "bellows/techniques/technique_rows.h"
#include "bellows/train/recipe/recipe.h"
#include "bellows/train/step/compiled_parts.h"

namespace bellows::train {

namespace {

Technique compiled_part(const std::string& part) {
  return {.apply =
              [part](Recipe& recipe) {
                recipe.compile = part;
                if (part == "step" && recipe.train_metrics == "sync") recipe.train_metrics = "device";  // in one piece
              },
          .obstacle =
              [part](Recipe recipe, const Machine&) {
                recipe.compile = part;
                return compile_conflict(recipe);
              },
          .exactness = Exactness::rounding,
          .tolerance =
              "sums in another order, nothing rounded inside of a kernel: losses of the first 12 steps within 2e-3",
          .source = "torch.compile; docs/compile.md"};
}

Technique compiled_forward() {
  Technique row = compiled_part("forward");
  row.name = "compiled_forward";
  row.title = "compiled forward";
  row.changes =
      "Records the operators of forward passes and evaluation, and runs what was recorded in their place: generated "
      "kernels for chains of small operators, oneDNN's own order of memory between convolutions.";
  row.expected = {.time_factor = 0.95,
                  .memory_factor = 1,
                  .words =
                      "Saves what small operators between products read and write again; backward stays as it is, "
                      "so that a whole step gains more."};
  return row;
}

Technique compiled_step() {
  Technique row = compiled_part("step");
  row.name = "compiled_step";
  row.title = "compiled step";
  row.changes =
      "Records the operators of a whole step, forward, backward and update, and runs what was recorded in their place: "
      "generated kernels, oneDNN's own order of memory between convolutions, one loop for all updates. Losses and "
      "metrics are looked at when they are logged.";
  row.expected = {.time_factor = 0.85,
                  .memory_factor = 1,
                  .words =
                      "Saves what small operators read and write again, most in networks of convolutions. Following "
                      "costs about a microsecond an operator, so that tiny models lose."};
  return row;
}

}  // namespace

std::vector<Technique> compile_techniques() {
  return {compiled_forward(), compiled_step()};
}

}  // namespace bellows::train
