#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include <atomic>
#include <chrono>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "bellows/comm/shared_memory/shared_region.h"
#include "bellows/core/mutex.h"

namespace bellows::comm {

/// Collectives of ranks on one machine, for tensors in host memory. The ranks copy through shared memory instead of
/// sockets, which needs less processor time.
///
/// Numerics: reductions combine neighboring ranks, then neighboring results, and so on, in the dtype of the tensor. The
///           results of all ranks are bit-identical, and do not depend on the size of the tensor
/// Memory:   two buffers of 1 MiB per rank and two per group, which all ranks share
/// Threads:  thread-safe. Each rank runs the calls of the group in order, on one thread
class SharedCollectives : public std::enable_shared_from_this<SharedCollectives> {
 public:
  using WorkHandle = c10::intrusive_ptr<c10d::Work>;

  /// Returns null on all ranks if not all of them can share memory, for example because they run on several machines, or
  /// if BELLOWS_SHARED_MEMORY=0 is set. Collective.
  /// Params: connection – a connected back end of the same ranks
  static std::shared_ptr<SharedCollectives> connect(c10d::Backend& connection);

  /// Whether the other functions support such tensors. The result is the same on all ranks if they pass the same dtype
  /// and layout.
  static bool supports(const at::Tensor& tensor);
  static bool supports(const at::Tensor& tensor, const c10d::ReduceOp& op);

  // Throws: c10::ValueError if the sizes or dtypes of `in` and `out` do not fit, or if the root does not exist
  WorkHandle all_reduce(const at::Tensor& tensor, const c10d::ReduceOp& op);
  WorkHandle broadcast(const at::Tensor& tensor, int root);
  /// Params: out – [size · n]; in – [n] elements, which may be this rank's part of `out`
  WorkHandle all_gather(const at::Tensor& out, const at::Tensor& in);
  /// Params: out – [n]; in – [size · n] elements
  WorkHandle reduce_scatter(const at::Tensor& out, const at::Tensor& in, const c10d::ReduceOp& op);

  void set_timeout(std::chrono::milliseconds timeout) { timeout_ = timeout; }
  /// Ends the running calls of all ranks with an error.
  void close() { region_->close(); }
  /// Closes the connection, and waits for the end of the thread.
  void leave();

 private:
  struct Task {
    std::function<void()> run;
    std::function<void(const std::exception_ptr&)> done;
  };
  explicit SharedCollectives(std::unique_ptr<SharedRegion> region) : region_(std::move(region)) {}
  WorkHandle start(RegionCall call, std::vector<at::Tensor> results, std::function<void()> run);
  void run_tasks();
  std::optional<Task> next_task() BELLOWS_EXCLUDES(mutex_);

  void all_reduce_now(const at::Tensor& tensor, c10d::ReduceOp::RedOpType op);
  void broadcast_now(const at::Tensor& tensor, int root);
  void all_gather_now(const at::Tensor& out, const at::Tensor& in);
  void reduce_scatter_now(const at::Tensor& out, const at::Tensor& in, c10d::ReduceOp::RedOpType op);
  void barrier() { region_->barrier(end_); }

  const std::unique_ptr<SharedRegion> region_;
  std::atomic<std::chrono::milliseconds> timeout_ = std::chrono::milliseconds(600'000);
  int64_t buffers_used_ = 0;          ///< only on the thread; its parity selects the next buffer
  SharedRegion::TimePoint end_ = {};  ///< only on the thread; when the running call must end
  Mutex mutex_;
  int64_t calls_ BELLOWS_GUARDED_BY(mutex_) = 0;  ///< also those that could not start
  ConditionVariable wake_;
  std::deque<Task> tasks_ BELLOWS_GUARDED_BY(mutex_);
  bool left_ BELLOWS_GUARDED_BY(mutex_) = false;
  std::thread thread_ BELLOWS_GUARDED_BY(mutex_);  ///< started by the first call
};

}  // namespace bellows::comm
