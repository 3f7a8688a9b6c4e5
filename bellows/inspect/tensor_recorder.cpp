#include "bellows/inspect/tensor_recorder.h"

#include <ATen/record_function.h>

#include <algorithm>
#include <limits>
#include <unordered_map>

#include "bellows/core/mutex.h"
#include "bellows/inspect/module_tracker.h"
#include "bellows/tap/allocator.h"
#include "bellows/tap/saved_tensor_tap.h"

namespace bellows::inspect {

namespace {

/// Returns null if the tensor has no memory, such as a parameter that ZeRO-3 has freed, whose data() would throw.
const void* block_of(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage()) return nullptr;
  return tensor.storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks().get();
}

constexpr int64_t still_alive = std::numeric_limits<int64_t>::max();

}  // namespace

/// A block that is followed: its life, and data that determine the result at its end.
struct FollowedBlock {
  TensorLife life;
  PlacePtr place;
  bool known = false;  ///< its kind was registered
  bool saved = false, of_weights = false;
};

/// Observes operators, blocks and saved tensors, and combines them.
class LifeWatcher final : public tap::Observer, public tap::AllocationListener, public tap::SavedTensorTap {
 public:
  explicit LifeWatcher(const Model& model) : tracker_(ModuleMap(model)) {}

  tap::ObserverNeeds needs() const override { return ModuleTracker::needs(); }

  void before(const tap::OpEvent& event) override {
    MutexLock lock(mutex_);
    Frame& frame = tracker_.enter(event);
    if (names_phase(event)) phases_.emplace_back(event.name);
    stacks_[event.thread_id].push_back(&frame);
    last_thread_ = event.thread_id;
  }

  void after(const tap::OpEvent& event) override {
    MutexLock lock(mutex_);
    const std::unique_ptr<Frame> frame = tracker_.leave(event);
    if (!frame) return;
    stacks_[event.thread_id].pop_back();
    if (names_phase(event)) phases_.pop_back();
    if (!frame->only_weights || frame->backward || phase() == "optimizer") return;
    // Not checked, because for_each_tensor() calls it, here and under the lock.
    for_each_tensor(event.outputs, [&](const at::Tensor& tensor) BELLOWS_NO_THREAD_SAFETY_ANALYSIS {
      if (FollowedBlock* block = find(block_of(tensor))) block->of_weights = true;
    });
  }

  void on_allocation(const tap::AllocationEvent& event) override {
    MutexLock lock(mutex_);
    const double now = trace_now_us();
    if (event.bytes > 0) {
      add_block(event, now);
    } else if (FollowedBlock* block = find(event.address)) {
      block->life.died = events_++;
      block->life.died_us = now;
      alive_.erase(event.address);
    }
  }

  std::shared_ptr<tap::PackedTensor> pack(const at::Tensor& tensor) override {
    MutexLock lock(mutex_);
    if (FollowedBlock* block = find(block_of(tensor))) {
      block->saved = true;
      if (tensor.is_floating_point()) block->life.element_bytes = tensor.element_size();
    }
    return nullptr;
  }

  void say(TensorKind kind, const std::string& name, const at::Tensor& tensor) {
    const void* address = block_of(tensor);
    if (!address) return;
    MutexLock lock(mutex_);
    FollowedBlock* block = find(address);
    if (block && block->known && kind != TensorKind::gradient) return;  // tied weights keep their first name
    if (!block) {
      alive_[address] = blocks_.size();
      blocks_.push_back({.life = {.bytes = static_cast<int64_t>(tensor.storage().nbytes()), .died = still_alive}});
      block = &blocks_.back();
    }
    block->life.kind = kind;
    block->life.name = name;
    block->life.module = name.substr(0, name.rfind('.') == std::string::npos ? 0 : name.rfind('.'));
    block->known = true;
  }

  void begin() {
    MutexLock lock(mutex_);
    std::erase_if(blocks_, [](const FollowedBlock& block) { return block.life.died != still_alive; });
    std::unordered_map<const void*, size_t> moved;
    size_t next = 0;
    for (const auto& [index, address] : by_index()) moved[address] = next++;
    alive_ = std::move(moved);
    for (FollowedBlock& block : blocks_) {
      if (!block.known) {
        const std::string& phase = block.life.phase;
        block.life.kind = phase == "optimizer" ? TensorKind::optimizer
                          : phase == "load"    ? TensorKind::input
                                               : TensorKind::other;
        block.known = true;
      }
      block.life.born = -1;
      block.life.born_us = trace_now_us();
    }
    events_ = 0;
    begin_us_ = trace_now_us();
    began_ = true;
  }

  TensorTimeline end() {
    MutexLock lock(mutex_);
    TORCH_CHECK(began_, "TensorRecorder::end: no step was started. Call begin() before the step.");
    began_ = false;
    TensorTimeline result{.events = events_, .begin_us = begin_us_, .end_us = trace_now_us()};
    result.tensors.reserve(blocks_.size());
    for (const FollowedBlock& block : blocks_) {
      TensorLife life = block.life;
      if (life.died == still_alive) {
        life.died = events_;
        life.died_us = result.end_us;
      }
      if (!block.known) life.kind = kind_of(block);
      if (block.place && life.module.empty()) life.module = tracker_.map().path(block.place->module);
      result.tensors.push_back(std::move(life));
    }
    return result;
  }

 private:
  static TensorKind kind_of(const FollowedBlock& block) {
    if (block.life.phase == "load") return TensorKind::input;
    if (block.of_weights) return TensorKind::weight_copy;
    return block.saved ? TensorKind::activation : TensorKind::temporary;
  }

  std::string phase() const BELLOWS_REQUIRES(mutex_) { return phases_.empty() ? "" : phases_.back(); }

  FollowedBlock* find(const void* address) BELLOWS_REQUIRES(mutex_) {
    const auto found = alive_.find(address);
    return found == alive_.end() ? nullptr : &blocks_[found->second];
  }

  std::vector<std::pair<size_t, const void*>> by_index() const BELLOWS_REQUIRES(mutex_) {
    std::vector<std::pair<size_t, const void*>> result;
    result.reserve(alive_.size());
    for (const auto& [address, index] : alive_) result.emplace_back(index, address);
    std::sort(result.begin(), result.end());
    return result;
  }

  void add_block(const tap::AllocationEvent& event, double now) BELLOWS_REQUIRES(mutex_) {
    FollowedBlock block{
        .life = {.bytes = event.bytes, .phase = phase(), .born = events_++, .died = still_alive, .born_us = now}};
    uint64_t thread = at::RecordFunction::currentThreadId();
    if (stacks_[thread].empty()) thread = last_thread_;  // a worker of a kernel on that thread
    block.life.node = tracker_.node_name(thread);
    for (const Frame* frame : stacks_[thread]) {
      if (!frame->info) continue;
      block.life.op = frame->info->name;
      block.place = frame->place;
      if (frame->base) break;
    }
    alive_[event.address] = blocks_.size();
    blocks_.push_back(std::move(block));
  }

  Mutex mutex_;
  ModuleTracker tracker_ BELLOWS_GUARDED_BY(mutex_);
  std::unordered_map<uint64_t, std::vector<Frame*>> stacks_ BELLOWS_GUARDED_BY(mutex_);
  uint64_t last_thread_ BELLOWS_GUARDED_BY(mutex_) = 0;
  std::vector<std::string> phases_ BELLOWS_GUARDED_BY(mutex_);
  std::vector<FollowedBlock> blocks_ BELLOWS_GUARDED_BY(mutex_);
  std::unordered_map<const void*, size_t> alive_ BELLOWS_GUARDED_BY(mutex_);
  int64_t events_ BELLOWS_GUARDED_BY(mutex_) = 0;
  double begin_us_ BELLOWS_GUARDED_BY(mutex_) = 0;
  bool began_ BELLOWS_GUARDED_BY(mutex_) = false;
};

struct TensorRecorder::State {
  explicit State(const Model& the_model)
      : model(the_model),
        watcher(std::make_shared<LifeWatcher>(model)),
        allocations(watcher),
        observer(watcher),
        saved(watcher) {}
  void say_gradients() const {
    for (const auto& [name, parameter] : model.named_parameters()) {
      if (parameter.grad().defined()) watcher->say(TensorKind::gradient, name, parameter.grad());
    }
  }
  Model model;
  std::shared_ptr<LifeWatcher> watcher;
  tap::AllocationGuard allocations;
  tap::ObserverGuard observer;
  tap::SavedTensorGuard saved;
};

TensorRecorder::TensorRecorder(const Model& model) : state_(std::make_unique<State>(model)) {
  for (const auto& [name, parameter] : model.named_parameters()) add(TensorKind::weight, name, parameter);
  for (const auto& [name, buffer] : model.named_buffers()) add(TensorKind::buffer, name, buffer);
}

TensorRecorder::~TensorRecorder() = default;

void TensorRecorder::add(TensorKind kind, const std::string& name, const at::Tensor& tensor) {
  state_->watcher->say(kind, name, tensor);
}

void TensorRecorder::begin() {
  state_->say_gradients();
  state_->watcher->begin();
}

TensorTimeline TensorRecorder::end() {
  state_->say_gradients();
  state_->observer.check();
  return state_->watcher->end();
}

}  // namespace bellows::inspect
