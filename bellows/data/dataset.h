#pragma once

#include "bellows/data/loader.h"

#include <string>
#include <vector>

namespace bellows::data {

/// What a data set says about itself (`dataset.json` in its folder); all of it may be missing.
struct DatasetInfo {
  std::string name;
  std::string split;
  std::vector<std::string> splits;   ///< all that the folder has
  std::vector<std::string> classes;  ///< names, in the order of the labels
  std::vector<int64_t> image_size;   ///< [height, width, channels]
  std::vector<double> mean, std;     ///< of the training split, for each channel, values in [0, 1]
};

/// Samples and what to do with them: a value. Each call returns a changed copy, so partial chains can be shared.
/// Transforms run in the order of the calls.
class Dataset {
 public:
  explicit Dataset(SourcePtr source, DatasetInfo info = {});

  // What comes out.
  /// A new order each epoch, over all samples, and the seed of all that is random.
  Dataset shuffle(uint64_t seed = 0) const;
  /// Source order again, as evaluation wants it.
  Dataset sequential() const;
  /// Params: mode – "rgb" or "gray"
  Dataset decode(const std::string& mode) const;
  Dataset resize(int64_t height, int64_t width) const;
  Dataset resize_shorter(int64_t side) const;
  Dataset center_crop(int64_t height, int64_t width) const;
  Dataset random_crop(int64_t height, int64_t width, int64_t padding = 0) const;
  Dataset flip(double p = 0.5) const;
  /// A step of the user's own.
  Dataset transform(Transform step) const;
  /// Params: mean, std – one value or one for each channel; none: those of the data set's info
  Dataset normalize(std::vector<double> mean, std::vector<double> std) const;
  Dataset normalize() const;
  Dataset channels_last(bool on = true) const;
  Dataset num_classes(int64_t n) const;
  /// Tensors that batches must have ("image", "label", an array's name): a sample without one is a bad sample, and so
  /// says the message, wherever it stands.
  Dataset require(std::vector<std::string> names) const;
  Dataset batch(int64_t size, bool drop_last = false) const;
  Dataset on_bad_sample(OnBadSample policy) const;
  Dataset subrange(int64_t begin, int64_t end) const;
  Dataset subset(std::vector<int64_t> indices) const;

  // How fast.
  Dataset threads(int64_t n) const;
  Dataset prefetch(int64_t batches) const;
  /// Keeps up to `bytes` of decoded pictures in memory, as they are before the first random transform.
  Dataset cache(int64_t bytes) const;

  /// Throws: as Loader's constructor
  Loader loader() const;

  int64_t size() const { return source_->size(); }
  const SourcePtr& source() const { return source_; }
  const DatasetInfo& info() const { return info_; }
  const PipelineOptions& pipeline() const { return pipeline_; }
  const LoaderOptions& loader_options() const { return loader_; }

 private:
  SourcePtr source_;
  DatasetInfo info_;
  PipelineOptions pipeline_;
  LoaderOptions loader_;
};

struct OpenOptions {
  std::string split;  ///< "train", "test"; needed where a folder has several
};

/// Opens a data set by name: a folder with shards, a shard, a pattern (see expand_shards). A `dataset.json` beside
/// the shards of a folder names the splits and presets the number of classes and the decoding mode.
/// Throws:   c10::ValueError – nothing there, several splits and none chosen, unknown split (nearest match), corrupt
///           shards
Dataset open(const std::string& url, const OpenOptions& options = {});
/// A list of shards.
Dataset open_shards(const std::vector<std::string>& shards);

}  // namespace bellows::data
