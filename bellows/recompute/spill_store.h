#pragma once

#include <ATen/core/DimVector.h>

#include <condition_variable>
#include <deque>
#include <exception>
#include <map>
#include <thread>

#include "bellows/recompute/offload.h"
#include "bellows/recompute/spill_file.h"

namespace bellows::recompute::detail {

class SpillStore;

/// One tensor that is in a file, or in transit to or from it.
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
  const int64_t number_;  ///< in the order of forward
  at::DimVector sizes_, strides_;
  c10::TensorOptions options_;
  int64_t bytes_ = 0;
  // The members below are protected by the store's lock.
  Place place_ = Place::queued;
  int64_t offset_ = -1;  ///< in the file
  at::Tensor tensor_;    ///< set in the states queued, writing and memory
  /// Data of tensor_, fetched early: later, pending operators that read the tensor may block access to it
  const void* data_;
  bool ahead_ = false;  ///< read from the file, but not yet requested
  std::exception_ptr error_;
  c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> given_;  ///< the last result of unpack()
};

/// The file, its thread, and its tensors in the order of forward.
/// Threads: safe
class SpillStore : public std::enable_shared_from_this<SpillStore> {
 public:
  SpillStore(const std::string& folder, int64_t reserve_bytes, int64_t in_flight_bytes);
  ~SpillStore();
  SpillStore(const SpillStore&) = delete;
  SpillStore& operator=(const SpillStore&) = delete;

  /// Queues a tensor for writing. Waits while too many bytes are in transit.
  /// Params: tensor – a CPU tensor, dense in any order of dimensions
  std::shared_ptr<tap::PackedTensor> put(const at::Tensor& tensor);
  void wait_until_written();
  OffloadStats stats() const;

 private:
  friend class SpilledTensor;
  using Lock = std::unique_lock<std::mutex>;
  using Item = std::shared_ptr<SpilledTensor>;

  /// State shared with the thread. The store may be destroyed on that thread together with its last tensor.
  struct Shared {
    std::mutex mutex;
    std::condition_variable work, progress;
    std::deque<std::weak_ptr<SpilledTensor>> to_write, to_read;
    bool ending = false;
  };

  static void run(const std::shared_ptr<Shared>& shared, SpillStore* store);
  void write_next(Lock& lock, const Item& item);
  void read_next(Lock& lock, const Item& item);
  at::Tensor get(const Item& item);
  void read_ahead(int64_t before);
  void forget(SpilledTensor& item);
  void fail_if_broken() const;

  SpillFile file_;
  const int64_t in_flight_bytes_;
  const std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
  std::map<int64_t, SpilledTensor*> items_;
  int64_t next_number_ = 0, writing_bytes_ = 0, reading_bytes_ = 0;
  std::exception_ptr error_;  ///< of a failed write: the file must not be used any more
  OffloadStats stats_;
  std::thread thread_;
};

}  // namespace bellows::recompute::detail
