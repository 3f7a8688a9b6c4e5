#pragma once

#include <ATen/core/Tensor.h>

#include <compare>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "bellows/comm/group.h"
#include "bellows/comm/point_to_point.h"
#include "bellows/parallel/pipeline/schedule.h"

namespace bellows::parallel {

/// A tensor that a stage sends: the output of a micro-batch, or the gradient of its input.
struct StageMessage {
  bool gradient = false;
  int stage = 0;  ///< the stage that computes the tensor
  int micro_batch = 0;
  auto operator<=>(const StageMessage&) const = default;
};

/// Returns the messages that rank `from` sends to rank `to`, in the order of the schedule. Both ranks derive the same
/// list, so messages need no names.
std::vector<StageMessage> messages_between(const PipelineSchedule& schedule, int from, int to);

/// The exchanges of one rank in one schedule. Sends run in the background. A receive posts all messages of the sending
/// rank up to the one it needs, and the next one, so that a message arrives while the rank computes.
///
/// Dtypes and sizes of outputs are sent in the first step, and again after forget_sizes(). Afterwards, they must stay
/// the same. A gradient has the sizes of the output. No gradient is sent for outputs that need none.
/// Threads: not thread-safe
/// Throws:  c10::ValueError if the sizes of an output change, if it starts or stops to need a gradient, or if it has
///          more than 8 dims
class StageExchange {
 public:
  /// Params: group – one rank per rank of the schedule; it must exist as long as the object
  ///         device – of the tensors
  StageExchange(const PipelineSchedule& schedule, const comm::Group& group, c10::Device device);

  void begin_step();
  /// Sends a result of this rank, or stores it for a stage of this rank.
  void send(const StageMessage& message, const at::Tensor& tensor, bool needs_gradient);
  /// Returns a result of another stage. Undefined if it is a gradient that is not needed.
  at::Tensor receive(const StageMessage& message);
  /// Returns whether the output of a stage needs a gradient. Known after it was sent or received.
  bool needs_gradient(int stage, int micro_batch) const;
  /// Waits until all results have been sent.
  void end_step();
  void forget_sizes() { sizes_known_ = false; }

 private:
  /// Describes an output.
  struct Layout {
    at::ScalarType dtype = at::kFloat;
    std::vector<int64_t> sizes;
    bool needs_gradient = false;
    bool operator==(const Layout&) const = default;
    std::string text() const;  ///< such as "Float [2, 8] with a gradient"
  };
  /// The messages from one rank.
  struct Source {
    int rank = 0;
    std::vector<StageMessage> order;
    size_t posted = 0;
    std::map<StageMessage, comm::Pending> pending = {};
  };

  int rank_of(int stage) const { return schedule_.stage_ranks[static_cast<size_t>(stage)]; }
  int receiver_of(const StageMessage& message) const;
  void post_next(Source& source);
  void send_layout(const Layout& layout, int to);
  Layout receive_layout(int from);
  const Layout& layout_of(const StageMessage& message) const;

  const PipelineSchedule& schedule_;
  const comm::Group& group_;
  const c10::Device device_;
  std::vector<Source> sources_;
  std::map<StageMessage, at::Tensor> local_;  ///< results for stages of the same rank
  std::vector<comm::Pending> layout_sends_;
  std::map<StageMessage, comm::Pending> sends_;    ///< those that may still run
  std::map<std::pair<int, int>, Layout> layouts_;  ///< of outputs, by stage and micro-batch
  bool sizes_known_ = false;
};

}  // namespace bellows::parallel
