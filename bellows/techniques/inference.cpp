#include <utility>

#include "bellows/techniques/inference_technique.h"
#include "bellows/techniques/technique_rows.h"

namespace bellows::train {

namespace {

/// Empty if the model runs on the CPU.
std::string cpu_obstacle(const InferenceSettings& settings) {
  return settings.recipe.device.starts_with("cpu") ? "" : "generated code runs on the CPU only";
}

InferenceTechnique inference_mode_row() {
  return {.name = "inference_mode",
          .title = "inference mode",
          .changes =
              "Runs the model under the guard `bellows::inference_mode`. Operators then record no gradients, no "
              "versions and no views.",
          .apply = [](InferenceSettings& settings) { settings.inference_mode = true; },
          .expected = {.time_factor = 0.97,
                       .memory_factor = 0.7,
                       .words = "Saves a few microseconds per operator. Activations are freed during the forward pass, "
                                "because no backward pass needs them."},
          .exactness = Exactness::exact,
          .source = "torch.inference_mode"};
}

InferenceTechnique channels_last_row() {
  return {
      .name = "channels_last",
      .title = "channels-last",
      .changes = "Stores images and the weights of convolutions in the order NHWC. Recipe: `channels_last: true`.",
      .apply = [](InferenceSettings& settings) { settings.recipe.channels_last = true; },
      .obstacle = [](const InferenceSettings& settings, const Machine&) { return pictures_obstacle(settings.recipe); },
      .expected = {.time_factor = 0.9,
                   .memory_factor = 1,
                   .words = "Convolutions need no reordering of their inputs and outputs."},
      .exactness = Exactness::rounding,
      .tolerance = "convolutions sum in a different order: relative 1e-5 per layer in fp32",
      .source = "PyTorch tutorial \"Channels Last Memory Format\""};
}

/// Params: fast – Machine::has_fast_bf16()
Expectation bf16_expectation(bool fast) {
  if (!fast)
    return {.time_factor = 1,
            .memory_factor = 0.6,
            .words =
                "Weights take half the memory. On this processor, matmuls are not faster in bf16 than in fp32, so "
                "compiled functions compute them in fp32."};
  return {.time_factor = 0.7,
          .memory_factor = 0.6,
          .words =
              "Matmuls run up to 2× faster than in fp32 (more with AMX), and weights take half the memory. On "
              "Intel processors without AMX, they are not faster."};
}

InferenceTechnique bf16_row() {
  return {
      .name = "bf16",
      .title = "bf16",
      .changes =
          "Stores the weights in bf16, except those of norm layers, and runs convolutions and matmuls in bf16. It is "
          "`--dtype bf16` of `bellows evaluate` and `bellows predict`. On a CPU, it needs bf16 instructions.",
      .apply =
          [](InferenceSettings& settings) {
            settings.recipe.precision = "bf16";
            settings.recipe.amp_level = "O2";
          },
      .obstacle = [](const InferenceSettings& settings,
                     const Machine& machine) { return bf16_obstacle(settings.recipe, machine); },
      .expected = bf16_expectation(true),
      .expected_on = [](const Machine& machine) { return bf16_expectation(machine.has_fast_bf16()); },
      .exactness = Exactness::lossy,
      .tolerance = "8 bits of mantissa in matmuls, fp32 sums: relative 1e-2 in logits",
      .source = "arXiv:1905.12322 (bfloat16)"};
}

InferenceTechnique compiled_row() {
  return {
      .name = "compiled",
      .title = "compiled",
      .changes =
          "Compiles the forward pass with frozen weights: `compile(f, {.frozen = model})`, or `--compile` of `bellows "
          "evaluate` and `bellows predict`.",
      .apply =
          [](InferenceSettings& settings) {
            settings.compile = true;
            settings.inference_mode = true;  // programs with frozen weights record no gradients
          },
      .obstacle = [](const InferenceSettings& settings, const Machine&) { return cpu_obstacle(settings); },
      .expected = {.time_factor = 0.8,
                   .memory_factor = 1,
                   .words = "Chains of small operators become one kernel. Weights and activations stay in oneDNN's "
                            "memory layout between convolutions and matmuls."},
      .exactness = Exactness::rounding,
      .tolerance = "sums in a different order, no rounding inside a kernel",
      .source = "torch.compile with freezing; docs/compile.md"};
}

std::string int8_obstacle(const InferenceSettings& settings, const Machine&) {
  return settings.int8 ? "the layers are int8 already" : cpu_obstacle(settings);
}

void use_int8(InferenceSettings& settings) {
  settings.int8 = settings.compile = settings.inference_mode = true;
  settings.recipe.precision = "fp32";  // of the operators between int8 layers
  settings.recipe.amp_level = "O1";
}

InferenceTechnique int8_row() {
  return {
      .name = "int8",
      .title = "static int8",
      .changes =
          "Quantizes convolutions and linears to int8 weights and activations (`bellows quantize`), and compiles the "
          "forward pass. Training samples are the calibration data. All other operators compute in fp32.",
      .apply = use_int8,
      .obstacle = int8_obstacle,
      .expected = {.time_factor = 0.5,
                   .memory_factor = 0.5,
                   .words = "Weights take a quarter of the bytes of fp32. Processors with VNNI multiply 8-bit "
                            "integers up to 4× faster than fp32 numbers."},
      .exactness = Exactness::lossy,
      .tolerance = "8-bit weights and activations",
      .source = "arXiv:1712.05877; docs/quantization.md"};
}

InferenceTechnique mixed_int8_row() {
  return {.name = "mixed_int8",
          .title = "mixed int8",
          .changes =
              "Quantizes to int8, but keeps the layers with the largest errors in floating point until the accuracy is "
              "high enough (`bellows quantize --max-drop`). It is measured only if int8 in all layers loses too much "
              "accuracy.",
          .apply =
              [](InferenceSettings& settings) {
                use_int8(settings);
                settings.keep_sensitive_layers = true;
              },
          .obstacle = int8_obstacle,
          .expected = {.time_factor = 0.6,
                       .memory_factor = 0.6,
                       .words = "Most of the speed of int8, because few layers cause most of the error."},
          .exactness = Exactness::lossy,
          .tolerance = "8-bit weights and activations in most layers",
          .is_correction = true,
          .source = "arXiv:1905.12334 (mixed precision by sensitivity)"};
}

}  // namespace

void register_inference_techniques(Registry<InferenceTechnique>& registry) {
  for (auto row : {inference_mode_row, channels_last_row, bf16_row, compiled_row, int8_row, mixed_int8_row}) {
    registry.add(row());
  }
}

std::string techniques_page(const Registry<InferenceTechnique>& registry) {
  std::string page =
      "# Techniques for inference\n\n`bellows ladder --inference` measures these techniques on your model, in this "
      "order. It keeps a technique only if the model is faster and the accuracy holds.\n";
  for (const InferenceTechnique& row : registry.rows()) page += technique_section(row);
  return page;
}

}  // namespace bellows::train
