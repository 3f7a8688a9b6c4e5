#include "bellows/techniques/technique_rows.h"
#include "bellows/train/recipe/recipe.h"

namespace bellows::train {

namespace {

Technique bf16_autocast() {
  return {.name = "bf16_autocast",
          .title = "bf16 autocast",
          .changes =
              "Runs convolutions and matmuls in bf16. Operators that need a larger range or a higher precision run "
              "in fp32. Weights and optimizer state stay in fp32. No loss scaling is needed. Recipe: `precision: "
              "bf16`. On a CPU, it needs bf16 instructions.",
          .apply = [](Recipe& recipe) { recipe.precision = "bf16"; },
          .obstacle = bf16_obstacle,
          .expected = {.time_factor = 0.7,
                       .memory_factor = 0.8,
                       .words = "Matmuls run at least 2× faster than in fp32, and activations take half the memory. "
                                "Casts cost time, so small layers may become slower."},
          .exactness = Exactness::lossy,
          .tolerance = "8 bits of mantissa in matmuls, fp32 sums: relative 1e-2 in logits",
          .saves_memory = true,
          .source = "arXiv:1710.03740 (mixed precision), arXiv:1905.12322 (bfloat16)"};
}

Technique bf16_weights() {
  return {
      .name = "bf16_weights",
      .title = "bf16 weights (O2)",
      .changes =
          "Keeps weights and gradients in bf16, norms in fp32, and fp32 master weights in the optimizer. The "
          "forward pass stays under autocast. Recipe: `precision: bf16`, `amp_level: O2`. On a CPU, it needs bf16 "
          "instructions.",
      .apply =
          [](Recipe& recipe) {
            recipe.precision = "bf16";
            recipe.amp_level = "O2";
          },
      .obstacle = bf16_obstacle,
      .expected = {.time_factor = 0.9,
                   .memory_factor = 1.0,
                   .words = "Saves the casts of the weights and half of the memory traffic for gradients. The master "
                            "weights cost as much memory as the smaller weights save."},
      .exactness = Exactness::lossy,
      .tolerance = "gradients of weights are rounded to 8 bits of mantissa",
      .saves_memory = true,
      .source = "apex.amp opt_level O2; arXiv:1710.03740"};
}

}  // namespace

std::string bf16_obstacle(const Recipe& recipe, const Machine& machine) {
  if (machine.has_bf16_arithmetic() || !recipe.device.starts_with("cpu")) return "";
  return "this processor has no bfloat16 arithmetic (AMX-BF16, AVX512-BF16), so bf16 would be emulated";
}

std::vector<Technique> precision_techniques() {
  return {bf16_autocast(), bf16_weights()};
}

}  // namespace bellows::train
