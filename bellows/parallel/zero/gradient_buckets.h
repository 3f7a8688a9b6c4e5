#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "bellows/comm/collectives.h"
#include "bellows/core/sharded_gradients.h"
#include "bellows/parallel/zero/shard_layout.h"
#include "bellows/tap/gradient_tap.h"

namespace bellows::parallel {

/// Gradients for ZeRO-2. Each gradient is copied into the buffer of its bucket (struct Unit) as soon as backward has
/// computed it. When a bucket is complete, it is averaged over the ranks, and each rank adds its slice to
/// `piece.grad()`.
///
/// Buckets are sent in a fixed order on all ranks, independent of the order in which they become complete. At the end
/// of backward, incomplete buckets are sent with zeros for missing gradients. At most two buckets are in flight.
/// Threads: autograd's threads call the hooks; one thread calls the rest, not during backward
class GradientShards final : public ShardedGradients {
 public:
  GradientShards(Layout& layout, const comm::Group& group);
  virtual ~GradientShards() = default;

  at::Tensor over_ranks(at::Tensor number, Over op) const override;

  /// Whether each parameter had a gradient on any rank since the last call. Collective.
  std::vector<bool> take_used();

 private:
  struct Buffer {
    at::Tensor flat;  ///< undefined until the first gradient arrives
    std::vector<bool> came;
    size_t missing = 0;
  };
  struct UnderWay {
    size_t unit;
    comm::Pending mean;
  };

  void arrived(size_t place, const at::Tensor& parameter);
  void follow_backward();
  void put(size_t place, const at::Tensor& gradient);
  void send_next();
  void end();
  void keep_oldest();
  void check_ended(const char* where) const;

  Layout& layout_;
  const comm::Group group_;
  /// A duplicate, because buckets may be sent before or after collectives of the model's own backward.
  const comm::Group means_;
  std::mutex mutex_;
  std::vector<size_t> index_in_unit_;  ///< position of each parameter in its bucket
  std::vector<Buffer> buffers_;        ///< of each bucket, in the current backward
  std::deque<UnderWay> under_way_;
  size_t next_ = 0;           ///< the next bucket to send
  bool open_ = false;         ///< gradients have arrived, and backward has not ended
  int64_t backward_ = -1;     ///< the current backward pass
  std::weak_ptr<int> alive_;  ///< expires when the current backward ends for any reason
  std::vector<bool> used_;
  std::vector<std::unique_ptr<tap::GradientTap>> taps_;
  std::unique_ptr<ShardedGradientsEntry> entry_;
};

}  // namespace bellows::parallel
