#pragma once

#include "bellows/data/images/augment.h"
#include "bellows/data/loader/loader.h"
#include "bellows/data/select/subset.h"
#include "bellows/data/tokenize.h"

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
  /// Another order (order.h, mix.h, buckets.h), and the seed of all that is random.
  Dataset order(OrderPtr order, uint64_t seed = 0) const;
  /// This process's share of each epoch.
  /// Params: share_batch – the batch size is that of all ranks together: any number of ranks takes the same steps
  Dataset distributed(int64_t rank, int64_t world_size, bool share_batch = false) const;
  /// Params: mode – "rgb" or "gray"
  Dataset decode(const std::string& mode) const;
  Dataset resize(int64_t height, int64_t width) const;
  Dataset resize_shorter(int64_t side) const;
  Dataset center_crop(int64_t height, int64_t width) const;
  Dataset random_crop(int64_t height, int64_t width, int64_t padding = 0) const;
  Dataset random_resized_crop(int64_t height, int64_t width, std::pair<double, double> scale = {0.08, 1.0},
                              std::pair<double, double> ratio = {3.0 / 4.0, 4.0 / 3.0}) const;
  Dataset flip(double p = 0.5) const;
  Dataset color_jitter(const ColorJitter& amounts) const;
  Dataset random_grayscale(double p = 0.1) const;
  Dataset random_erasing(double p = 0.5, std::pair<double, double> scale = {0.02, 0.33},
                         std::pair<double, double> ratio = {0.3, 3.3}, std::vector<uint8_t> fill = {0}) const;
  Dataset cutout(int64_t side, std::vector<uint8_t> fill = {0}) const;
  Dataset rand_augment(int ops = 2, int magnitude = 9) const;
  /// A step of the user's own.
  Dataset transform(Transform step) const;
  /// Params: mean, std – one value or one for each channel; none: those of the data set's info
  Dataset normalize(std::vector<double> mean, std::vector<double> std) const;
  Dataset normalize() const;
  /// Tokens in the place of a text: tokenized().
  Dataset tokenize(Tokenizer tokenizer, std::string field = "txt") const;
  /// Arrays `field` [l, …] of unequal length as one tensor [N, L, …], and their lengths as int64 `field`_lengths [N]: L is
  /// the longest of the batch, rounded up, and 0 where there is none. padding_mask (packing.h) says what is no padding;
  /// bucketed keeps it small. Ranks pad for themselves, each to its own L.
  /// Params: value – behind each array's end; the arrays' type has to hold it
  ///         multiple_of – that L is a multiple of, at most 2^20
  /// Ref:    torch.nn.utils.rnn.pad_sequence(batch_first=True)
  Dataset pad(const std::string& field, const c10::Scalar& value = 0, int64_t multiple_of = 1) const;
  /// Per-pixel steps fused into one pass, in the place of normalize: pixel_chain(RandomBrightness{0.2}, Normalize{…}).
  Dataset pixels(PixelPass pass) const;
  /// Mixes the pictures of each batch: see MixOptions.
  Dataset mix(const MixOptions& options) const;
  /// Params: dtype – of "image": Float, BFloat16, or Byte, which leaves pixels as they are
  Dataset dtype(c10::ScalarType dtype) const;
  Dataset channels_last(bool on = true) const;
  Dataset num_classes(int64_t n) const;
  /// Tensors that batches must have ("image", "label", an array's name): a sample without one is a bad sample, and so
  /// says the message, wherever it stands.
  Dataset require(std::vector<std::string> names) const;
  Dataset batch(int64_t size, Remainder remainder = Remainder::uneven) const;
  Dataset on_bad_sample(OnBadSample policy) const;
  /// Params: n – times that a read which fails is tried again: LoaderOptions::retries
  Dataset retries(int64_t n) const;
  /// Where batches are handed out; copied beside what the device computes.
  Dataset to(c10::Device device) const;
  Dataset subrange(int64_t begin, int64_t end) const;
  Dataset subset(std::vector<int64_t> indices) const;
  /// Throws: c10::ValueError – the subset was chosen from another data set (its fingerprint)
  Dataset subset(const Subset& chosen) const;

  // How fast.
  /// Params: n – LoaderOptions::kAuto: as many as help
  Dataset threads(int64_t n) const;
  Dataset prefetch(int64_t batches) const;
  /// Lets JPEGs be decoded less exactly where that is faster: PipelineOptions::fast_decode.
  Dataset fast_decode(bool on = true) const;
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
  std::string split = "";      ///< "train", "test"; needed where a folder has several
  std::string otherwise = "";  ///< the split that is taken where none is chosen and a folder has several
  /// Where files from the network are kept; "": $BELLOWS_CACHE, $XDG_CACHE_HOME/bellows, or ~/.cache/bellows.
  std::string cache_folder = "";
  int64_t cache_bytes = int64_t{100} << 30;  ///< the most they may take there; see io::FileCache
};

/// Opens a data set by name: a file, a pattern of files (see expand_shards), a folder, or URLs, which are fetched into a
/// cache as they are needed (`https://host/train-{000..015}.tar`; a URL that ends in a slash is an MDS folder).
///
/// What it is is told by content, not by name: tar shards, TFRecord, RecordIO, .beton, MDS, NumPy, safetensors, CSV,
/// JSON lines, packs, folders of pictures (the table stands in formats.cpp). The splits of a folder are subfolders
/// (train, val, …), or files told apart by name (train-0000.tar, test-0000.tar). A `dataset.json` in a folder names the
/// splits and presets the number of classes and the decoding mode.
/// Throws:   c10::ValueError – nothing there, nothing that is known (what was found, what is accepted), a folder with
///           several kinds of data, several splits and none chosen, unknown split (nearest match), corrupt files
Dataset open(const std::string& url, const OpenOptions& options = {});
/// A list of files of one format: paths and URLs.
Dataset open_shards(const std::vector<std::string>& shards);

}  // namespace bellows::data
