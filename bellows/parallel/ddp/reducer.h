#pragma once

// The one place that sees c10d::Reducer, whose constructor changes from version to version, is reducer.cpp.
#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "bellows/comm/group.h"
#include "bellows/core/model.h"
#include "bellows/parallel/ddp/distributed_data_parallel.h"

namespace bellows::parallel {

/// Copies rank `root`'s tensors to all ranks, many at a time. Collective.
void broadcast_tensors(const NamedTensors& tensors, int root, const comm::Group& group);

/// Makes the mean of the ranks' gradients while backward goes on.
class Reducer {
 public:
  /// Params: parameters – that are trained, each once; group – of more than one rank
  Reducer(const NamedTensors& parameters, const comm::Group& group, const DistributedOptions& options);
  ~Reducer();
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  /// Gradients are divided by `ranks` from now on.
  void divide_by(int ranks);
  /// Checks that the last step is complete, and once puts gradients into buckets by the order in which they came.
  /// Params: exchange – this step's gradients will be exchanged
  void begin_forward(bool exchange);
  void begin_backward(const std::vector<at::Tensor>& outputs);
  /// begin_backward() and backward of a rank that has no data left.
  void take_part_with_zeros();

  /// The gradients' own.
  const comm::Group& group() const;
  std::vector<int64_t> bucket_bytes() const;
  /// Numbers of the parameters in each bucket, as they lie there. Collective: first the buckets are made anew, if that is due.
  std::vector<std::vector<size_t>> buckets();
  /// Begins with these buckets, as if the steps before had been made.
  void begin_with(const std::vector<std::vector<size_t>>& buckets);

 private:
  struct State;
  void make(std::vector<std::vector<size_t>> buckets);
  void make_due_buckets();
  std::shared_ptr<State> state_;
};

}  // namespace bellows::parallel
