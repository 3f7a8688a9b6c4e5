#pragma once

// Only reducer.cpp includes c10d::Reducer, whose constructor changes between versions of libtorch.
#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "bellows/comm/group.h"
#include "bellows/core/model.h"
#include "bellows/parallel/ddp/distributed_data_parallel.h"

namespace bellows::parallel {

/// Copies rank `root`'s tensors to all ranks, with many tensors per message. Collective.
void broadcast_tensors(const NamedTensors& tensors, int root, const comm::Group& group);

/// Averages the ranks' gradients during backward.
class Reducer {
 public:
  /// Params: parameters – trained parameters, each once; group – of more than one rank
  Reducer(const NamedTensors& parameters, const comm::Group& group, const DistributedOptions& options);
  ~Reducer();
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  /// Divides gradients by `ranks` from now on.
  void divide_by(int ranks);
  /// Checks that the last step is complete. After the first step, rebuilds the buckets in the order in which gradients
  /// became ready.
  /// Params: exchange – whether this step exchanges gradients
  void begin_forward(bool exchange);
  void begin_backward(const std::vector<at::Tensor>& outputs);
  /// Replaces begin_backward() and backward on a rank without data.
  void take_part_with_zeros();

  /// The group that gradients are exchanged in.
  const comm::Group& group() const;
  std::vector<int64_t> bucket_bytes() const;
  /// Parameter numbers in each bucket, in bucket order. Collective, because it first rebuilds the buckets if that is
  /// due.
  std::vector<std::vector<size_t>> buckets();
  /// Starts with these buckets, as if the earlier steps had been made.
  void begin_with(const std::vector<std::vector<size_t>>& buckets);

 private:
  struct State;
  void make(std::vector<std::vector<size_t>> buckets);
  void make_due_buckets();
  std::shared_ptr<State> state_;
};

}  // namespace bellows::parallel
