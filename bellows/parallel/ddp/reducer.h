#pragma once

// Only reducer.cpp includes c10d::Reducer, because its constructor changes between versions of libtorch.
#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "bellows/comm/group.h"
#include "bellows/core/model.h"
#include "bellows/parallel/ddp/distributed_data_parallel.h"

namespace bellows::parallel {

/// Copies the tensors of rank `root` to all ranks, many tensors per message. Collective.
void broadcast_tensors(const NamedTensors& tensors, int root, const comm::Group& group);

/// Averages the ranks' gradients during backward.
class Reducer {
 public:
  /// Params: parameters – the trained parameters, each listed once; group – a group of at least two ranks
  Reducer(const NamedTensors& parameters, const comm::Group& group, const DistributedOptions& options);
  ~Reducer();
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  /// From the next step on, divides gradients by `ranks`.
  void divide_by(int ranks);
  /// Checks that the previous step exchanged all gradients. After the first step, it rebuilds the buckets in the order
  /// in which gradients became ready.
  /// Params: exchange – whether the step that starts now exchanges gradients
  void begin_forward(bool exchange);
  /// In a compiled function, gradients have no values until the pending operators run. In this case, all buckets are
  /// exchanged together at the end of backward.
  /// Throws: c10::ValueError in a compiled function if `find_unused_parameters` or `static_graph` is set
  void begin_backward(const std::vector<at::Tensor>& outputs);
  /// A rank without data calls this function instead of begin_backward() and backward().
  void take_part_with_zeros();

  /// The group that exchanges the gradients.
  const comm::Group& group() const;
  std::vector<int64_t> bucket_bytes() const;
  /// Returns the parameter numbers in each bucket, in bucket order. Collective, because it first rebuilds the buckets
  /// if necessary.
  std::vector<std::vector<size_t>> buckets();
  /// Replaces the current buckets with `buckets`. Call it before the first step to resume an earlier run.
  void begin_with(const std::vector<std::vector<size_t>>& buckets);

 private:
  struct State;
  void make(std::vector<std::vector<size_t>> buckets);
  void make_due_buckets();
  void exchange_after_backward(const std::vector<at::Tensor>& outputs);
  std::shared_ptr<State> state_;
};

}  // namespace bellows::parallel
