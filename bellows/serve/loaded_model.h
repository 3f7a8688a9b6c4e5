#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bellows/runtime/backend.h"
#include "bellows/serve/batch/running_requests.h"
#include "bellows/serve/batch_invariance.h"
#include "bellows/serve/ensemble/ensemble_plan.h"
#include "bellows/serve/scheduler.h"
#include "bellows/serve/text/text_stage.h"
#include "bellows/serve/v2_protocol.h"

namespace bellows::serve {

struct LoadedFile {
  std::unique_ptr<runtime::InferenceModel> model{};
  std::string backend{};  ///< name of the back end that loaded it
};

/// Loads a model file.
/// Params: backend – name of the back end; "": the first one that reads the file
/// Throws: c10::Error if the file cannot be loaded
using ModelLoader =
    std::function<LoadedFile(const std::string& backend, const std::string& path, const runtime::LoadOptions& options)>;

/// Loads with the back ends of bellows/runtime.
ModelLoader runtime_loader();

struct LoadModelOptions {
  runtime::LoadOptions load{};
  uint64_t max_queue_size = 1024;  ///< of models whose configuration states no limit
};

/// One version of a model that is ready for requests.
/// Threads: thread-safe
class LoadedModel {
 public:
  /// Loads the file once for each instance, checks it against the configuration, and runs the warm-up requests.
  /// Params: path    – the model file
  ///         version – such as "1"
  /// Throws: c10::Error if the file cannot be loaded, if the configuration contradicts it, or if a warm-up request fails
  LoadedModel(ModelConfig config, const std::string& path, const std::string& version, const ModelLoader& loader,
              const LoadModelOptions& options, std::shared_ptr<ModelStatistics> statistics);
  /// Checks an ensemble, whose steps are other models.
  /// Params: find – returns the model of a step; must be callable as long as the object exists
  /// Throws: c10::ValueError or RequestError if a model is missing, or if the steps do not fit together
  LoadedModel(ModelConfig config, const std::string& version, FindModel find,
              std::shared_ptr<ModelStatistics> statistics);

  /// The configuration with the inputs and outputs of the file.
  const ModelConfig& config() const { return config_; }
  const std::shared_ptr<const ModelSignature>& signature() const { return signature_; }
  ModelStatistics& statistics() const { return *statistics_; }

  /// See RequestRunner. Texts are tokenized on the calling thread.
  Scheduler::Submitted submit(PendingRequest& request);
  /// Waits until the model is not pinned, and drains it.
  void drain();

  /// Keeps the model from being drained until unpin().
  /// Returns: false if drain() was called before
  bool pin() { return pins_.add(); }
  void unpin() { pins_.remove(); }

 private:
  void set_signature(const std::string& version);
  /// Returns the inputs of the model file. Clients see another input if the server tokenizes texts.
  std::vector<TensorSpec> complete(const runtime::InferenceModel& model);
  std::unique_ptr<RequestRunner> runner(std::vector<RunModel> instances, const std::vector<TensorSpec>& inputs,
                                        uint64_t max_queue_size) const;
  RunModel instance(std::shared_ptr<runtime::InferenceModel> model) const;
  void warm_up(const RunModel& run, const std::vector<TensorSpec>& inputs) const;

  ModelConfig config_;
  TensorOrder order_{};
  std::shared_ptr<const ModelSignature> signature_{};
  std::shared_ptr<ModelStatistics> statistics_;
  std::unique_ptr<TextStage> text_{};
  std::unique_ptr<BatchInvariance> invariance_{};  ///< if the configuration asks for it
  std::unique_ptr<RequestRunner> runner_{};
  RunningRequests pins_{};
};

}  // namespace bellows::serve
