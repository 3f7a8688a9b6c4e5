#pragma once

#include <cstdint>
#include <string>

#include "bellows/comm/group.h"
#include "bellows/core/model.h"
#include "bellows/core/model_parts.h"
#include "bellows/models/blocks.h"
#include "bellows/parallel/context/context_parallel.h"
#include "bellows/train/job.h"
#include "bellows/train/step/tensor_ranks.h"

namespace bellows::train {

/// Returns the number of blocks of a model whose blocks pass one sequence [N, T, width] from one to the next. Returns 0
/// for other models: encoder–decoders have two sequences, and the blocks of residual networks have other dims.
/// Afterwards, blocks run directly; see models::run_blocks_by().
int64_t sequence_blocks(const Model& model);

/// Divides the sequences of a job's model among the ranks of the mesh axis `context`, in training and in evaluation.
/// These ranks read the same samples. Each rank holds all parameters, and computes the blocks of the model for its part
/// of each sequence. The last block gathers the sequence, so that each rank has the loss of its samples. With a mesh
/// axis `pipeline`, the last stage gathers it.
/// Gradients: must be averaged over the ranks of the axis, and over the ranks with other samples
/// Threads:   not thread-safe; the constructor and the forward and backward passes of the model are collective
class ContextRanks {
 public:
  /// Call this function before the model is divided in any way.
  /// Throws: RecipeError if the model has no sequence of blocks
  static void check(const Job& job);

  /// Params: tensor – has divided the layers of the model; null if they are complete. It must exist as long as this
  ///         object. With `sequence_parallel`, its ranks divide this rank's part of each sequence again
  /// Throws: like check(). c10::ValueError if the ranks' versions differ
  ContextRanks(const Job& job, const comm::Group& axis, const TensorRanks* tensor);
  ~ContextRanks();
  ContextRanks(const ContextRanks&) = delete;
  ContextRanks& operator=(const ContextRanks&) = delete;

  /// Returns a function for models::run_blocks_by() that divides the sequence and calls the blocks by `run`.
  models::RunBlock divided(models::RunBlock run) const;
  /// Returns the parts of the model for a pipeline.
  ModelParts stage_parts(const ModelParts& parts) const { return context_.stage_parts(parts); }
  const comm::Group& group() const { return context_.group(); }
  /// Returns a text such as "2 ranks, ring, zig-zag".
  std::string describe() const { return context_.describe(); }

 private:
  Model model_;
  int64_t blocks_;
  bool in_stages_;
  parallel::ContextParallel context_;
};

}  // namespace bellows::train
