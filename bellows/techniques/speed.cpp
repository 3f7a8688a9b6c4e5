#include <algorithm>

#include "bellows/data/loader/loader.h"
#include "bellows/models/registry.h"
#include "bellows/techniques/technique_rows.h"
#include "bellows/train/recipe/recipe.h"

namespace bellows::train {

namespace {

constexpr int64_t least_cache_mb = 1024;

Technique threaded_loader() {
  return {.name = "threaded_loader",
          .title = "multithreaded data loading",
          .changes =
              "Worker threads read, decode and normalize the next batches while the model computes. The number of "
              "workers adapts during the run. The order of samples depends only on seed and epoch, not on the number "
              "of workers. Recipe: `num_workers: -1`, `prefetch` at least 4.",
          .apply =
              [](Recipe& recipe) {
                recipe.num_workers = data::LoaderOptions::kAuto;
                recipe.prefetch = std::max<int64_t>(4, recipe.prefetch);
              },
          .expected = {.time_factor = 0.8,
                       .memory_factor = 1.02,
                       .words = "Loading overlaps with the computation of the model, which hides the loading time. "
                                "The loader holds `prefetch` additional batches in memory."},
          .exactness = Exactness::exact,
          .is_about_loading = true,
          .source = "torch.utils.data.DataLoader; arXiv:2306.12517 (FFCV)"};
}

Technique decoded_cache() {
  return {.name = "decoded_cache",
          .title = "decoded-image cache",
          .changes =
              "Caches decoded images in memory, before their first random transform. From the second epoch on, "
              "cached images are neither read nor decoded again. Recipe: `image_cache_mb` at least 1024. For image "
              "models. The cache needs more than 2 GiB of free memory.",
          .apply = [](Recipe& recipe) { recipe.image_cache_mb = std::max(least_cache_mb, recipe.image_cache_mb); },
          .obstacle = [](const Recipe& recipe, const Machine& machine) -> std::string {
            if (std::string words = pictures_obstacle(recipe); !words.empty()) return words;
            const int64_t free_mb = machine.memory_available_bytes >> 20;
            return machine.memory_available_bytes == 0 || free_mb > 2 * least_cache_mb
                       ? ""
                       : c10::str("a cache of ", least_cache_mb, " MiB needs more than half of the ", free_mb,
                                  " MiB of free memory");
          },
          .expected = {.time_factor = 0.97,
                       .memory_factor = 1.1,
                       .words = "Saves time if the model waits for reading and decoding. The cache holds up to 1 "
                                "GiB of images."},
          .exactness = Exactness::exact,
          .is_about_loading = true,
          .source = "FFCV's and DALI's decoded caches; arXiv:2007.06775 (CoorDL)"};
}

Technique kept_memory() {
  return {
      .name = "kept_memory",
      .title = "allocator reuse",
      .changes =
          "Freed tensor memory stays with the process and is reused, instead of being returned to the OS and faulted "
          "in again in every step. Recipe: `allocator_reuse: true`. For the CPU.",
      .apply = [](Recipe& recipe) { recipe.allocator_reuse = true; },
      .obstacle = [](const Recipe& recipe, const Machine&) -> std::string {
        return recipe.device.starts_with("cpu") ? "" : "the allocator of the accelerator already reuses its memory";
      },
      .expected = {.time_factor = 0.9,
                   .memory_factor = 1,
                   .words = "Saves about 0.25 µs for each 4 KiB of activations. The size of the process stays at its "
                            "peak."},
      .exactness = Exactness::exact,
      .source = "mallopt(3); PyTorch tutorial \"Performance Tuning Guide\" (jemalloc, TCMalloc)"};
}

Technique fast_random() {
  return {
      .name = "fast_random",
      .title = "fast random numbers",
      .changes =
          "Draws random numbers, such as the masks of dropout, with vectorized kernels. Values and generator states "
          "are bit-identical to libtorch's. Recipe: `fast_random: true`. For the CPU.",
      .apply = [](Recipe& recipe) { recipe.fast_random = true; },
      .obstacle = [](const Recipe& recipe, const Machine&) -> std::string {
        return recipe.device.starts_with("cpu") ? "" : "the accelerator draws its random numbers itself";
      },
      .expected = {.time_factor = 0.97,
                   .memory_factor = 1,
                   .words = "Saves about 8 ns for each value of a dropout mask on one core. Models that draw no random "
                            "numbers gain nothing."},
      .exactness = Exactness::exact,
      .source = "Matsumoto and Nishimura 1998, doi:10.1145/272991.272995 (MT19937)"};
}

Technique channels_last() {
  return {
      .name = "channels_last",
      .title = "channels-last",
      .changes =
          "Stores images and convolution weights in the order batch, height, width, channel. Convolution and batch "
          "normalization kernels read this layout without reordering. Recipe: `channels_last: true`. For image models.",
      .apply = [](Recipe& recipe) { recipe.channels_last = true; },
      .obstacle = [](const Recipe& recipe, const Machine&) { return pictures_obstacle(recipe); },
      .expected = {.time_factor = 0.9,
                   .memory_factor = 1,
                   .words = "Convolutions need no reordering of their inputs and outputs. Models without "
                            "convolutions gain nothing."},
      .exactness = Exactness::rounding,
      .tolerance = "convolutions sum in a different order: relative 1e-5 per layer in fp32",
      .source = "PyTorch tutorial \"Channels Last Memory Format\""};
}

Technique foreach_optimizer() {
  return {.name = "foreach_optimizer",
          .title = "foreach optimizer",
          .changes =
              "Updates all parameters with a few operators on lists of tensors, instead of a dozen operators per "
              "parameter. Recipe: `optimizer_impl: foreach`.",
          .apply = [](Recipe& recipe) { recipe.optimizer_impl = "foreach"; },
          .expected = {.time_factor = 0.95,
                       .memory_factor = 1,
                       .words = "Each operator that is no longer called saves 0.5 to 1 µs. The gain is largest with "
                                "many small parameters."},
          .exactness = Exactness::rounding,
          .tolerance =
              "bit-identical for SGD; other optimizers round products and square roots differently: relative 1e-6 per "
              "step in fp32",
          .source = "torch.optim, argument foreach"};
}

Technique fused_optimizer() {
  return {
      .name = "fused_optimizer",
      .title = "fused optimizer",
      .changes =
          "Updates each parameter and its state in one pass over memory, with all parameters in one parallel "
          "region. Recipe: `optimizer_impl: fused`.",
      .apply = [](Recipe& recipe) { recipe.optimizer_impl = "fused"; },
      .expected =
          {.time_factor = 0.9,
           .memory_factor = 1,
           .words = "The step reads and writes every number once, instead of once per operator. On a CPU it is 2× to "
                    "3× faster than the loop. The gain is visible if the optimizer takes a large share of the step."},
      .exactness = Exactness::rounding,
      .tolerance = "individual operations round differently: relative 1e-6 per step in fp32",
      .source = "torch.optim, argument fused; apex FusedAdam"};
}

Technique device_metrics() {
  return {.name = "device_metrics",
          .title = "on-device metrics",
          .changes =
              "Accumulates loss and training accuracy on the device. The host reads them when they are displayed, not "
              "after every step. Recipe: `train_metrics: device`.",
          .apply = [](Recipe& recipe) { recipe.train_metrics = "device"; },
          .obstacle = [](const Recipe& recipe, const Machine&) -> std::string {
            return recipe.train_metrics == "none" ? "the recipe has no training metrics (train_metrics: none)" : "";
          },
          .expected = {.time_factor = 0.99,
                       .memory_factor = 1,
                       .words = "On an accelerator, the host no longer waits in each step. On a CPU, there is no such "
                                "wait, so the gain is small."},
          .exactness = Exactness::exact,
          .source = "torchmetrics"};
}

Technique length_buckets() {
  return {
      .name = "length_buckets",
      .title = "length buckets",
      .changes =
          "Puts texts of similar length into one batch, so that few positions hold padding. Padding costs as much "
          "computation as tokens. The order of batches stays random. Recipe: `length_buckets: true`. For text models.",
      .apply = [](Recipe& recipe) { recipe.length_buckets = true; },
      .obstacle = [](const Recipe& recipe, const Machine&) { return texts_obstacle(recipe); },
      .expected = {.time_factor = 0.7,
                   .memory_factor = 1,
                   .words =
                       "Saves the time for padding. About half of all positions are padding if text lengths are mixed. "
                       "If all texts are cut to the same length, there is no padding. All texts are tokenized once "
                       "before the run."},
      .exactness = Exactness::lossy,
      .tolerance = "the same samples once per epoch, but in different batches: a different course of training",
      .source = "torchtext.data.BucketIterator; tf.data.Dataset.bucket_by_sequence_length"};
}

/// The kind of a model's input. Files other than config.json are assumed to read images.
models::InputKind input_of(const Recipe& recipe) {
  const models::ModelEntry* entry = models::registry().find(recipe.model);
  if (entry) return entry->input;
  if (!recipe.model.ends_with(".json")) return models::InputKind::image;
  try {
    return models::model_entry(recipe.model).input;
  } catch (const c10::Error&) {
    return models::InputKind::tokens;  // the step reports the error
  }
}

}  // namespace

std::string pictures_obstacle(const Recipe& recipe) {
  return input_of(recipe) == models::InputKind::image ? "" : "the model " + recipe.model + " does not read images";
}

std::string texts_obstacle(const Recipe& recipe) {
  return input_of(recipe) == models::InputKind::tokens ? "" : "the model " + recipe.model + " does not read texts";
}

std::vector<Technique> speed_techniques() {
  return {threaded_loader(), decoded_cache(),     length_buckets(),  kept_memory(),   fast_random(),
          channels_last(),   foreach_optimizer(), fused_optimizer(), device_metrics()};
}

}  // namespace bellows::train
