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

/// What one sample adds to one tensor of a batch.
struct RowSpec {
  std::string name;
  c10::ScalarType dtype = c10::ScalarType::Float;
  std::vector<int64_t> sizes;
  bool channels_last = false;
  size_t bytes = 0;
  /// Not empty where the tensor is padded: one element of what stands behind the end. `sizes` and `bytes` are then those
  /// of one step, of which each sample has its own number; the next row's tensor holds it.
  std::vector<std::byte> fill;
  int64_t multiple_of = 1;

  bool padded() const { return !fill.empty(); }
};

/// What one thread needs to turn samples into rows; reused from sample to sample.
struct Workspace {
  Sample sample;
  ImageView image;  ///< after the transforms
  int64_t label = 0;
  uint64_t seed = 0;  ///< of the sample in this epoch
  std::vector<uint8_t> decoded;
  std::vector<std::byte*> rows;  ///< where the sample goes, one a tensor
  Scratch scratch;
  StageClock clock;  ///< measures; who begins no sample on it pays nothing
};

/// Whether the sample may speak for others: it has a picture and a label, or arrays.
bool is_typical(const Sample& sample);

/// Turns samples into rows of batch tensors. The rows' names, types and sizes are learnt from one sample and then
/// hold for all.
/// Threads:  safe, one Workspace a thread.
class SampleWriter {
 public:
  /// Params: example – a good sample
  /// Throws: c10::ValueError – it cannot be decoded, lacks a required field, or holds nothing that goes into a batch
  SampleWriter(PipelineOptions options, Workspace& example);

  const std::vector<RowSpec>& rows() const { return rows_; }
  const PipelineOptions& options() const { return options_; }

  /// Decodes workspace.sample into the workspace and runs the transforms. Of a picture only what they need is decoded.
  /// Params: seed – of this sample in this epoch
  /// Throws: c10::ValueError – the sample is bad: OnBadSample is about this
  void prepare(Workspace& workspace, uint64_t seed) const;

  /// What write will put into row `which`: of a padded tensor as much as the sample has.
  size_t bytes(size_t which, const Workspace& workspace) const;

  /// Writes what prepare left, one pointer for each of rows(), in their order.
  /// Throws: c10::ValueError – the sample's sizes differ from those learnt
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
  size_t deterministic_ = 0;  // leading transforms whose result the cache keeps
  std::vector<RowSpec> rows_;
  std::vector<Kind> kinds_;
  bool has_image_ = false, has_label_ = false;
  std::optional<Normalizer> normalizer_;
  std::unique_ptr<ImageCache> cache_;
};

}  // namespace bellows::data
