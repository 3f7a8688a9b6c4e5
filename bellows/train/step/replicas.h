#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "bellows/parallel/data_parallel.h"
#include "bellows/train/job.h"
#include "bellows/train/step/activations.h"
#include "bellows/train/step/update.h"

namespace bellows::train {

/// The settings of one forward and backward pass on replicas.
/// Params: activations – applied on the thread of each replica
///         step, batch – number of the step, and of the batch within the step, from 0
///         alone       – see GroupMean::weigh()
///         gradient    – gradient with respect to the loss, 0-d, such as the loss scale
struct ReplicaPass {
  const Activations& activations;
  int64_t step = 0, batch = 0;
  bool alone = false;
  at::Tensor gradient = {};
};

/// Trains with several replicas of the model in this process (`data_parallel: dp`, `replicas`). Each replica processes
/// a part of each batch on its own thread, and possibly on its own device. With another `data_parallel`, or with one
/// replica, this class does nothing.
/// Numerics: parts are weighted like the batches of gradient accumulation. Losses and weights after 20 steps match
///           those of one replica to 1e-9 in fp64 and 1e-5 in fp32, provided that a sample's loss does not depend on
///           other samples (tests/train/parallel/data_parallel_job_test.cpp). With batch norm, it does
/// Threads:  not thread-safe
class Replicas {
 public:
  /// Creates the replicas on the visible devices in turn, from the job's device on, and sets the recipe's `replicas` to
  /// their number. The states of the random generators do not change.
  /// Throws: c10::ValueError if the job has no function that creates replicas, or if this function creates other models
  explicit Replicas(Job& job);
  ~Replicas();
  Replicas(const Replicas&) = delete;
  Replicas& operator=(const Replicas&) = delete;

  /// Whether there are at least two replicas.
  bool on() const { return state_ != nullptr; }
  int64_t size() const;

  /// Runs forward, loss and backward of a batch, and adds the gradients of all replicas to those of the model.
  /// Params:  batch – at least one sample. All of its tensors are divided along dim 0
  ///          mean  – receives the losses
  /// Returns: the weighted loss of the batch, and the predictions for all samples if every part has predictions. Both
  ///          are on the job's device and have no graph
  /// Throws:  c10::ValueError if the loss function returns sums for some parts and means for others. Exceptions of the
  ///          model and the loss are passed on, with the replica and its samples in the message
  StepOutput forward_backward(const data::Batch& batch, GroupMean& mean, const ReplicaPass& pass);

  /// Describes the replicas, such as "dp: 2 replicas on cpu, cpu". The description is empty if there is only one.
  std::string describe() const;
  /// Returns the bytes that all steps so far have copied and added. All numbers are 0 if there is only one replica.
  parallel::ReplicaTraffic exchanged() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace bellows::train
