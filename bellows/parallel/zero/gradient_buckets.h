#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "bellows/comm/collectives.h"
#include "bellows/core/mutex.h"
#include "bellows/core/sharded_gradients.h"
#include "bellows/parallel/zero/shard_layout.h"
#include "bellows/parallel/zero/shard_offload.h"
#include "bellows/tap/gradient_tap.h"

namespace bellows::parallel {

/// Exchanges and shards the gradients for ZeRO-2 and ZeRO-3. As soon as backward has computed a gradient, the gradient
/// is copied into the buffer of its bucket (struct Unit). When a bucket is complete, it is averaged over the ranks, and
/// each rank adds its slice of the mean to the gradients of its shards (Place::piece). With hybrid sharding, the slice is
/// then averaged over the replicas.
///
/// All ranks send the buckets in the same order, which is that of the layout. Buckets that were incomplete on any rank in
/// the previous step come last, so that they do not hold up the others. At the end of backward, incomplete buckets are
/// sent with zeros for missing gradients. At most two buckets are in flight, and one slice between the replicas.
///
/// With start_updates(), the parameters of a bucket are updated as soon as its slice has its mean. The ranks then also
/// exchange one byte per parameter of the bucket, which states whether any rank has a gradient.
/// Threads: the hooks run on autograd's threads. Call all other functions on one thread, and not during backward
class GradientShards final : public ShardedGradients {
 public:
  /// Updates parameters during backward. All functions are called on the thread of the gradients.
  class Updates {
   public:
    virtual void begin() = 0;  ///< before the first bucket of a backward pass
    /// All ranks have the gradients of the bucket. Parameters without a gradient on any rank have none here, either.
    virtual void update(size_t bucket) = 0;
    virtual void end() = 0;  ///< after the last bucket
    virtual ~Updates() = default;
  };

  /// Params: dtype – in which gradients are exchanged; none: that of the parameters
  ///         all – the ranks of all replicas
  ///         file – for the gradients of the shards; null: they are in memory
  GradientShards(Layout& layout, const ShardGroups& groups, const comm::Group& all,
                 std::optional<at::ScalarType> dtype = {}, std::shared_ptr<BucketFile> file = nullptr);
  virtual ~GradientShards();
  GradientShards(const GradientShards&) = delete;
  GradientShards& operator=(const GradientShards&) = delete;

  // Not checked: no other thread uses this object outside of backward. The same applies to take_used().
  at::Tensor over_ranks(at::Tensor number, Over op) const override BELLOWS_NO_THREAD_SAFETY_ANALYSIS;
  /// Whether an object of this class shards the gradient of a parameter.
  static bool shards(const at::Tensor& parameter) { return of(parameter) != nullptr; }
  /// Returns the object that shards the gradient of a parameter; null if there is none.
  static GradientShards* of(const at::Tensor& parameter);
  /// The ranks of all replicas, over which gradients are averaged.
  const comm::Group& ranks() const { return all_; }

  /// From start_keeping() to stop_keeping(), backward passes leave their gradients in `parameter.grad()`. The next backward
  /// pass exchanges the sums. Calls can be nested.
  void start_keeping();
  void stop_keeping();
  /// Exchanges the gradients in `parameter.grad()`, without a backward pass. Collective.
  void exchange_kept();

  /// From start_updates() to stop_updates(), each backward pass updates the parameters and frees their gradients.
  /// over_ranks() and start_keeping() then throw.
  /// Throws: c10::ValueError if there are gradients, or if updates were already started
  void start_updates(Updates& updates);
  void stop_updates();

  /// Returns for each trained parameter whether it had a gradient on any rank since the previous call. Determines the
  /// order in which buckets are sent from now on. Collective.
  /// Throws: c10::ValueError, before the exchange, if gradients are kept that no later backward pass has exchanged
  std::vector<bool> take_used() BELLOWS_NO_THREAD_SAFETY_ANALYSIS;

 private:
  struct Buffer {
    at::Tensor flat;  ///< undefined until the first gradient arrives
    std::vector<bool> came;
    size_t missing = 0;
  };
  struct UnderWay {
    size_t unit;
    comm::Pending mean;
    std::optional<comm::Pending> flags = {};  ///< see flags_of(); none without updates
  };

  /// Owns the gradients of parameters that are slices of larger tensors, as in tensor parallelism.
  class OfSlices;

  void register_gradients();
  void arrived(size_t place, const at::Tensor& parameter);
  void follow_backward() BELLOWS_REQUIRES(mutex_);
  void put(size_t place, at::Tensor& gradient) BELLOWS_REQUIRES(mutex_);
  void fill_missing(size_t bucket) BELLOWS_REQUIRES(mutex_);
  void send_next() BELLOWS_REQUIRES(mutex_);
  void end() BELLOWS_REQUIRES(mutex_);
  void keep_oldest() BELLOWS_REQUIRES(mutex_);
  void keep_averaged() BELLOWS_REQUIRES(mutex_);
  void take_mean(UnderWay& done, const at::Tensor& mean) BELLOWS_REQUIRES(mutex_);
  void add_to_pieces(size_t unit, const at::Tensor& mean) BELLOWS_REQUIRES(mutex_);
  at::Tensor flags_of(size_t unit) const BELLOWS_REQUIRES(mutex_);
  void send_incomplete_last() BELLOWS_REQUIRES(mutex_);
  at::Tensor stored(const Place& place, const at::Tensor& gradient) const;
  void check_ended(const char* where) const BELLOWS_REQUIRES(mutex_);

  at::TensorOptions options_of(const Unit& unit) const;

  Layout& layout_;
  const std::optional<at::ScalarType> dtype_;
  const ShardGroups groups_;
  const comm::Group all_;
  const std::shared_ptr<BucketFile> file_;
  /// Duplicates of the groups, because buckets may be sent before or after collectives that the model itself calls in
  /// backward.
  const comm::Group means_;
  const std::optional<comm::Group> replica_means_;
  Mutex mutex_;
  std::vector<size_t> index_in_unit_;                       ///< position of each parameter in its bucket
  std::vector<Buffer> buffers_ BELLOWS_GUARDED_BY(mutex_);  ///< one buffer per bucket, for the current backward
  std::deque<UnderWay> under_way_ BELLOWS_GUARDED_BY(mutex_);
  std::optional<UnderWay> averaging_ BELLOWS_GUARDED_BY(mutex_);  ///< over the replicas
  std::vector<size_t> order_ BELLOWS_GUARDED_BY(mutex_);          ///< buckets in the order in which they are sent
  size_t next_ BELLOWS_GUARDED_BY(mutex_) = 0;                    ///< index in order_ of the next bucket to send
  bool open_ BELLOWS_GUARDED_BY(mutex_) = false;             ///< gradients have arrived, and backward has not yet ended
  int64_t backward_ BELLOWS_GUARDED_BY(mutex_) = -1;         ///< ID of the current backward pass
  std::weak_ptr<int> alive_ BELLOWS_GUARDED_BY(mutex_);      ///< expires when the current backward ends for any reason
  int keeps_ BELLOWS_GUARDED_BY(mutex_) = 0;                 ///< number of start_keeping() calls in effect
  std::vector<bool> kept_ BELLOWS_GUARDED_BY(mutex_);        ///< for each trained parameter: has a kept gradient
  std::vector<bool> used_ BELLOWS_GUARDED_BY(mutex_);        ///< for each trained parameter, since the last step
  std::vector<bool> incomplete_ BELLOWS_GUARDED_BY(mutex_);  ///< for each bucket: was sent without a gradient
  Updates* updates_ BELLOWS_GUARDED_BY(mutex_) = nullptr;    ///< null: a step after backward updates the parameters
  std::vector<std::unique_ptr<tap::GradientTap>> taps_;
  std::vector<std::unique_ptr<OfSlices>> of_slices_;  ///< one per owner of slices
  std::vector<std::unique_ptr<ShardedGradientsEntry>> entries_;
};

}  // namespace bellows::parallel
