#pragma once

#include <string>
#include <vector>

#include "bellows/core/model.h"

namespace bellows::data {

/// What makes a sample hard. Greater is harder.
/// - forgetting: how often it was classified wrongly after it had been right; never right is hardest (arXiv:1812.05159)
/// - el2n: distance of the probabilities from the label's one-hot vector, mean over its presentations (arXiv:2107.07075)
/// - loss: cross-entropy, mean over its presentations
/// - margin: how far the best other score lies above the label's, mean over its presentations (arXiv:2001.10528)
/// - entropy: of the probabilities when it was last seen
enum class Difficulty { forgetting, el2n, loss, margin, entropy };

/// "forgetting", "el2n", "loss", "margin", "entropy".
/// Throws: c10::ValueError – another name; says the nearest one
Difficulty parse_difficulty(const std::string& name);

/// What training showed of each sample, collected from the scores that a step computes anyway.
///
/// A presentation is one update with the sample in it. Samples are told apart by Sample::id, so a subset's count stays
/// that of the whole data set.
/// Cost:    an update is about ten small operators over [N, C] on the scores' device, and does not wait for it: what they
///          give stays there, 20 bytes a sample, until somebody reads. 68 bytes a sample on the host
/// Threads: one owner
/// Ref:     arXiv:1812.05159 (Toneva et al., example forgetting)
class SampleStats {
 public:
  /// Params: samples – ids lie in [0, samples)
  explicit SampleStats(int64_t samples);

  /// Adds one batch as a classifier saw it.
  /// Shapes: ids N, scores [N, C] before softmax, labels [N] on the scores' device
  /// Throws: c10::ValueError – shapes that do not fit, an id out of range; when read: a label outside [0, C)
  void update(const std::vector<int64_t>& ids, const at::Tensor& scores, const at::Tensor& labels);

  int64_t size() const { return static_cast<int64_t>(rows_.size()); }

  // Reading waits for the device.
  /// How often each sample was presented.
  std::vector<int64_t> presentations();
  /// How often each sample went from right to wrong between two of its presentations.
  std::vector<int64_t> forgetting_events();
  /// The presentation, from 0, at which it was first right; -1: never.
  std::vector<int64_t> learned_at();
  /// Infinite for forgetting where it was never right, and for all where it was never presented.
  std::vector<double> difficulty(Difficulty by);

  /// What was seen, for checkpoints and files.
  NamedTensors state();
  /// Throws: c10::ValueError – a name or a number of samples that does not fit
  void load_state(const NamedTensors& state);

  /// A safetensors file of state(). `source` says of which data set: data::fingerprint.
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
  int64_t unusable_ = -1;  ///< a sample whose values were no numbers
};

/// A file that SampleStats::save wrote.
struct SavedStats {
  SampleStats stats;
  std::string source;  ///< the data set's fingerprint
};
/// Throws: c10::ValueError – missing, corrupt, or another kind of file
SavedStats load_sample_stats(const std::string& path);

}  // namespace bellows::data
