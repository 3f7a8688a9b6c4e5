#pragma once

#include <ATen/core/Tensor.h>

#include <deque>
#include <exception>
#include <string>
#include <thread>
#include <vector>

#include "bellows/core/mutex.h"
#include "bellows/parallel/placement/streamed_weights.h"
#include "bellows/parallel/placement/weight_buckets.h"
#include "bellows/parallel/placement/weight_file.h"

namespace bellows::parallel {

/// Gives memory and values to the buckets of StreamedWeights, and takes the memory away again. A thread reads the file.
/// Threads: load() on one thread at a time; counters() on any thread
class BucketLoader {
 public:
  /// Params: buckets, file – must outlive this object; budget – bytes of all buckets that are in memory at the same time;
  ///         why – message of the exception if values are accessed while their bucket has no memory
  /// Throws: c10::Error if the system cannot start a thread
  BucketLoader(std::vector<WeightBucket>& buckets, const WeightFile& file, c10::Device device, int64_t budget,
               std::string why);
  ~BucketLoader();
  BucketLoader(const BucketLoader&) = delete;
  BucketLoader& operator=(const BucketLoader&) = delete;

  int64_t budget() const { return budget_; }
  /// Loads the buckets in `needed` and starts to load those in `wanted`. All other buckets lose their memory.
  /// Params: wanted – starts with all buckets of `needed`; their sizes must not exceed the budget
  /// Throws: exceptions of reading a needed bucket, or of allocating its memory. The bucket then has no memory, and the
  ///         next call reads it again
  void load(const std::vector<size_t>& needed, const std::vector<size_t>& wanted);
  /// Returns the counters, without those of resident weights.
  StreamedWeightsCounters counters() const;

 private:
  enum class State { absent, reading, read, loaded, failed };
  struct Slot {
    State state = State::absent;
    at::Tensor memory;         ///< [bytes], uint8, on the CPU: receives the values
    std::exception_ptr error;  ///< set if the state is `failed`
  };

  void start(size_t bucket, bool early);
  void finish(size_t bucket);
  void free(size_t bucket);
  c10::DataPtr withdraw(size_t bucket) const;
  at::Tensor take_memory(int64_t bytes);
  void count_memory(int64_t bytes);
  void wait_until_read(size_t bucket);
  void run_reader();

  std::vector<WeightBucket>& buckets_;
  const WeightFile& file_;
  const c10::Device device_;
  const int64_t budget_;
  const std::string why_;
  std::vector<at::Tensor> spare_;  ///< memory of freed buckets, on the CPU; new memory costs page faults
  mutable Mutex mutex_;
  ConditionVariable changed_;
  std::vector<Slot> slots_ BELLOWS_GUARDED_BY(mutex_);
  std::deque<size_t> queue_ BELLOWS_GUARDED_BY(mutex_);
  bool stop_ BELLOWS_GUARDED_BY(mutex_) = false;
  StreamedWeightsCounters counters_ BELLOWS_GUARDED_BY(mutex_);
  std::thread reader_;
};

}  // namespace bellows::parallel
