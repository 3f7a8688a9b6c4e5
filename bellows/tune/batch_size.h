#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "bellows/train/recipe/recipe.h"

namespace bellows::tune {

/// One batch size that was tried.
struct BatchTrial {
  int64_t batch_size = 0;
  int64_t predicted_bytes = 0;  ///< predicted peak of the process
  int64_t peak_bytes = 0;       ///< measured peak of the process
  double samples_per_s = 0;     ///< 0 if the batch does not fit
  std::string failure{};        ///< why the batch does not fit; empty if it fits

  bool fits() const { return failure.empty(); }
};

struct BatchSearch {
  std::vector<BatchTrial> trials;
  int64_t largest = 0;  ///< largest batch size that fits; 0 if none fits
  /// Smallest batch size that reaches 95 % of the highest throughput; 0 if none fits.
  int64_t fastest = 0;
  int64_t tested_up_to = 0;  ///< no larger batch was considered
  int signal = 0;            ///< number of the signal that stopped the search, or 0
};

/// The limits of a search, and how it predicts and tries a batch size.
struct BatchSearchOptions {
  int64_t start = 1;  ///< first batch size
  int64_t most = 1;   ///< largest batch size to consider
  int64_t memory_bytes = 0;
  int64_t process_bytes = 0;                        ///< memory of a process without a step, for the first prediction
  std::function<int64_t(int64_t batch)> predict{};  ///< returns the predicted bytes of a step
  std::function<BatchTrial(int64_t batch)> measure{};
};

/// Finds the largest and the fastest batch size. The batch is doubled until the throughput grows by less than 5 %. Then
/// the predicted largest batch is tried. Each trial corrects the prediction for the next ones. The search ends when the
/// largest batch that fits and the smallest one that does not, or that is predicted not to fit, differ by at most 5 %.
/// Throws: exceptions of `predict` and `measure`
BatchSearch search_batch_sizes(const BatchSearchOptions& options);

/// Finds the largest and the fastest batch size of a recipe. Memory is predicted with train::plan_memory(), and each
/// trial is a process that takes a few steps. A process that exceeds the limit is killed.
/// Params:  folder       – files of the trials; must exist
///          command      – program that receives a recipe file and `--json FILE`, and writes the JSON of
///                         measured_batch_json(), such as {"bellows", "tune", "--measure-batch"}
///          memory_bytes – limit of the resident memory of a process
///          on_trial     – called after each trial
/// Threads: call it on the main thread before other threads start, because it blocks signals on this thread
/// Throws:  c10::ValueError if the recipe cannot be used, or its device is not the CPU; c10::Error if a trial fails for
///          another reason than memory
BatchSearch search_batch_sizes(const train::Recipe& recipe, const std::string& folder,
                               const std::vector<std::string>& command, int64_t memory_bytes,
                               const std::function<void(const BatchTrial&)>& on_trial = {});

/// Takes a few training steps in this process and returns their throughput as JSON. A recipe without data takes steps on
/// synthetic samples.
/// Throws: exceptions of train::make_job() and of training
std::string measured_batch_json(const train::Recipe& recipe);

}  // namespace bellows::tune
