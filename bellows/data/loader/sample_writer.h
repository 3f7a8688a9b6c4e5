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

/// The part of one batch tensor that holds one sample.
struct RowSpec {
  std::string name;
  c10::ScalarType dtype = c10::ScalarType::Float;
  std::vector<int64_t> sizes;
  bool channels_last = false;
  size_t bytes = 0;
  /// If the tensor is padded, one element of the padding value; else empty. For padded tensors, `sizes` and `bytes` are
  /// those of one step, and each sample has its own number of steps, which the next row's tensor holds.
  std::vector<std::byte> fill;
  int64_t multiple_of = 1;

  bool padded() const { return !fill.empty(); }
};

/// Buffers that one thread needs to turn samples into rows; reused for each sample.
struct Workspace {
  Sample sample;
  ImageView image;  ///< after the transforms
  int64_t label = 0;
  uint64_t seed = 0;  ///< of the sample in this epoch
  std::vector<uint8_t> decoded;
  std::vector<std::byte*> rows;  ///< destination of the sample, one per tensor
  Scratch scratch;
  StageClock clock;  ///< costs nothing if no sample is begun on it
};

/// True if the sample can determine the tensors of a batch: it has an image and a label, or arrays.
bool is_typical(const Sample& sample);

/// Turns samples into rows of batch tensors. The rows' names, types and sizes come from one sample and then apply to
/// all.
/// Threads: thread-safe with one Workspace per thread
class SampleWriter {
 public:
  /// Params: example – a good sample
  /// Throws: c10::ValueError if the sample cannot be decoded, lacks a required field, or holds nothing for a batch
  SampleWriter(PipelineOptions options, Workspace& example);

  const std::vector<RowSpec>& rows() const { return rows_; }
  const PipelineOptions& options() const { return options_; }

  /// Decodes workspace.sample into the workspace and runs the transforms. Decodes only the part of an image that they
  /// need.
  /// Params: seed – of this sample in this epoch
  /// Throws: c10::ValueError if the sample is bad (see OnBadSample)
  void prepare(Workspace& workspace, uint64_t seed) const;

  /// Number of bytes that write() writes into row `which`; for a padded tensor, the sample's own length.
  size_t bytes(size_t which, const Workspace& workspace) const;

  /// Writes the sample that prepare() left in the workspace, to one pointer for each of rows(), in their order.
  /// Throws: c10::ValueError if the sample's sizes differ from the rows' sizes
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
