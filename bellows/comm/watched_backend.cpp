#include <ATen/ops/empty_like.h>
#include <ATen/record_function.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "bellows/comm/group_impl.h"
#include "bellows/comm/reduction_impl.h"
#include "bellows/core/error.h"
#include "bellows/report/trace_writer.h"

namespace bellows::comm {

namespace {

using WorkHandle = c10::intrusive_ptr<c10d::Work>;
using Tensors = std::vector<at::Tensor>;

std::string shape_of(const at::Tensor& tensor) {
  return c10::str(tensor.scalar_type(), "[", c10::Join(", ", tensor.sizes()), "]");
}

std::string describe(const std::string& name, const Tensors& tensors) {
  std::string text = name;
  if (tensors.size() > 1) text += c10::str(" of ", tensors.size(), " tensors,");
  return tensors.empty() ? text : text + " " + shape_of(tensors.front());
}

int64_t bytes_of(const Tensors& tensors) {
  int64_t bytes = 0;
  for (const at::Tensor& tensor : tensors) bytes += static_cast<int64_t>(tensor.nbytes());
  return bytes;
}

/// A work handle whose errors name the rank that caused them, both in wait() and in the future.
class ExplainedWork final : public c10d::Work {
 public:
  /// Params: ended – called when the work has ended
  ExplainedWork(WorkHandle inner, Call call, std::shared_ptr<Watchdog> watchdog, std::function<void()> ended)
      : inner_(std::move(inner)), call_(std::move(call)), watchdog_(std::move(watchdog)), ended_(std::move(ended)) {}

  bool wait(std::chrono::milliseconds timeout) override {
    at::RecordFunction scope(at::RecordScope::USER_SCOPE);
    if (scope.isActive()) scope.before(std::string(wait_scope_prefix) + call_name(call_.what));
    try {
      const bool done = inner_->wait(timeout);
      watchdog_->finished(call_);
      if (done && ended_) ended_();
      return done;
    } catch (const std::exception& error) {
      TORCH_CHECK_WITH(DistBackendError, false, watchdog_->error_text(call_, user_message(error)));
    }
  }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    const auto future = inner_->getFuture();
    return future->then(
        [call = call_, watchdog = watchdog_](c10::ivalue::Future& done) -> c10::IValue {
          if (!done.hasError()) return done.value();
          TORCH_CHECK_WITH(DistBackendError, false, watchdog->error_text(call, first_words(done.exception_ptr())));
        },
        future->elementType());
  }

  bool isCompleted() override { return inner_->isCompleted(); }
  bool isSuccess() const override { return inner_->isSuccess(); }
  std::exception_ptr exception() const override { return inner_->exception(); }
  int sourceRank() const override { return inner_->sourceRank(); }
  Tensors result() override { return inner_->result(); }
  void synchronize() override { inner_->synchronize(); }
  void blockCurrentStream() override { inner_->blockCurrentStream(); }
  void abort() override { inner_->abort(); }
  c10::intrusive_ptr<c10::ivalue::Future> getFutureResult() override { return inner_->getFutureResult(); }
  float getDuration() const override { return inner_->getDuration(); }
  uint64_t getSequencenumber() const override { return inner_->getSequencenumber(); }

 private:
  static std::string first_words(const std::exception_ptr& error) {
    try {
      std::rethrow_exception(error);
    } catch (const std::exception& known) {
      return user_message(known);
    }
  }

  WorkHandle inner_;
  Call call_;
  std::shared_ptr<Watchdog> watchdog_;
  std::function<void()> ended_;  ///< empty: no one has to know
};

class ExchangedSum final : public c10d::Work {
 public:
  ExchangedSum(WorkHandle exchange, at::Tensor out, Tensors parts, c10d::ReduceOp::RedOpType op)
      : exchange_(std::move(exchange)), out_(std::move(out)), parts_(std::move(parts)), op_(op) {}

  bool wait(std::chrono::milliseconds timeout) override {
    const bool done = exchange_->wait(timeout);
    if (!done || parts_.empty()) return done;
    const at::NoGradGuard no_grad;
    reduce_in_pairs(out_, std::exchange(parts_, {}), op_);
    return true;
  }
  bool isCompleted() override { return exchange_->isCompleted(); }
  bool isSuccess() const override { return exchange_->isSuccess(); }
  std::exception_ptr exception() const override { return exchange_->exception(); }
  void abort() override { exchange_->abort(); }

 private:
  WorkHandle exchange_;
  at::Tensor out_;
  Tensors parts_;  ///< received parts by rank, at least two; empty after they are reduced
  c10d::ReduceOp::RedOpType op_;
};

/// A reduce-scatter by all-to-all: each rank sends the others their parts and reduces the parts that it received in
/// rank order. Gloo's own reduce-scatter is an all-reduce of a copy, which sends twice the bytes.
/// Params: out – [D0, …]; in – [size · D0, …], unchanged until wait() returns; both contiguous
/// Cost:   (n - 1) / n of `in` sent and received, and temporary memory of the size of `in` until wait() returns. The
///         waiting thread computes the reduction
WorkHandle reduce_scatter_by_exchange(c10d::Backend& backend, at::Tensor& out, at::Tensor& in,
                                      const c10d::ReduceScatterOptions& options) {
  at::Tensor received = at::empty_like(in);
  std::vector<int64_t> even;
  auto exchange = backend.alltoall_base(received, in, even, even, {.timeout = options.timeout});
  Tensors parts = received.view({backend.getSize(), -1}).unbind(0);
  for (at::Tensor& part : parts) part = part.view(out.sizes());
  return c10::make_intrusive<ExchangedSum>(std::move(exchange), out, std::move(parts), options.reduceOp.op_);
}

/// Wraps the back end itself, so that it also sees the calls of other users of the process group.
class WatchedBackend final : public c10d::Backend {
 public:
  WatchedBackend(c10::intrusive_ptr<c10d::Backend> inner, std::shared_ptr<SharedCollectives> shared, std::string group,
                 std::shared_ptr<Watchdog> watchdog, std::shared_ptr<TrafficCount> traffic)
      : Backend(inner->getRank(), inner->getSize()),
        inner_(std::move(inner)),
        shared_(std::move(shared)),
        group_(std::move(group)),
        watchdog_(std::move(watchdog)),
        traffic_(std::move(traffic)) {}
  ~WatchedBackend() override {
    if (shared_) shared_->leave();
  }
  WatchedBackend(const WatchedBackend&) = delete;
  WatchedBackend& operator=(const WatchedBackend&) = delete;

  WorkHandle broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
    return note("broadcast", " from " + std::to_string(options.rootRank), tensors, [&] {
      const bool shares = is_shared(tensors) && SharedCollectives::supports(tensors[0]);
      return shares ? shared_->broadcast(tensors[0], static_cast<int>(options.rootRank))
                    : inner_->broadcast(tensors, options);
    });
  }
  WorkHandle allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    return note("all_reduce", "", tensors, [&] {
      const bool shares = is_shared(tensors) && SharedCollectives::supports(tensors[0], options.reduceOp);
      return shares ? shared_->all_reduce(tensors[0], options.reduceOp) : inner_->allreduce(tensors, options);
    });
  }
  WorkHandle allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    return note("all_reduce", " sparse", tensors, [&] { return inner_->allreduce_sparse(tensors, options); });
  }
  WorkHandle allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) override {
    return note("all_reduce", "", tensors, [&] { return inner_->allreduce_coalesced(tensors, options); });
  }
  WorkHandle reduce(Tensors& tensors, const c10d::ReduceOptions& options) override {
    return note("reduce", " to " + std::to_string(options.rootRank), tensors,
                [&] { return inner_->reduce(tensors, options); });
  }
  WorkHandle allgather(std::vector<Tensors>& out, Tensors& in, const c10d::AllgatherOptions& options) override {
    return note("all_gather", "", in, [&] { return inner_->allgather(out, in, options); });
  }
  WorkHandle _allgather_base(at::Tensor& out, at::Tensor& in, const c10d::AllgatherOptions& options) override {
    return note("all_gather", "", {in}, [&] {
      const bool shares = shared_ && SharedCollectives::supports(in) && out.is_contiguous();
      return shares ? shared_->all_gather(out, in) : inner_->_allgather_base(out, in, options);
    });
  }
  WorkHandle allgather_coalesced(std::vector<Tensors>& out, Tensors& in,
                                 const c10d::AllgatherOptions& options) override {
    return note("all_gather", "", in, [&] { return inner_->allgather_coalesced(out, in, options); });
  }
  WorkHandle allgather_into_tensor_coalesced(Tensors& out, Tensors& in,
                                             const c10d::AllgatherOptions& options) override {
    return note("all_gather", "", in, [&] { return inner_->allgather_into_tensor_coalesced(out, in, options); });
  }
  WorkHandle gather(std::vector<Tensors>& out, Tensors& in, const c10d::GatherOptions& options) override {
    return note("gather", "", in, [&] { return inner_->gather(out, in, options); });
  }
  WorkHandle scatter(Tensors& out, std::vector<Tensors>& in, const c10d::ScatterOptions& options) override {
    return note("scatter", "", out, [&] { return inner_->scatter(out, in, options); });
  }
  WorkHandle reduce_scatter(Tensors& out, std::vector<Tensors>& in,
                            const c10d::ReduceScatterOptions& options) override {
    return note("reduce_scatter", "", in.empty() ? Tensors() : in.front(),
                [&] { return inner_->reduce_scatter(out, in, options); });
  }
  WorkHandle _reduce_scatter_base(at::Tensor& out, at::Tensor& in, const c10d::ReduceScatterOptions& options) override {
    return note("reduce_scatter", "", {in}, [&] {
      if (shared_ && SharedCollectives::supports(in, options.reduceOp) && out.is_contiguous())
        return shared_->reduce_scatter(out, in, options.reduceOp);
      return getBackendName() == "gloo" && in.is_cpu() ? reduce_scatter_by_exchange(*inner_, out, in, options)
                                                       : inner_->_reduce_scatter_base(out, in, options);
    });
  }
  WorkHandle reduce_scatter_tensor_coalesced(Tensors& out, Tensors& in,
                                             const c10d::ReduceScatterOptions& options) override {
    return note("reduce_scatter", "", in, [&] { return inner_->reduce_scatter_tensor_coalesced(out, in, options); });
  }
  // Messages omit the shapes, because the ranks' shapes may differ.
  WorkHandle alltoall_base(at::Tensor& out, at::Tensor& in, std::vector<int64_t>& out_sizes,
                           std::vector<int64_t>& in_sizes, const c10d::AllToAllOptions& options) override {
    return count("all_to_all", bytes_of({in}),
                 [&] { return inner_->alltoall_base(out, in, out_sizes, in_sizes, options); });
  }
  WorkHandle alltoall(Tensors& out, Tensors& in, const c10d::AllToAllOptions& options) override {
    return count("all_to_all", bytes_of(in), [&] { return inner_->alltoall(out, in, options); });
  }
  WorkHandle barrier(const c10d::BarrierOptions& options) override {
    return note(group_, "barrier", 0, [&] { return inner_->barrier(options); });
  }

  // Only two ranks make point-to-point calls. Each direction and tag therefore has its own sequence of calls.
  WorkHandle send(Tensors& tensors, int to, int tag) override {
    traffic_->add("send", bytes_of(tensors));
    return note_transfer(getRank(), to, tag, tensors, [&] { return inner_->send(tensors, to, tag); });
  }
  WorkHandle recv(Tensors& tensors, int from, int tag) override {
    traffic_->add("receive", bytes_of(tensors));
    return note_transfer(from, getRank(), tag, tensors, [&] { return inner_->recv(tensors, from, tag); });
  }
  WorkHandle recvAnysource(Tensors& tensors, int tag) override { return inner_->recvAnysource(tensors, tag); }

  const std::string getBackendName() const override { return inner_->getBackendName(); }
  c10::intrusive_ptr<Options> getBackendOptions() override { return inner_->getBackendOptions(); }
  void setTimeout(std::chrono::milliseconds timeout) override {
    inner_->setTimeout(timeout);
    if (shared_) shared_->set_timeout(timeout);
  }
  bool supportsCoalescing() const override { return inner_->supportsCoalescing(); }
  void startCoalescing() override { inner_->startCoalescing(); }
  WorkHandle endCoalescing() override { return inner_->endCoalescing(); }
  void setSequenceNumberForGroup() override { inner_->setSequenceNumberForGroup(); }
  uint64_t getSequenceNumberForGroup() override { return inner_->getSequenceNumberForGroup(); }
  void setGroupUid(const std::string& uid) override { inner_->setGroupUid(uid); }
  void abort() override {
    if (shared_) shared_->close();
    inner_->abort();
  }
  void shutdown() override {
    if (shared_) shared_->close();
    inner_->shutdown();
  }

 private:
  bool is_shared(const Tensors& tensors) const { return shared_ && tensors.size() == 1; }
  template <class Action>
  WorkHandle note(const std::string& name, const std::string& way, const Tensors& tensors, Action action) {
    traffic_->add(name, bytes_of(tensors));
    return note(group_, describe(name + way, tensors), bytes_of(tensors), action);
  }
  template <class Action>
  WorkHandle count(const std::string& name, int64_t bytes, Action action) {
    traffic_->add(name, bytes);
    return note(group_, name, bytes, action);
  }
  /// The text is the same on both ranks, so that the watchdog can compare their calls.
  template <class Action>
  WorkHandle note_transfer(int from, int to, int tag, const Tensors& tensors, Action action) {
    const std::string channel = watchdog_->add_channel(group_, from, to, tag);
    return note(channel, describe("send/receive", tensors), bytes_of(tensors), action);
  }
  template <class Action>
  WorkHandle note(const std::string& group, std::string what, int64_t bytes, Action action) {
    const int64_t record = watchdog_->records().begin(group, what, bytes);
    const Call call = watchdog_->enter(group, std::move(what));
    try {
      WorkHandle work = action();
      // A weak reference, so that the watchdog does not keep the tensors alive.
      watchdog_->started(call, [weak = c10::weak_intrusive_ptr<c10d::Work>(work)] {
        const WorkHandle running = weak.lock();
        return !running || running->isCompleted();
      });
      std::function<void()> ended;
      if (record >= 0) ended = end_of_record(*work, record);
      return c10::make_intrusive<ExplainedWork>(std::move(work), call, watchdog_, std::move(ended));
    } catch (const c10::Error&) {
      watchdog_->finished(call);
      throw;  // invalid arguments
    } catch (const std::exception& error) {
      watchdog_->finished(call);
      // Gloo throws if a call starts on a connection that is already closed.
      TORCH_CHECK_WITH(DistBackendError, false, watchdog_->error_text(call, user_message(error)));
    }
  }

  /// Records the end of a call as soon as it ends. Work without a future ends when a thread has waited for it.
  std::function<void()> end_of_record(c10d::Work& work, int64_t record) const {
    auto ended = [watchdog = watchdog_, record] { watchdog->records().end(record); };
    try {
      work.getFuture()->addCallback([ended](c10::ivalue::Future&) { ended(); });
    } catch (const c10::Error&) {  // no future
    }
    return ended;
  }

  c10::intrusive_ptr<c10d::Backend> inner_;
  std::shared_ptr<SharedCollectives> shared_;  ///< for tensors in host memory; null: all tensors use `inner_`
  std::string group_;
  std::shared_ptr<Watchdog> watchdog_;
  std::shared_ptr<TrafficCount> traffic_;
};

}  // namespace

c10::intrusive_ptr<c10d::Backend> watched(Engine engine, const GroupParts& parts, std::shared_ptr<Watchdog> watchdog,
                                          std::shared_ptr<TrafficCount> traffic) {
  return c10::make_intrusive<WatchedBackend>(std::move(engine.backend), std::move(engine.shared), parts.name,
                                             std::move(watchdog), std::move(traffic));
}

}  // namespace bellows::comm
