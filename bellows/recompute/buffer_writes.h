#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include <string>
#include <unordered_map>
#include <vector>

#include "bellows/core/mutex.h"
#include "bellows/tap/op_check.h"

namespace bellows::recompute::detail {

/// Exception that ends a second run when no more tensors are needed. It is not derived from std::exception, so that
/// exception handlers in the function do not catch it.
struct Enough {};

/// Observes a second run. It records the current operator, whether random numbers are drawn, and in-place writes to
/// tensors that existed before the run. The old values of these tensors are stored and can be restored, so that running
/// statistics do not count a batch twice.
///
/// A tensor whose version is 0 at its first write was created in the second run. Otherwise, the first run would already
/// have increased the version. The schemas of batch norm operators do not declare that they write running statistics.
/// Therefore, the arguments for running statistics are detected by name.
class BufferWrites final : public tap::OpCheck {
 public:
  explicit BufferWrites(bool keep) : keep_(keep) {}
  void check(const tap::OpRef& op, tap::Stack& stack) override;
  /// Restores all buffers and their version counters.
  // Excluded from the thread-safety analysis, because no other thread uses this object after the second run.
  void restore() BELLOWS_NO_THREAD_SAFETY_ANALYSIS;
  /// Returns the name of the operator that the function called last.
  std::string operator_name() const;
  /// Returns whether `tensor` is a buffer that the function writes. The values of such a buffer may differ between the
  /// two runs.
  bool wrote(const at::Tensor& tensor) const;
  /// Returns whether random numbers have been drawn since the last call to drew().
  bool drew();
  /// Call this function while autograd saves a tensor. Returns true if an operator of libtorch saves the tensor, and
  /// false if a torch::autograd::Function saves it. The operators in a torch::autograd::Function run in no-grad mode,
  /// and its tensors are saved after all of these operators have run.
  bool operator_saves() const;
  /// Makes the next call to check() throw Enough.
  void stop_at_next_operator();

 private:
  struct Before {
    at::Tensor tensor, values;
    c10::VariableVersion counter;
    uint32_t version;
  };
  void note(const at::Tensor& tensor, bool counted) BELLOWS_REQUIRES(mutex_);

  const bool keep_;
  mutable Mutex mutex_;
  std::string name_ BELLOWS_GUARDED_BY(mutex_);
  bool drew_ BELLOWS_GUARDED_BY(mutex_) = false;
  bool with_gradients_ BELLOWS_GUARDED_BY(mutex_) = true;
  bool stop_ BELLOWS_GUARDED_BY(mutex_) = false;
  std::vector<Before> before_ BELLOWS_GUARDED_BY(mutex_);
  std::unordered_map<const c10::StorageImpl*, c10::weak_intrusive_ptr<c10::StorageImpl>> made_here_
      BELLOWS_GUARDED_BY(mutex_);
};

}  // namespace bellows::recompute::detail
