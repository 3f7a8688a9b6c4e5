#include "bench/accuracy/tasks.h"

#include <ATen/ops/cat.h>

#include <algorithm>
#include <vector>

#include "bellows/data/dataset.h"
#include "bellows/models/distilbert.h"
#include "bellows/models/resnet.h"

namespace bellows::bench {

namespace {

constexpr int64_t words = 4096, piece_length = 64;

Texts read_digits(const std::string& folder, const std::string& split) {
  std::vector<at::Tensor> images, labels;
  auto loader = data::open(folder, {.split = split}).normalize().batch(256).loader();
  for (const auto& batch : loader.epoch(0)) {
    images.push_back(batch["image"].clone());
    labels.push_back(batch["label"].clone());
  }
  return {at::cat(images), at::cat(labels)};
}

Model make_text_model() {
  return models::distilbert({.num_labels = 4,
                             .vocab_size = words,
                             .dim = 128,
                             .n_layers = 2,
                             .n_heads = 4,
                             .hidden_dim = 512,
                             .max_position_embeddings = piece_length});
}

}  // namespace

AccuracyTask digits_task(const Options& options, int64_t epochs) {
  return {.title = "ResNet on the digits",
          .make = [] { return models::digits_resnet(); },
          .train = read_digits(options.data, "train"),
          .held_out = read_digits(options.data, "test"),
          .epochs = epochs,
          .lr = 3e-3};
}

AccuracyTask text_task(const Options& options, int64_t epochs) {
  const ManualPages pages = read_manual_pages(options.extra.at("pages"), words, piece_length, options.quick ? 1 : 2);
  return {.title = "DistilBERT on " + std::to_string(pages.train.labels.size(0)) + " pieces of manual pages",
          .make = make_text_model,
          .train = pages.train,
          .held_out = pages.held_out,
          .epochs = epochs,
          .lr = 1e-3};
}

double rate_at(double highest, double done) {
  return highest * std::min(1.0, 10 * done + 0.1) * (1 - done);
}

}  // namespace bellows::bench
