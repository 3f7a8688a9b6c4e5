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

/// ZeRO-2's gradients: each goes into its unit's buffer as soon as backward has it, a unit that is complete becomes the mean
/// over the ranks, and each rank keeps its slice: as `piece.grad()`, added to what is there.
///
/// Units leave in their own order on all ranks, whatever the order in which they become complete; at the end of backward
/// those leave that wait for gradients which did not come, these being zero. At most two are under way.
/// Threads: hooks by threads of autograd; all else by one thread, not during backward
class GradientShards final : public ShardedGradients {
 public:
  GradientShards(Layout& layout, const comm::Group& group);
  virtual ~GradientShards() = default;

  at::Tensor over_ranks(at::Tensor number, Over op) const override;

  /// Whether each place had a gradient on any rank since the last call. Collective.
  std::vector<bool> take_used();

 private:
  struct Buffer {
    at::Tensor flat;  ///< undefined while nothing has come
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
  const comm::Group
      means_;  ///< its duplicate: a unit may leave before or behind a collective of the model's own backward
  std::mutex mutex_;
  std::vector<size_t> index_in_unit_;  ///< of each place
  std::vector<Buffer> buffers_;        ///< of each unit, in the backward that goes on
  std::deque<UnderWay> under_way_;
  size_t next_ = 0;           ///< the unit that leaves next
  bool open_ = false;         ///< gradients have come, backward has not ended
  int64_t backward_ = -1;     ///< the one whose end is waited for
  std::weak_ptr<int> alive_;  ///< gone when that one ended, in whatever way
  std::vector<bool> used_;
  std::vector<std::unique_ptr<tap::GradientTap>> taps_;
  std::unique_ptr<ShardedGradientsEntry> entry_;
};

}  // namespace bellows::parallel
