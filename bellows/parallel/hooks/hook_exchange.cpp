#include "bellows/core/mutex.h"
#include "bellows/parallel/hooks/hook_exchange_impl.h"

#include <ATen/core/grad_mode.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <chrono>
#include <deque>
#include <optional>
#include <utility>

#include "bellows/system/thread.h"

namespace bellows::parallel {

/// State shared by the two threads. It outlives a hook that hangs in a collective.
struct HookExchange::Work {
  struct Item {
    GradientBucket bucket;
    double scale = 1;
    std::optional<c10::Stream> stream;  ///< the stream of backward; none on the CPU
    c10::intrusive_ptr<c10::ivalue::Future> done;
  };

  Work(std::shared_ptr<GradientHook> the_hook, comm::Group the_group)
      : hook(std::move(the_hook)), group(std::move(the_group)) {}
  void run();
  void finish(Item& item);

  const std::shared_ptr<GradientHook> hook;
  const comm::Group group;
  Mutex mutex;
  ConditionVariable changed;
  std::deque<Item> items BELLOWS_GUARDED_BY(mutex);
  bool stop BELLOWS_GUARDED_BY(mutex) = false;
  bool busy BELLOWS_GUARDED_BY(mutex) = false;
  /// Of the first bucket that failed; later buckets fail, too, because their order would differ between ranks
  std::exception_ptr failure;  // not guarded: only the exchange thread uses it
};

namespace {

/// Views of `flat` in the parameters' shapes and memory layouts.
std::vector<at::Tensor> gradients_in(const at::Tensor& flat, const std::vector<at::Tensor>& parameters) {
  std::vector<at::Tensor> gradients;
  gradients.reserve(parameters.size());
  int64_t offset = 0;
  for (const at::Tensor& parameter : parameters) {
    gradients.push_back(parameter.is_non_overlapping_and_dense()
                            ? flat.as_strided(parameter.sizes(), parameter.strides(), offset)
                            : flat.narrow(0, offset, parameter.numel()).view(parameter.sizes()));
    offset += parameter.numel();
  }
  return gradients;
}

}  // namespace

void HookExchange::Work::finish(Item& item) {
  if (failure) return item.done->setError(failure);
  try {
    std::optional<c10::StreamGuard> same_stream;
    if (item.stream) same_stream.emplace(*item.stream);
    const at::Tensor& flat = item.bucket.flat;
    at::Tensor mean = hook->mean(item.bucket, group);
    TORCH_CHECK_VALUE(mean.defined() && mean.sizes() == flat.sizes() && mean.scalar_type() == flat.scalar_type(),
                      "gradient hook ", hook->describe(), ": expected the mean of ", flat.scalar_type(), flat.sizes(),
                      ", got ", mean.defined() ? c10::str(mean.scalar_type(), mean.sizes()) : "no tensor", ".");
    item.done->markCompleted(item.scale == 1 ? mean : mean * item.scale);
  } catch (...) {
    failure = std::current_exception();
    item.done->setError(failure);
  }
}

void HookExchange::Work::run() {
  const at::NoGradGuard no_grad;
  UniqueLock lock(mutex);
  while (true) {
    changed.wait(lock, [this]() BELLOWS_REQUIRES(mutex) { return stop || !items.empty(); });
    if (stop) return;
    Item item = std::move(items.front());
    items.pop_front();
    busy = true;
    lock.unlock();
    finish(item);
    item = {};
    lock.lock();
    busy = false;
    changed.notify_all();
  }
}

HookExchange::HookExchange(std::shared_ptr<GradientHook> hook, const comm::Group& group)
    : work_(std::make_shared<Work>(std::move(hook), group)),
      thread_(start_thread("gradient exchange", [work = work_] { work->run(); })) {}

HookExchange::~HookExchange() {
  bool busy = false;
  {
    UniqueLock lock(work_->mutex);
    work_->stop = true;
    work_->changed.notify_all();
    // After an error, the hook may wait for ranks that wait for this one. Then it is left running until the process
    // ends.
    busy = !work_->changed.wait_for(lock, std::chrono::seconds(1),
                                    [this]() BELLOWS_REQUIRES(work_->mutex) { return !work_->busy; });
  }
  if (busy) {
    thread_.detach();
  } else {
    thread_.join();
  }
}

void HookExchange::begin(size_t buckets, double scale) {
  next_ = 0;
  count_ = buckets;
  scale_ = scale;
}

c10::intrusive_ptr<c10::ivalue::Future> HookExchange::runHook(c10d::GradBucket& bucket) {
  const at::Tensor& flat = bucket.getBuffer();
  const auto index = static_cast<int64_t>(next_++);
  const std::vector<at::Tensor> parameters = bucket.getParameters();
  Work::Item item;
  item.bucket = {.index = index,
                 .last = next_ == count_,
                 .flat = flat,
                 .gradients = gradients_in(flat, parameters),
                 .parameters = parameters};
  item.scale = scale_;
  std::vector<c10::Device> devices;
  if (!flat.is_cpu()) {
    devices.push_back(flat.device());
    item.stream = c10::impl::VirtualGuardImpl(flat.device().type()).getStream(flat.device());
  }
  item.done = c10::make_intrusive<c10::ivalue::Future>(c10::TensorType::get(), devices);
  const auto done = item.done;
  {
    const MutexLock lock(work_->mutex);
    work_->items.push_back(std::move(item));
  }
  work_->changed.notify_all();
  return done;
}

}  // namespace bellows::parallel
