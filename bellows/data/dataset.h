#pragma once

#include "bellows/data/images/augment.h"
#include "bellows/data/loader/loader.h"
#include "bellows/data/select/subset.h"
#include "bellows/data/tokenize.h"

#include <string>
#include <vector>

namespace bellows::data {

/// The contents of a folder's `dataset.json`. Every member is optional.
struct DatasetInfo {
  std::string name;
  std::string split;
  std::vector<std::string> splits;   ///< all splits of the folder
  std::vector<std::string> classes;  ///< class names, in the order of the labels
  std::vector<int64_t> image_size;   ///< [height, width, channels]
  /// Statistics of the training split: one value per channel, for pixel values in [0, 1].
  std::vector<double> mean, std;
};

/// An immutable description of a dataset: a source, a pipeline and loader options. Each method returns a modified copy,
/// so you can derive several datasets from one. Transforms run in the order in which you add them.
/// Throws: c10::ValueError from the constructor and the methods if an argument is null, empty or out of range
class Dataset {
 public:
  explicit Dataset(SourcePtr source, DatasetInfo info = {});

  // Contents of the batches.
  /// Takes the samples in a new random order in each epoch. `seed` also seeds the random transforms.
  Dataset shuffle(uint64_t seed = 0) const;
  /// Takes the samples in the order of the source. Use this for evaluation.
  Dataset sequential() const;
  /// Sets a custom order (see order.h, mix.h and buckets.h). `seed` seeds the order and the random transforms.
  Dataset order(OrderPtr order, uint64_t seed = 0) const;
  /// Restricts each epoch to the samples of one rank.
  /// Params: global_batch – if true, the batch size counts the samples of all ranks together. Each step then takes the
  ///         same samples, regardless of the number of ranks
  ///         fill_in_order – see Division::fill_in_order
  Dataset distributed(int64_t rank, int64_t world_size, bool global_batch = false, bool fill_in_order = false) const;
  /// Sets the color mode of decoded images.
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
  /// Adds a custom transform.
  Dataset transform(Transform step) const;
  /// Normalizes pixel values: (value / 255 - mean) / std. The overload without arguments uses the values in info().
  /// Params: mean, std – one value for all channels, or one value per channel
  /// Throws: c10::ValueError from the overload without arguments if info() lacks the mean or the std
  Dataset normalize(std::vector<double> mean, std::vector<double> std) const;
  Dataset normalize() const;
  /// Replaces a text with its tokens (see tokenized()).
  Dataset tokenize(Tokenizer tokenizer, std::string field = "txt") const;
  /// Pads arrays of unequal length and stacks them into one tensor. Arrays `field` [l, …] become a tensor [N, L, …],
  /// and their lengths become an int64 tensor `field`_lengths [N]. L is the longest length in the batch, rounded up to
  /// a multiple of `multiple_of`. L is 0 if all arrays are empty. Each rank computes its own L. padding_mask()
  /// (packing.h) marks the positions that are not padding. bucketed() reduces the amount of padding.
  /// Params: value – written after the end of each array; the type of the arrays must be able to represent it
  ///         multiple_of – at most 2^20
  /// Ref:    torch.nn.utils.rnn.pad_sequence(batch_first=True)
  Dataset pad(const std::string& field, const c10::Scalar& value = 0, int64_t multiple_of = 1) const;
  /// Replaces normalize() with per-pixel steps that run in one pass, such as pixel_chain(RandomBrightness{0.2},
  /// Normalize{…}).
  Dataset pixels(PixelPass pass) const;
  /// Mixes the images of each batch with each other (see MixOptions).
  Dataset mix(const MixOptions& options) const;
  /// Sets the element type of "image".
  /// Params: dtype – Float, BFloat16 or Byte; with Byte, pixel values are not normalized
  Dataset dtype(c10::ScalarType dtype) const;
  Dataset channels_last(bool on = true) const;
  Dataset num_classes(int64_t n) const;
  /// Names the tensors that every batch must have: "image", "label" or the name of an array. A sample that lacks one of
  /// these tensors is a bad sample. The error message names the missing tensor.
  Dataset require(std::vector<std::string> names) const;
  Dataset batch(int64_t size, Remainder remainder = Remainder::uneven) const;
  Dataset on_bad_sample(OnBadSample policy) const;
  /// Sets how often a failed read is retried (see LoaderOptions::retries).
  Dataset retries(int64_t n) const;
  /// Sets the device of the batches. Copies to the device overlap with computation on the device.
  Dataset to(c10::Device device) const;
  Dataset subrange(int64_t begin, int64_t end) const;
  Dataset subset(std::vector<int64_t> indices) const;
  /// Takes the samples from another source, with the same pipeline and loader options. Use this for a source that adds
  /// fields to the samples of source().
  /// Throws: c10::ValueError if the number of samples differs
  Dataset with_source(SourcePtr source) const;
  /// Throws: c10::ValueError if the subset was chosen from a different dataset, that is, if the size or the fingerprint
  ///         differs
  Dataset subset(const Subset& chosen) const;

  // Speed.
  /// Params: n – number of worker threads; with LoaderOptions::kAuto, the loader chooses the number
  Dataset threads(int64_t n) const;
  Dataset prefetch(int64_t batches) const;
  /// Decodes JPEGs faster but slightly less exactly if they are scaled down later (see PipelineOptions::fast_decode).
  Dataset fast_decode(bool on = true) const;
  /// Caches decoded images in memory. All transforms before the first random transform are already applied to a cached
  /// image.
  /// Params: bytes – size limit of the cache
  Dataset cache(int64_t bytes) const;

  /// Throws: exceptions of Loader's constructor
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
  std::string split = "";      ///< for example "train" or "test"; required if a folder has several splits
  std::string otherwise = "";  ///< the split that is used if `split` is empty and the folder has several splits
  /// The folder for downloaded files. If empty, the folder is $BELLOWS_CACHE if this variable is set, otherwise
  /// $XDG_CACHE_HOME/bellows or ~/.cache/bellows.
  std::string cache_folder = "";
  int64_t cache_bytes = int64_t{100} << 30;  ///< size limit of the cache folder (see io::FileCache)
};

/// Opens a dataset: a file, a pattern of files (see expand_shards), a folder, or URLs such as
/// `https://host/train-{000..015}.tar`. Remote files are downloaded into a cache when they are needed. A URL that ends
/// in a slash is an MDS folder.
///
/// The format is detected from the content, not from the file name. Supported formats: tar shards, TFRecord, RecordIO,
/// .beton, MDS, NumPy, safetensors, CSV, JSON Lines, packs and folders of images. The table of formats is in
/// formats.cpp.
///
/// The splits of a folder are subfolders (train, val, …) or groups of file names (train-0000.tar, test-0000.tar). If
/// the folder has a `dataset.json`, this file can name the splits. Its `classes` set the number of classes, and its
/// `image_size` sets the color mode of decoding.
/// Throws: c10::ValueError if `url` does not exist or a file is corrupt; if the format is unknown (the message
///         describes the content and lists the supported formats); if a folder contains several formats; if it has
///         several splits and no split is chosen; if a split is chosen, but there are no splits; if the split is
///         unknown (the message suggests the nearest name)
Dataset open(const std::string& url, const OpenOptions& options = {});
/// Opens several files of one format, given as paths or URLs.
Dataset open_shards(const std::vector<std::string>& shards);

}  // namespace bellows::data
