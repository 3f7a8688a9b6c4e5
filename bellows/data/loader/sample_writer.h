#pragma once

#include "bellows/data/images/image_cache.h"
#include "bellows/data/loader/pipeline.h"
#include "bellows/data/loader/stage_clock.h"
#include "bellows/data/sample.h"
#include "bellows/io/images/image.h"

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace bellows::data {

/// The part of a batch tensor that holds one sample.
struct RowSpec {
  std::string name;
  c10::ScalarType dtype = c10::ScalarType::Float;
  std::vector<int64_t> sizes;
  bool channels_last = false;
  size_t bytes = 0;
  /// For padded tensors, one element of the padding value; otherwise empty. The `sizes` and `bytes` of a padded tensor
  /// describe one step along its first dimension. The number of steps differs between samples. The RowSpec after that
  /// of a padded tensor describes the tensor that holds the numbers of steps.
  std::vector<std::byte> fill;
  int64_t multiple_of = 1;

  bool padded() const { return !fill.empty(); }
};

/// Buffers of one thread for turning samples into rows. They are reused for each sample.
struct Workspace {
  Sample sample;
  ImageView image;  ///< the image after the transforms
  int64_t label = 0;
  uint64_t seed = 0;  ///< seed of the sample in this epoch
  std::vector<uint8_t> decoded;
  std::vector<std::byte*> rows;  ///< destination of the sample, one pointer per tensor
  Scratch scratch;
  StageClock clock;  ///< has no cost unless begin_sample() is called
};

/// Returns true if the sample can determine the tensors of a batch. It must have an image and a label, or arrays.
bool is_typical(const Sample& sample);

/// Turns samples into rows of batch tensors. One sample determines the names, types and sizes of the rows for all
/// samples.
/// Threads: thread-safe if each thread uses its own Workspace
class SampleWriter {
 public:
  /// Params: example – holds a good sample
  /// Throws: c10::ValueError if the sample cannot be decoded, lacks a required tensor, or has nothing that belongs in a
  ///         batch
  SampleWriter(PipelineOptions options, Workspace& example);

  const std::vector<RowSpec>& rows() const { return rows_; }
  const PipelineOptions& options() const { return options_; }

  /// Decodes workspace.sample into the workspace and runs the transforms. Only the part of an image that the transforms
  /// need is decoded.
  /// Params: seed – seed of this sample in this epoch
  /// Throws: c10::ValueError if the sample is bad (see OnBadSample)
  void prepare(Workspace& workspace, uint64_t seed) const;

  /// Returns the number of bytes that write() writes into row `which`. For a padded tensor, the number depends on the
  /// length of the sample.
  size_t bytes(size_t which, const Workspace& workspace) const;

  /// Writes the sample that prepare() left in the workspace.
  /// Params: rows – one pointer for each of rows(), in the same order
  /// Throws: c10::ValueError if the sizes of the sample differ from the sizes of the rows
  void write(Workspace& workspace, std::span<std::byte* const> rows) const;

 private:
  enum class Kind { image, label, array, length };

  void learn_image(Workspace& workspace);
  void learn_arrays(const Sample& sample);
  void learn_padded(const Padding& padding, const Field& field, const Sample& sample);
  void check_required(const Sample& sample) const;
  void add_row(Kind kind, std::string name, c10::ScalarType dtype, std::vector<int64_t> sizes);
  void prepare_image(Workspace& workspace, uint64_t seed) const;
  size_t decode(Workspace& workspace, const Field& field, size_t end, uint64_t seed) const;
  size_t collect(const Sample& sample, Placement& placement, size_t begin, size_t end, uint64_t seed) const;
  void run_steps(Workspace& workspace, size_t begin, size_t end, uint64_t seed) const;
  void prepare_label(Workspace& workspace) const;
  void check_array_label(const Sample& sample) const;
  void write_image(const RowSpec& row, const Workspace& workspace, std::byte* out) const;
  static void check_array(const RowSpec& row, const Sample& sample);

  PipelineOptions options_;
  io::ColorMode mode_;
  size_t deterministic_ = 0;  // number of leading transforms whose result is cached
  std::vector<RowSpec> rows_;
  std::vector<Kind> kinds_;
  bool has_image_ = false, has_label_ = false;
  std::optional<Normalizer> normalizer_;
  std::unique_ptr<ImageCache> cache_;
};

}  // namespace bellows::data
