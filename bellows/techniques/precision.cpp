#include "bellows/techniques/technique_rows.h"
#include "bellows/train/recipe/recipe.h"

namespace bellows::train {

namespace {

/// Empty where bf16 products are faster than emulated ones.
std::string bf16_obstacle(const Recipe& recipe, const Machine& machine) {
  if (has_bf16_arithmetic(machine) || !recipe.device.starts_with("cpu")) return "";
  return "this processor has no bfloat16 arithmetic (AMX-BF16, AVX512-BF16): it would be emulated";
}

Technique bf16_autocast() {
  return {
      .name = "bf16_autocast",
      .title = "bf16 autocast",
      .changes =
          "Runs convolutions and matrix products in bfloat16, and what needs the range or the precision in fp32. "
          "Weights and optimizer state stay fp32; no loss scaling is needed.",
      .apply = [](Recipe& recipe) { recipe.precision = "bf16"; },
      .obstacle = bf16_obstacle,
      .expected = {.time_factor = 0.7,
                   .memory_factor = 0.8,
                   .words =
                       "Matrix products run at twice the rate of fp32 or better, activations take half; casts cost, so "
                       "small layers may lose."},
      .exactness = Exactness::lossy,
      .tolerance = "8 bits of mantissa in products, fp32 sums: relative 1e-2 in logits",
      .saves_memory = true,
      .source = "arXiv:1710.03740 (mixed precision), arXiv:1905.12322 (bfloat16)"};
}

Technique bf16_weights() {
  return {
      .name = "bf16_weights",
      .title = "bf16 weights (O2)",
      .changes =
          "Keeps weights and gradients in bfloat16, norms in fp32, and fp32 master weights in the optimizer; "
          "the forward pass stays under autocast.",
      .apply =
          [](Recipe& recipe) {
            recipe.precision = "bf16";
            recipe.precision_level = "O2";
          },
      .obstacle = bf16_obstacle,
      .expected = {.time_factor = 0.9,
                   .memory_factor = 1.0,
                   .words = "Saves the casts of the weights and half of the gradients' traffic; master weights cost "
                            "what the smaller weights save."},
      .exactness = Exactness::lossy,
      .tolerance = "gradients of weights are rounded to 8 bits of mantissa",
      .saves_memory = true,
      .source = "apex.amp opt_level O2; arXiv:1710.03740"};
}

}  // namespace

bool has_bf16_arithmetic(const Machine& machine) {
  return machine.has("amx_bf16") || machine.has("avx512_bf16") || machine.has("bf16");
}

std::vector<Technique> precision_techniques() {
  return {bf16_autocast(), bf16_weights()};
}

}  // namespace bellows::train
