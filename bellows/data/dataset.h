#pragma once

#include "bellows/data/images/augment.h"
#include "bellows/data/loader/loader.h"
#include "bellows/data/select/subset.h"
#include "bellows/data/tokenize.h"

#include <string>
#include <vector>

namespace bellows::data {

/// The contents of a folder's `dataset.json`. All of them are optional.
struct DatasetInfo {
  std::string name;
  std::string split;
  std::vector<std::string> splits;   ///< all splits of the folder
  std::vector<std::string> classes;  ///< names, in the order of the labels
  std::vector<int64_t> image_size;   ///< [height, width, channels]
  std::vector<double> mean, std;     ///< of the training split, one value per channel, for pixel values in [0, 1]
};

/// A source together with its pipeline and loader options, as a value. Each method returns a modified copy, so several
/// datasets can share the first part of a chain. Transforms run in the order of the calls.
class Dataset {
 public:
  explicit Dataset(SourcePtr source, DatasetInfo info = {});

  // Contents of the batches.
  /// Draws a new order over all samples in each epoch. `seed` also seeds the random transforms.
  Dataset shuffle(uint64_t seed = 0) const;
  /// Restores the source order, for evaluation.
  Dataset sequential() const;
  /// Sets another order (order.h, mix.h, buckets.h). `seed` seeds the order and the random transforms.
  Dataset order(OrderPtr order, uint64_t seed = 0) const;
  /// Restricts each epoch to this rank's part.
  /// Params: global_batch – if true, the batch size is that of all ranks together, and any number of ranks takes the
  ///         same steps
  Dataset distributed(int64_t rank, int64_t world_size, bool global_batch = false) const;
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
  /// Adds a custom step.
  Dataset transform(Transform step) const;
  /// Params: mean, std – one value, or one per channel; without arguments, those of info()
  Dataset normalize(std::vector<double> mean, std::vector<double> std) const;
  Dataset normalize() const;
  /// Replaces a text by its tokens; see tokenized().
  Dataset tokenize(Tokenizer tokenizer, std::string field = "txt") const;
  /// Stacks arrays `field` [l, …] of unequal length into one tensor [N, L, …] and adds their lengths as int64
  /// `field`_lengths [N]. L is the longest length in the batch, rounded up, or 0 if there is none. padding_mask
  /// (packing.h) marks the positions that are not padding; bucketed() keeps the padding small. Each rank pads to its
  /// own L.
  /// Params: value – written behind each array's end; the arrays' type must be able to represent it
  ///         multiple_of – L is rounded up to a multiple of it; at most 2^20
  /// Ref:    torch.nn.utils.rnn.pad_sequence(batch_first=True)
  Dataset pad(const std::string& field, const c10::Scalar& value = 0, int64_t multiple_of = 1) const;
  /// Replaces normalize by per-pixel steps fused into one pass: pixel_chain(RandomBrightness{0.2}, Normalize{…}).
  Dataset pixels(PixelPass pass) const;
  /// Mixes the images of each batch; see MixOptions.
  Dataset mix(const MixOptions& options) const;
  /// Params: dtype – of "image": Float, BFloat16, or Byte, which leaves the pixel values unchanged
  Dataset dtype(c10::ScalarType dtype) const;
  Dataset channels_last(bool on = true) const;
  Dataset num_classes(int64_t n) const;
  /// Names the tensors that every batch must have ("image", "label", an array's name). A sample that lacks one of them
  /// is a bad sample, wherever it is in the source; the message names the missing tensor.
  Dataset require(std::vector<std::string> names) const;
  Dataset batch(int64_t size, Remainder remainder = Remainder::uneven) const;
  Dataset on_bad_sample(OnBadSample policy) const;
  /// Params: n – number of times a failed read is retried; see LoaderOptions::retries
  Dataset retries(int64_t n) const;
  /// Sets the device of the batches. Copies overlap with computation on the device.
  Dataset to(c10::Device device) const;
  Dataset subrange(int64_t begin, int64_t end) const;
  Dataset subset(std::vector<int64_t> indices) const;
  /// Throws: c10::ValueError if the subset was chosen from another dataset (another size or fingerprint)
  Dataset subset(const Subset& chosen) const;

  // Speed.
  /// Params: n – number of workers; LoaderOptions::kAuto chooses it automatically
  Dataset threads(int64_t n) const;
  Dataset prefetch(int64_t batches) const;
  /// Decodes JPEGs less exactly where that is faster; see PipelineOptions::fast_decode.
  Dataset fast_decode(bool on = true) const;
  /// Caches up to `bytes` of decoded images in memory, in the form before the first random transform.
  Dataset cache(int64_t bytes) const;

  /// Throws: see Loader's constructor
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
  std::string split = "";      ///< "train", "test"; required if a folder has several splits
  std::string otherwise = "";  ///< the split to use if `split` is empty and a folder has several
  /// The folder of files from the network. If empty: $BELLOWS_CACHE, $XDG_CACHE_HOME/bellows, or ~/.cache/bellows.
  std::string cache_folder = "";
  int64_t cache_bytes = int64_t{100} << 30;  ///< size limit of that folder; see io::FileCache
};

/// Opens a dataset: a file, a pattern of files (see expand_shards), a folder, or URLs. Files from URLs are fetched into
/// a cache when they are needed (`https://host/train-{000..015}.tar`). A URL that ends in a slash is an MDS folder.
///
/// The format is detected from the content, not from the file name: tar shards, TFRecord, RecordIO, .beton, MDS, NumPy,
/// safetensors, CSV, JSON Lines, packs, folders of images (the table is in formats.cpp). The splits of a folder are
/// subfolders (train, val, …) or groups of file names (train-0000.tar, test-0000.tar). A `dataset.json` in a folder
/// names the splits, and its classes and image size preset the number of classes and the decoding mode.
/// Throws: c10::ValueError if `url` does not exist or a file is corrupt; if the format is unknown (the message says
///         what was found and which formats are accepted); if a folder holds several formats; if it has several splits
///         and none is chosen; if the split is unknown (the message suggests the nearest name)
Dataset open(const std::string& url, const OpenOptions& options = {});
/// Opens several files of one format, given as paths or URLs.
Dataset open_shards(const std::vector<std::string>& shards);

}  // namespace bellows::data
