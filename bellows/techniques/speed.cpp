#include <algorithm>

#include "bellows/data/loader/loader.h"
#include "bellows/models/registry.h"
#include "bellows/techniques/technique_rows.h"
#include "bellows/train/recipe/recipe.h"

namespace bellows::train {

namespace {

constexpr int64_t least_cache_mb = 1024;

Technique threaded_loader() {
  return {
      .name = "threaded_loader",
      .title = "threaded loader",
      .changes =
          "Reads, decodes and normalises the next batches in threads of their own while the model computes: as many as "
          "help, while the run goes on. The order of samples depends on seed and epoch only, whatever the number of "
          "threads.",
      .apply =
          [](Recipe& recipe) {
            recipe.loader_threads = data::LoaderOptions::kAuto;
            recipe.prefetch = std::max<int64_t>(4, recipe.prefetch);
          },
      .expected =
          {.time_factor = 0.8,
           .memory_factor = 1.02,
           .words = "A step loses the time of loading, up to the share that runs beside the model; `prefetch` batches "
                    "more are held."},
      .exactness = Exactness::exact,
      .is_about_loading = true,
      .source = "torch.utils.data.DataLoader; arXiv:2306.12517 (FFCV)"};
}

Technique decoded_cache() {
  return {
      .name = "decoded_cache",
      .title = "decoded cache",
      .changes =
          "Keeps decoded pictures in memory, as they are before the first random step, so that from the second epoch "
          "on "
          "nothing is read and decoded.",
      .apply = [](Recipe& recipe) { recipe.cache_mb = std::max(least_cache_mb, recipe.cache_mb); },
      .obstacle = [](const Recipe& recipe, const Machine& machine) -> std::string {
        if (std::string words = pictures_obstacle(recipe); !words.empty()) return words;
        const int64_t free_mb = machine.memory_available_bytes >> 20;
        return machine.memory_available_bytes == 0 || free_mb > 2 * least_cache_mb
                   ? ""
                   : c10::str("a cache of ", least_cache_mb, " MiB is more than half of the ", free_mb,
                              " MiB that are free");
      },
      .expected = {.time_factor = 0.97,
                   .memory_factor = 1.1,
                   .words =
                       "A step loses the time of reading and decoding as far as the model waits for it; up to 1 GiB "
                       "of pictures is held."},
      .exactness = Exactness::exact,
      .is_about_loading = true,
      .source = "FFCV's and DALI's decoded caches; arXiv:2007.06775 (CoorDL)"};
}

Technique kept_memory() {
  return {
      .name = "kept_memory",
      .title = "kept memory",
      .changes =
          "The process keeps the memory that tensors free and gives it to the next ones, instead of returning it to "
          "the system and paying for fresh, zeroed pages in every step.",
      .apply = [](Recipe& recipe) { recipe.keep_freed_memory = true; },
      .obstacle = [](const Recipe& recipe, const Machine&) -> std::string {
        return recipe.device.starts_with("cpu") ? "" : "the accelerator's allocator keeps its memory anyway";
      },
      .expected = {.time_factor = 0.9,
                   .memory_factor = 1,
                   .words = "Saves about 0.25 µs for each 4 KiB of activations; the process stays as large as it "
                            "ever was."},
      .exactness = Exactness::exact,
      .source = "mallopt(3); PyTorch tutorial \"Performance Tuning Guide\" (jemalloc, TCMalloc)"};
}

Technique channels_last() {
  return {.name = "channels_last",
          .title = "channels-last",
          .changes =
              "Keeps images and convolution weights in the order batch, height, width, channel, which convolution and "
              "batch-normalisation kernels read without reordering.",
          .apply = [](Recipe& recipe) { recipe.channels_last = true; },
          .obstacle = [](const Recipe& recipe, const Machine&) { return pictures_obstacle(recipe); },
          .expected = {.time_factor = 0.9,
                       .memory_factor = 1,
                       .words = "Saves the reorders around each convolution; nothing in models without convolutions."},
          .exactness = Exactness::rounding,
          .tolerance = "convolutions sum in another order: relative 1e-5 a layer in fp32",
          .source = "PyTorch tutorial \"Channels Last Memory Format\""};
}

Technique foreach_optimizer() {
  return {.name = "foreach_optimizer",
          .title = "foreach optimizer",
          .changes =
              "Updates all parameters with a few operators over lists of tensors instead of a dozen operators for each "
              "parameter.",
          .apply = [](Recipe& recipe) { recipe.optimizer_impl = "foreach"; },
          .expected = {.time_factor = 0.95,
                       .memory_factor = 1,
                       .words = "Saves 0.5 to 1 µs an operator; most with many small parameters."},
          .exactness = Exactness::rounding,
          .tolerance = "none for SGD; others round products and roots otherwise: relative 1e-6 a step in fp32",
          .source = "torch.optim, argument foreach"};
}

Technique fused_optimizer() {
  return {.name = "fused_optimizer",
          .title = "fused optimizer",
          .changes =
              "Updates each parameter and its state in one sweep over memory, all parameters in one parallel region.",
          .apply = [](Recipe& recipe) { recipe.optimizer_impl = "fused"; },
          .expected = {.time_factor = 0.9,
                       .memory_factor = 1,
                       .words = "The step reads and writes every number once instead of once an operator: 2 to 3 times "
                                "faster than the loop on a CPU, so it shows where the optimizer is a large share."},
          .exactness = Exactness::rounding,
          .tolerance = "single operations round differently: relative 1e-6 a step in fp32",
          .source = "torch.optim, argument fused; apex FusedAdam"};
}

Technique device_metrics() {
  return {.name = "device_metrics",
          .title = "sync-free metrics",
          .changes =
              "Counts loss and training accuracy on the device and reads them when they are shown, instead of "
              "after every step.",
          .apply = [](Recipe& recipe) { recipe.train_metrics = "device"; },
          .obstacle = [](const Recipe& recipe, const Machine&) -> std::string {
            return recipe.train_metrics == "none" ? "the recipe measures nothing while it trains (train_metrics: none)"
                                                  : "";
          },
          .expected = {.time_factor = 0.99,
                       .memory_factor = 1,
                       .words = "On an accelerator the host no longer waits in each step; on a CPU nothing waits, and "
                                "little changes."},
          .exactness = Exactness::exact,
          .source = "torchmetrics"};
}

Technique length_buckets() {
  return {
      .name = "length_buckets",
      .title = "length buckets",
      .changes =
          "Puts texts of similar length into one batch, so that few of its places hold padding, which costs as much "
          "as tokens do. The sequence of the batches stays random.",
      .apply = [](Recipe& recipe) { recipe.length_buckets = true; },
      .obstacle = [](const Recipe& recipe, const Machine&) { return texts_obstacle(recipe); },
      .expected = {.time_factor = 0.7,
                   .memory_factor = 1,
                   .words = "A step loses the share of places that are empty, of texts of mixed length about half; "
                            "nothing where all are cut to one length. All texts are tokenized once before the run."},
      .exactness = Exactness::lossy,
      .tolerance = "the same samples once an epoch, in other company: another trajectory",
      .source = "torchtext.data.BucketIterator; tf.data.Dataset.bucket_by_sequence_length"};
}

/// Files that are models say nothing: they read pictures.
models::InputKind input_of(const Recipe& recipe) {
  const models::ModelEntry* entry = models::registry().find(recipe.model);
  if (entry) return entry->input;
  return recipe.model.ends_with(".json") ? models::InputKind::tokens : models::InputKind::image;
}

}  // namespace

std::string pictures_obstacle(const Recipe& recipe) {
  return input_of(recipe) == models::InputKind::image ? "" : "the model " + recipe.model + " reads no pictures";
}

std::string texts_obstacle(const Recipe& recipe) {
  return input_of(recipe) == models::InputKind::tokens ? "" : "the model " + recipe.model + " reads no texts";
}

std::vector<Technique> speed_techniques() {
  return {threaded_loader(), decoded_cache(),     length_buckets(),  kept_memory(),
          channels_last(),   foreach_optimizer(), fused_optimizer(), device_metrics()};
}

}  // namespace bellows::train
