#pragma once

#include <ATen/core/DimVector.h>

#include <deque>
#include <exception>
#include <map>
#include <thread>

#include "bellows/core/mutex.h"
#include "bellows/recompute/offload.h"
#include "bellows/recompute/spill_file.h"

namespace bellows::recompute::detail {

class SpillStore;

/// One tensor that was moved to a file, or that is being written or read.
class SpilledTensor final : public tap::PackedTensor, public std::enable_shared_from_this<SpilledTensor> {
 public:
  SpilledTensor(std::shared_ptr<SpillStore> store, at::Tensor dense, int64_t number);
  ~SpilledTensor() override;
  at::Tensor unpack() override;

 private:
  friend class SpillStore;
  enum class Place { queued, writing, file, reading, memory };
  int64_t bytes() const { return bytes_; }
  at::Tensor read_from_file() const;

  const std::shared_ptr<SpillStore> store_;
  const int64_t number_;  ///< position in the order in which forward saved the tensors
  at::DimVector sizes_, strides_;
  c10::TensorOptions options_;
  int64_t bytes_ = 0;
  // The store's mutex protects the members below. They are not annotated, because SpillStore is incomplete here.
  Place place_ = Place::queued;
  int64_t offset_ = -1;  ///< offset in the file
  at::Tensor tensor_;    ///< set in the states queued, writing and memory
  /// Data pointer of tensor_. It is stored early, because access to the data may throw later while pending operators
  /// read the tensor.
  const void* data_;
  bool ahead_ = false;  ///< the tensor was read ahead and has not been requested yet
  std::exception_ptr error_;
  c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> given_;  ///< the last result of unpack()
};

/// The file, the thread that writes and reads it, and the tensors in the order in which forward saved them.
/// Threads: thread-safe
class SpillStore : public std::enable_shared_from_this<SpillStore> {
 public:
  SpillStore(const std::string& folder, int64_t reserve_bytes, int64_t in_flight_bytes);
  ~SpillStore();
  SpillStore(const SpillStore&) = delete;
  SpillStore& operator=(const SpillStore&) = delete;

  /// Queues a tensor for writing. If too many bytes are waiting to be written, the function first waits.
  /// Params: tensor – a CPU tensor that is dense, with any order of dimensions
  std::shared_ptr<tap::PackedTensor> put(const at::Tensor& tensor);
  void wait_until_written();
  OffloadStats stats() const;

 private:
  friend class SpilledTensor;
  using Item = std::shared_ptr<SpilledTensor>;

  /// State that is shared with the thread. The thread may destroy the store when it releases the last tensor.
  struct Shared {
    Mutex mutex;
    ConditionVariable work, progress;
    std::deque<std::weak_ptr<SpilledTensor>> to_write BELLOWS_GUARDED_BY(mutex);
    std::deque<std::weak_ptr<SpilledTensor>> to_read BELLOWS_GUARDED_BY(mutex);
    bool ending BELLOWS_GUARDED_BY(mutex) = false;
  };

  /// Excluded from the thread-safety analysis, which cannot detect that `shared` is the state of `store`.
  static void run(const std::shared_ptr<Shared>& shared, SpillStore* store) BELLOWS_NO_THREAD_SAFETY_ANALYSIS;
  void write_next(const Item& item) BELLOWS_REQUIRES(shared_->mutex);
  void read_next(const Item& item) BELLOWS_REQUIRES(shared_->mutex);
  at::Tensor get(const Item& item);
  void read_ahead(int64_t before) BELLOWS_REQUIRES(shared_->mutex);
  void forget(SpilledTensor& item);
  void fail_if_broken() const BELLOWS_REQUIRES(shared_->mutex);

  SpillFile file_;
  const int64_t in_flight_bytes_;
  const std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
  std::map<int64_t, SpilledTensor*> items_ BELLOWS_GUARDED_BY(shared_->mutex);
  int64_t next_number_ BELLOWS_GUARDED_BY(shared_->mutex) = 0;
  int64_t writing_bytes_ BELLOWS_GUARDED_BY(shared_->mutex) = 0;
  int64_t reading_bytes_ BELLOWS_GUARDED_BY(shared_->mutex) = 0;
  std::exception_ptr error_
      BELLOWS_GUARDED_BY(shared_->mutex);  ///< error of a failed write, after which the file must not be used
  OffloadStats stats_ BELLOWS_GUARDED_BY(shared_->mutex);
  std::thread thread_;
};

}  // namespace bellows::recompute::detail
