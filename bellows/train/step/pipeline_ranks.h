#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "bellows/comm/group.h"
#include "bellows/comm/mesh.h"
#include "bellows/core/model.h"
#include "bellows/data/loader/batch.h"
#include "bellows/parallel/pipeline/pipeline.h"
#include "bellows/train/job.h"
#include "bellows/train/step/context_ranks.h"
#include "bellows/train/step/divided_model.h"
#include "bellows/train/step/evaluation.h"
#include "bellows/train/step/tensor_ranks.h"

namespace bellows::train {

/// How a batch is computed.
struct PipelineBatch {
  int64_t number = 0;     ///< number of the batch since the start of training, which selects the dropout masks
  double unit = 1;        ///< the loss is multiplied by the number of items and divided by this number
  at::Tensor grad_scale;  ///< the loss is also multiplied by this number
  bool last = true;       ///< whether this is the last batch of the step, after which gradients are averaged
};

/// The results for a batch, which are the same on all ranks of a pipeline. Loss and counts are the same on all ranks.
struct PipelineOutput {
  StepOutput output;    ///< mean loss and number of items of all pipelines, and predictions for the batch of this one
  int64_t samples = 0;  ///< of all pipelines
};

/// Divides the model of a job into stages among the ranks of the mesh axis `pipeline`, as the recipe's
/// `pipeline_schedule`, `micro_batches` and `pipeline_stages` describe it. These ranks read the same samples.
///
/// A batch with fewer samples than micro-batches is filled with repeated samples whose weight is 0, so that the last
/// batch of an epoch needs no other schedule.
/// Threads: not thread-safe; the constructor and forward_backward() are collective for all ranks
class PipelineRanks final : public DividedModel {
 public:
  /// Call this function before the model is divided in any way.
  /// Throws: RecipeError if the model has no parts or fewer parts than stages. c10::ValueError if an optimizer has
  ///         state, if the job does not state its loss as Job::output_loss, or for the reasons of pipeline_schedule()
  static void check(const Job& job);

  /// Frees the parameters of other stages, and removes them from the job's optimizers.
  /// Params: mesh – has the axis `pipeline`
  ///         data – the ranks of the same stages that read other samples; empty if there are none
  ///         tensor – has divided the layers of the model; null if they are complete. It must exist as long as this
  ///         object
  ///         context – divides the sequences; null if they are complete. It must exist as long as this object
  /// Throws: c10::ValueError for the reasons of parallel::pipeline() and pipeline_schedule(), or if an optimizer has no
  ///         parameter of one of the ranks
  PipelineRanks(const Job& job, const comm::Mesh& mesh, const std::optional<comm::Group>& data,
                const TensorRanks* tensor, const ContextRanks* context);

  /// Computes the gradients of a batch, weighted by its number of items.
  PipelineOutput forward_backward(const data::Batch& batch, const PipelineBatch& how);
  /// The rank that has the outputs of evaluated_model(). On the other ranks, they are undefined.
  OutputRank output_rank() const;

  Model local_model() const override;
  Model evaluated_model() const override;
  checkpoint::Parts parts_of(const torch::optim::Optimizer& optimizer) const override;
  NamedTensors local_parts(const NamedTensors& complete) const override;
  checkpoint::Parts complete_shards(checkpoint::Parts of_local) const override;
  void complete_parameters() override;
  std::string describe() const override;

 protected:
  checkpoint::Parts wanted_shards(const torch::optim::Optimizer& optimizer,
                                  const std::vector<parallel::SavedTensor>& saved) const override;
  void load_shards(torch::optim::Optimizer& optimizer, const checkpoint::Parts& filled) const override;

 private:
  at::Tensor counts_of(const data::Batch& batch, const at::Tensor& items) const;
  at::Tensor predictions_of(const std::vector<std::pair<at::Tensor, at::Tensor>>& outputs, int64_t samples) const;

  Model model_;
  OutputLoss loss_;
  Task task_;
  c10::Device device_;
  amp::Policy policy_;
  bool predicts_;         ///< the training accuracy is measured
  int64_t least_length_;  ///< of a sequence that ranks can divide
  const TensorRanks* tensor_;
  comm::Group group_;                ///< of the axis `pipeline`
  comm::Group all_;                  ///< of all ranks
  std::optional<comm::Group> data_;  ///< ranks of the same stages that read other samples; empty: none
  bool averages_each_batch_;         ///< and not only the gradients of a step
  std::optional<parallel::Pipeline> stages_;
  std::set<std::string> others_;  ///< names of the tensors that only other ranks hold
};

}  // namespace bellows::train
