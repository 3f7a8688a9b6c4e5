#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "bellows/tap/op_check.h"

namespace bellows::recompute::detail {

/// Leaves the function in its second run when nothing more is needed. No std::exception, so that a function that
/// handles errors does not take it for one.
struct Enough {};

/// Watches a second run: which operator runs, and what it writes in place that was there before, so that it can be put
/// back: a second run must not count a batch twice. And whether it draws random numbers.
///
/// A tensor of version 0 that is written for the first time was made in this run: the first run would have raised its
/// version. Batch norms write their running statistics without saying so in their schema; they are known by the names of
/// the arguments.
class BufferWrites final : public tap::OpCheck {
 public:
  explicit BufferWrites(bool keep) : keep_(keep) {}
  void check(const tap::OpRef& op, tap::Stack& stack) override;
  /// Puts all buffers back, and their version counters.
  void restore();
  /// The operator that the function called last.
  std::string operator_name() const;
  /// It is a buffer that the function writes: its values are those of another run.
  bool wrote(const at::Tensor& tensor) const;
  /// Random numbers were drawn since this was asked last.
  bool drew();
  /// What is saved now is saved by an operator of libtorch. By another one otherwise: within a torch::autograd::Function operators run
  /// without gradients, and the Function saves when it has run.
  bool operator_saves() const;
  /// check() throws Enough at the next one.
  void stop_at_next_operator();

 private:
  struct Before {
    at::Tensor tensor, values;
    c10::VariableVersion counter;
    uint32_t version;
  };
  void note(const at::Tensor& tensor, bool counted);

  const bool keep_;
  mutable std::mutex mutex_;
  std::string name_;
  bool drew_ = false, with_gradients_ = true, stop_ = false;
  std::vector<Before> before_;
  std::unordered_map<const c10::StorageImpl*, c10::weak_intrusive_ptr<c10::StorageImpl>> made_here_;
};

}  // namespace bellows::recompute::detail
