#pragma once

#include <string>
#include <vector>

#include "bellows/core/model.h"

namespace bellows::data {

/// Measures of a sample's difficulty. A greater value means a harder sample.
/// - forgetting: number of changes from a right to a wrong classification; a sample that was never right is hardest
///   (arXiv:1812.05159)
/// - el2n: distance of the probabilities from the label's one-hot vector, mean over its presentations
///   (arXiv:2107.07075)
/// - loss: cross-entropy, mean over its presentations
/// - margin: the greatest other logit minus the label's logit, mean over its presentations (arXiv:2001.10528)
/// - entropy: of the probabilities at the last presentation
enum class Difficulty { forgetting, el2n, loss, margin, entropy };

/// Parses "forgetting", "el2n", "loss", "margin" or "entropy".
/// Throws: c10::ValueError if `name` is unknown (the message suggests the nearest name)
Difficulty parse_difficulty(const std::string& name);

/// Training statistics of each sample, computed from the logits of the training steps.
///
/// A presentation is one update that includes the sample. Samples are identified by Sample::id, so the statistics of a
/// subset use the ids of the whole dataset.
/// Cost:    an update runs about ten small operators over [N, C] on the logits' device and does not wait for them. The
///          results stay there, 20 bytes per sample, until they are read or 4,096 batches are pending. 68 bytes per
///          sample on the host
/// Threads: one owner
/// Ref:     arXiv:1812.05159 (Toneva et al., example forgetting)
class SampleStats {
 public:
  /// Params: samples – ids are in [0, samples)
  explicit SampleStats(int64_t samples);

  /// Adds the results of one batch.
  /// Shapes: N ids, scores [N, C]: logits, labels [N] on the same device
  /// Throws: c10::ValueError if shapes do not match or an id is out of range; reading throws it if a label was outside
  ///         [0, C) or a logit was NaN
  void update(const std::vector<int64_t>& ids, const at::Tensor& scores, const at::Tensor& labels);

  int64_t size() const { return static_cast<int64_t>(rows_.size()); }

  // Reading waits for the device.
  /// Number of presentations of each sample.
  std::vector<int64_t> presentations();
  /// Number of times that each sample changed from right to wrong between two presentations.
  std::vector<int64_t> forgetting_events();
  /// The index, from 0, of the first presentation with a right classification; -1: never.
  std::vector<int64_t> learned_at();
  /// Infinite for `forgetting` if a sample was never right, and for all measures if it was never presented.
  std::vector<double> difficulty(Difficulty by);

  /// All statistics, for checkpoints and files.
  NamedTensors state();
  /// Throws: c10::ValueError if a name or the number of samples does not match
  void load_state(const NamedTensors& state);

  /// Saves state() as a safetensors file.
  /// Params: source – data::fingerprint of the dataset
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
  int64_t unusable_ = -1;  ///< a sample with a NaN value
};

/// The content of a file that SampleStats::save wrote.
struct SavedStats {
  SampleStats stats;
  std::string source;  ///< the dataset's fingerprint
};
/// Throws: c10::ValueError if the file is missing, corrupt or of another kind
SavedStats load_sample_stats(const std::string& path);

}  // namespace bellows::data
