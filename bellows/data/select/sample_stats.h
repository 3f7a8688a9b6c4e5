#pragma once

#include <string>
#include <vector>

#include "bellows/core/model.h"

namespace bellows::data {

/// Measures of a sample's difficulty. A greater value means a harder sample. A presentation is one
/// SampleStats::update() that includes the sample.
/// - forgetting: number of changes from a correct to a wrong classification. A sample that was never classified
///   correctly is the hardest (arXiv:1812.05159)
/// - el2n: distance between the probabilities and the one-hot vector of the label, averaged over all presentations
///   (arXiv:2107.07075)
/// - loss: cross-entropy, averaged over all presentations
/// - margin: the greatest logit of the other classes minus the logit of the label, averaged over all presentations
///   (arXiv:2001.10528)
/// - entropy: entropy of the probabilities at the last presentation
enum class Difficulty { forgetting, el2n, loss, margin, entropy };

/// Parses "forgetting", "el2n", "loss", "margin" or "entropy".
/// Throws: c10::ValueError if `name` is unknown (the message suggests the nearest name)
Difficulty parse_difficulty(const std::string& name);

/// Training statistics of each sample, computed from the logits of the training steps.
///
/// Samples are identified by Sample::id, so the statistics of a subset use the ids of the complete dataset.
/// Cost:    an update runs about ten small operators over [N, C] on the device of the logits and does not wait for
///          them. The results (20 bytes per sample) stay on the device until they are read or 4,096 batches are
///          pending. The host stores 64 bytes per sample of the dataset, and 8 bytes per id of a pending batch
/// Threads: use it from one thread only
/// Ref:     arXiv:1812.05159 (Toneva et al., example forgetting)
class SampleStats {
 public:
  /// Params: samples – exclusive upper bound of the ids
  /// Throws: c10::ValueError if `samples` is negative
  explicit SampleStats(int64_t samples);

  /// Adds the results of one batch.
  /// Shapes: N ids; scores [N, C], which are logits; labels [N] on the device of `scores`
  /// Throws: c10::ValueError if shapes do not match or an id is out of range. The functions below throw c10::ValueError
  ///         if a label was outside [0, C) or a logit was NaN
  void update(const std::vector<int64_t>& ids, const at::Tensor& scores, const at::Tensor& labels);

  int64_t size() const { return static_cast<int64_t>(rows_.size()); }

  // The following functions wait for the device.
  /// Returns the number of presentations of each sample.
  std::vector<int64_t> presentations();
  /// Returns how often the classification of each sample changed from correct to wrong between two presentations.
  std::vector<int64_t> forgetting_events();
  /// Returns the index of the first presentation with a correct classification, counted from 0. Returns -1 if there was
  /// none.
  std::vector<int64_t> learned_at();
  /// Returns the difficulty of each sample. The value is infinite if a sample was never presented. For `forgetting`, it
  /// is also infinite if a sample was never classified correctly.
  std::vector<double> difficulty(Difficulty by);

  /// Returns all statistics, for checkpoints and files.
  NamedTensors state();
  /// Throws: c10::ValueError if an entry of `state` is missing or is for a different number of samples
  void load_state(const NamedTensors& state);

  /// Saves state() as a safetensors file.
  /// Params: source – fingerprint() of the dataset
  void save(const std::string& path, const std::string& source);

 private:
  struct Row {
    int64_t presentations = 0, forgotten = 0, learned_at = -1, was_right = 0;
    double loss_sum = 0, margin_sum = 0, el2n_sum = 0, last_entropy = 0;
  };
  struct Seen {
    std::vector<int64_t> ids;
    at::Tensor values;  // [5, N]
  };
  void read_pending();
  static void add(Row& row, const float* values, int64_t stride);

  std::vector<Row> rows_;
  std::vector<Seen> pending_;
  int64_t unusable_ = -1;  ///< id of a sample with a NaN value, or -1
};

/// The content of a file that SampleStats::save() wrote.
struct SavedStats {
  SampleStats stats;
  std::string source;  ///< fingerprint of the dataset
};
/// Loads a file that SampleStats::save() wrote.
/// Throws: c10::ValueError if the file is missing or corrupt, if SampleStats::save() did not write it, or if its
///         version is not supported
SavedStats load_sample_stats(const std::string& path);

}  // namespace bellows::data
