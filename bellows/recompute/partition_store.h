#pragma once

#include <ATen/core/DimVector.h>
#include <c10/core/Stream.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <array>
#include <deque>
#include <exception>
#include <map>
#include <optional>
#include <thread>

#include "bellows/core/mutex.h"
#include "bellows/recompute/partition.h"

namespace bellows::recompute::detail {

class PartitionStore;

/// Describes a tensor, so that ranks can compare their tensors before they gather one. It consists of integers only,
/// because the ranks exchange its bytes.
struct PartitionFacts {
  static constexpr int64_t failed = -1;  ///< the number if a rank cannot provide its slice

  int64_t number = 0;  ///< position in the order in which forward saved the tensors
  int64_t dtype = 0, dims = 0, layout = 0;
  std::array<int64_t, 9> sizes{};  ///< the first 9 sizes
  int64_t slice_bytes = 0;
  int64_t has_values = 0, values = 0;  ///< whether the values are compared, and their hash

  std::string to_string() const;
};
static_assert(sizeof(PartitionFacts) == 128);

/// One gathering of a tensor, which the background thread executes.
struct Gathering {
  PartitionFacts facts;
  at::Tensor slice;  ///< this rank's slice; undefined if this rank failed
  at::DimVector sizes, strides;
  std::optional<c10::Stream> stream;  ///< of an accelerator, on which backward runs
  // The mutex of PartitionStore::Shared protects the members below.
  at::Tensor result;
  std::exception_ptr error;
  bool done = false;
};

/// This rank's slice of a tensor that the ranks divide.
class PartitionedTensor final : public tap::PackedTensor, public std::enable_shared_from_this<PartitionedTensor> {
 public:
  /// Params: dense – dense in any order of dimensions
  PartitionedTensor(std::shared_ptr<PartitionStore> store, const at::Tensor& dense, const PartitionFacts& facts);
  ~PartitionedTensor() override;
  at::Tensor unpack() override;

 private:
  friend class PartitionStore;
  const std::shared_ptr<PartitionStore> store_;
  const PartitionFacts facts_;
  const at::DimVector sizes_, strides_;
  const c10::Device device_;
  torch::autograd::SavedVariable slice_;  ///< saved as autograd saves tensors, so that surrounding guards receive it
  std::shared_ptr<Gathering> ahead_;      ///< the gathering in advance, or null
  int64_t requested_by_ = -1;             ///< the last backward pass that requested the tensor
};

/// The divided tensors of one guard, and the thread that gathers them. The order of gatherings depends only on the
/// order in which the graph saves and requests tensors, so it is the same on all ranks.
/// Threads: thread-safe
class PartitionStore : public std::enable_shared_from_this<PartitionStore> {
 public:
  PartitionStore(const comm::Group& group, bool check_values);
  ~PartitionStore();
  PartitionStore(const PartitionStore&) = delete;
  PartitionStore& operator=(const PartitionStore&) = delete;

  /// Params: dense – dense in any order of dimensions
  std::shared_ptr<tap::PackedTensor> put(const at::Tensor& dense);
  PartitionStats stats() const;

 private:
  friend class PartitionedTensor;

  /// State that is shared with the thread.
  struct Shared {
    Mutex mutex;
    ConditionVariable work, progress;
    std::deque<std::shared_ptr<Gathering>> queue BELLOWS_GUARDED_BY(mutex);
    bool ending BELLOWS_GUARDED_BY(mutex) = false;
    int64_t gathered BELLOWS_GUARDED_BY(mutex) = 0;
    int64_t sent_bytes BELLOWS_GUARDED_BY(mutex) = 0;
    std::exception_ptr error BELLOWS_GUARDED_BY(mutex);  ///< the first one; afterwards, the ranks gather nothing
  };

  /// Excluded from the thread-safety analysis, which cannot detect that `shared` owns the lock.
  static void run(const comm::Group& group, const std::shared_ptr<Shared>& shared) BELLOWS_NO_THREAD_SAFETY_ANALYSIS;
  at::Tensor get(PartitionedTensor& item);
  std::shared_ptr<Gathering> begin(PartitionedTensor& item) BELLOWS_REQUIRES(mutex_);
  void gather_ahead(int64_t before, int64_t backward) BELLOWS_REQUIRES(mutex_);
  void forget(const PartitionedTensor& item);

  const comm::Group group_;
  const bool check_values_;
  const std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
  mutable RecursiveMutex mutex_;  ///< held while gatherings are queued, so that their order is the order of requests
  std::map<int64_t, PartitionedTensor*> items_ BELLOWS_GUARDED_BY(mutex_);
  bool first_pass_ BELLOWS_GUARDED_BY(mutex_) = true;  ///< no tensor was requested yet
  int64_t next_number_ BELLOWS_GUARDED_BY(mutex_) = 0;
  int64_t ahead_of_ BELLOWS_GUARDED_BY(mutex_) = -1;  ///< number of the tensor that is gathered in advance; -1: none
  int64_t ahead_for_ BELLOWS_GUARDED_BY(mutex_) = 0;  ///< the backward pass for which it is gathered
  PartitionStats stats_ BELLOWS_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace bellows::recompute::detail
