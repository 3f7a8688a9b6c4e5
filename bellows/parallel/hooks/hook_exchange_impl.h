#pragma once

// Include this header only in sources that already depend on c10d.
#include <torch/csrc/distributed/c10d/comm.hpp>

#include <memory>
#include <thread>

#include "bellows/comm/group.h"
#include "bellows/parallel/hooks/gradient_hook.h"

namespace bellows::parallel {

/// Calls the hook for each bucket during backward, on a separate thread.
class HookExchange final : public c10d::CommHookInterface {
 public:
  /// Params: group – a group that only the hook uses
  HookExchange(std::shared_ptr<GradientHook> hook, const comm::Group& group);
  ~HookExchange() override;
  HookExchange(const HookExchange&) = delete;
  HookExchange& operator=(const HookExchange&) = delete;

  /// Starts a backward pass.
  /// Params: buckets – number of buckets; scale – factor by which the hook's means are multiplied
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
