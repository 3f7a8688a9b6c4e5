#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "bellows/comm/group_impl.h"

namespace bellows::comm {

namespace {

using WorkHandle = c10::intrusive_ptr<c10d::Work>;
using Tensors = std::vector<at::Tensor>;

std::string shape_of(const at::Tensor& tensor) {
  return c10::str(tensor.scalar_type(), "[", c10::Join(", ", tensor.sizes()), "]");
}

std::string describe(const char* name, const Tensors& tensors) {
  std::string text = name;
  if (tensors.size() > 1) text += c10::str(" of ", tensors.size(), " tensors,");
  return tensors.empty() ? text : text + " " + shape_of(tensors.front());
}

/// What DistributedDataParallel calls is seen here, too, and whatever else takes the process group.
class WatchedBackend final : public c10d::Backend {
 public:
  WatchedBackend(c10::intrusive_ptr<c10d::Backend> inner, std::string group, std::shared_ptr<Watchdog> watchdog)
      : Backend(inner->getRank(), inner->getSize()),
        inner_(std::move(inner)),
        group_(std::move(group)),
        watchdog_(std::move(watchdog)) {}

  WorkHandle broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
    return note(describe(("broadcast from " + std::to_string(options.rootRank)).c_str(), tensors),
                [&] { return inner_->broadcast(tensors, options); });
  }
  WorkHandle allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    return note(describe("all_reduce", tensors), [&] { return inner_->allreduce(tensors, options); });
  }
  WorkHandle allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    return note(describe("all_reduce sparse", tensors), [&] { return inner_->allreduce_sparse(tensors, options); });
  }
  WorkHandle allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) override {
    return note(describe("all_reduce", tensors), [&] { return inner_->allreduce_coalesced(tensors, options); });
  }
  WorkHandle reduce(Tensors& tensors, const c10d::ReduceOptions& options) override {
    return note(describe(("reduce to " + std::to_string(options.rootRank)).c_str(), tensors),
                [&] { return inner_->reduce(tensors, options); });
  }
  WorkHandle allgather(std::vector<Tensors>& out, Tensors& in, const c10d::AllgatherOptions& options) override {
    return note(describe("all_gather", in), [&] { return inner_->allgather(out, in, options); });
  }
  WorkHandle _allgather_base(at::Tensor& out, at::Tensor& in, const c10d::AllgatherOptions& options) override {
    return note(describe("all_gather", {in}), [&] { return inner_->_allgather_base(out, in, options); });
  }
  WorkHandle allgather_coalesced(std::vector<Tensors>& out, Tensors& in,
                                 const c10d::AllgatherOptions& options) override {
    return note(describe("all_gather", in), [&] { return inner_->allgather_coalesced(out, in, options); });
  }
  WorkHandle allgather_into_tensor_coalesced(Tensors& out, Tensors& in,
                                             const c10d::AllgatherOptions& options) override {
    return note(describe("all_gather", in), [&] { return inner_->allgather_into_tensor_coalesced(out, in, options); });
  }
  WorkHandle gather(std::vector<Tensors>& out, Tensors& in, const c10d::GatherOptions& options) override {
    return note(describe("gather", in), [&] { return inner_->gather(out, in, options); });
  }
  WorkHandle scatter(Tensors& out, std::vector<Tensors>& in, const c10d::ScatterOptions& options) override {
    return note(describe("scatter", out), [&] { return inner_->scatter(out, in, options); });
  }
  WorkHandle reduce_scatter(Tensors& out, std::vector<Tensors>& in,
                            const c10d::ReduceScatterOptions& options) override {
    return note(describe("reduce_scatter", out), [&] { return inner_->reduce_scatter(out, in, options); });
  }
  WorkHandle _reduce_scatter_base(at::Tensor& out, at::Tensor& in, const c10d::ReduceScatterOptions& options) override {
    return note(describe("reduce_scatter", {in}), [&] { return inner_->_reduce_scatter_base(out, in, options); });
  }
  WorkHandle reduce_scatter_tensor_coalesced(Tensors& out, Tensors& in,
                                             const c10d::ReduceScatterOptions& options) override {
    return note(describe("reduce_scatter", in),
                [&] { return inner_->reduce_scatter_tensor_coalesced(out, in, options); });
  }
  WorkHandle alltoall_base(at::Tensor& out, at::Tensor& in, std::vector<int64_t>& out_sizes,
                           std::vector<int64_t>& in_sizes, const c10d::AllToAllOptions& options) override {
    return note("all_to_all", [&] { return inner_->alltoall_base(out, in, out_sizes, in_sizes, options); });
  }
  WorkHandle alltoall(Tensors& out, Tensors& in, const c10d::AllToAllOptions& options) override {
    return note("all_to_all", [&] { return inner_->alltoall(out, in, options); });
  }
  WorkHandle barrier(const c10d::BarrierOptions& options) override {
    return note("barrier", [&] { return inner_->barrier(options); });
  }

  // Between two ranks; not counted, since the others do not call them.
  WorkHandle send(Tensors& tensors, int to, int tag) override { return inner_->send(tensors, to, tag); }
  WorkHandle recv(Tensors& tensors, int from, int tag) override { return inner_->recv(tensors, from, tag); }
  WorkHandle recvAnysource(Tensors& tensors, int tag) override { return inner_->recvAnysource(tensors, tag); }

  const std::string getBackendName() const override { return inner_->getBackendName(); }
  c10::intrusive_ptr<Options> getBackendOptions() override { return inner_->getBackendOptions(); }
  void setTimeout(std::chrono::milliseconds timeout) override { inner_->setTimeout(timeout); }
  bool supportsCoalescing() const override { return inner_->supportsCoalescing(); }
  void startCoalescing() override { inner_->startCoalescing(); }
  WorkHandle endCoalescing() override { return inner_->endCoalescing(); }
  void setSequenceNumberForGroup() override { inner_->setSequenceNumberForGroup(); }
  uint64_t getSequenceNumberForGroup() override { return inner_->getSequenceNumberForGroup(); }
  void setGroupUid(const std::string& uid) override { inner_->setGroupUid(uid); }
  void abort() override { inner_->abort(); }
  void shutdown() override { inner_->shutdown(); }

 private:
  template <class Action>
  WorkHandle note(std::string what, Action action) {
    const Call call = watchdog_->enter(group_, std::move(what));
    try {
      WorkHandle work = action();
      // Weak: its tensors are not kept for the watchdog.
      watchdog_->started(call, [weak = c10::weak_intrusive_ptr<c10d::Work>(work)] {
        const WorkHandle running = weak.lock();
        return !running || running->isCompleted();
      });
      return work;
    } catch (...) {
      watchdog_->finished(call);
      throw;
    }
  }

  c10::intrusive_ptr<c10d::Backend> inner_;
  std::string group_;
  std::shared_ptr<Watchdog> watchdog_;
};

}  // namespace

c10::intrusive_ptr<c10d::Backend> watched(c10::intrusive_ptr<c10d::Backend> backend, std::string group,
                                          std::shared_ptr<Watchdog> watchdog) {
  return c10::make_intrusive<WatchedBackend>(std::move(backend), std::move(group), std::move(watchdog));
}

}  // namespace bellows::comm
