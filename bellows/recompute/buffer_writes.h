#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "bellows/tap/op_check.h"

namespace bellows::recompute::detail {

/// Thrown to leave the function in its second run when nothing more is needed. It is not derived from std::exception,
/// so that error handling in the function does not catch it.
struct Enough {};

/// Observes a second run: the current operator, whether random numbers are drawn, and in-place writes to tensors that
/// existed before. Their old values are stored and can be restored, so that a second run does not count a batch twice.
///
/// A tensor whose version is 0 at its first write was created in this run, because the first run would have increased
/// its version. Batch norms do not declare in their schema that they write running statistics. These arguments are
/// detected by name.
class BufferWrites final : public tap::OpCheck {
 public:
  explicit BufferWrites(bool keep) : keep_(keep) {}
  void check(const tap::OpRef& op, tap::Stack& stack) override;
  /// Restores all buffers and their version counters.
  void restore();
  /// Returns: the name of the operator that the function called last
  std::string operator_name() const;
  /// True if `tensor` is a buffer that the function writes. Its values can differ between the runs.
  bool wrote(const at::Tensor& tensor) const;
  /// True if random numbers were drawn since the last call of drew().
  bool drew();
  /// True if an operator of libtorch saves the current tensor. False if a torch::autograd::Function does: its operators
  /// run without gradients, and it saves tensors after it has run.
  bool operator_saves() const;
  /// The next call of check() throws Enough.
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
