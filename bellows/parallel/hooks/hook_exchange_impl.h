#pragma once

// For sources that depend on c10d.
#include <torch/csrc/distributed/c10d/comm.hpp>

#include <memory>
#include <thread>

#include "bellows/comm/group.h"
#include "bellows/parallel/hooks/gradient_hook.h"

namespace bellows::parallel {

/// Calls a hook for each bucket on another thread during backward.
class HookExchange final : public c10d::CommHookInterface {
 public:
  /// Params: group – used only by the hook
  HookExchange(std::shared_ptr<GradientHook> hook, const comm::Group& group);
  ~HookExchange() override;
  HookExchange(const HookExchange&) = delete;
  HookExchange& operator=(const HookExchange&) = delete;

  /// Starts a backward pass.
  /// Params: buckets – their number; scale – factor for the hook's means
  void begin(size_t buckets, double scale);

  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& bucket) override;
  at::Tensor parseHookResult(const c10::IValue& result) override { return result.toTensor(); }

 private:
  struct Work;
  std::shared_ptr<Work> work_;
  std::thread thread_;
  size_t next_ = 0, count_ = 0;
  double scale_ = 1;
};

}  // namespace bellows::parallel
