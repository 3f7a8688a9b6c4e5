#include "bellows/tap/op_tap.h"

#include "bellows/core/log.h"
#include "bellows/tap/deferral.h"
#include "bellows/tap/redispatch.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/PyInterpreter.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>

#include <atomic>
#include <vector>

namespace bellows::tap {
namespace {

using Mode = c10::impl::PyObject_TorchDispatchMode;
using ModeStack = c10::impl::TorchDispatchModeTLS;

[[noreturn]] void unreachable(const char* what) {
  TORCH_INTERNAL_ASSERT(false, "OpTap: libtorch requested ", what);
}

/// The table through which libtorch calls a Python interpreter. For modes, only dispatch() and detach() are called. The
/// other functions serve tensor subclasses written in Python, which do not exist here.
struct Interpreter final : c10::impl::PyInterpreterVTable {
  using Impl = c10::TensorImpl;
  std::string name() const override { return "bellows"; }
  void dispatch(const c10::OperatorHandle& op, torch::jit::Stack* stack) const override;
  /// Called for shallow copies. With the key excluded, they are made as without a mode. The caller sets the version
  /// counter.
  c10::intrusive_ptr<Impl> detach(const Impl* self) const override {
    c10::impl::ExcludeDispatchKeyGuard no_mode(c10::DispatchKey::Python);
    return self->shallow_copy_and_detach(c10::VariableVersion(0), false);
  }

  void incref(PyObject*) const override {}
  void decref(PyObject*) const override {}
  bool try_incref(const c10::impl::PyObjectSlot&) const override { return false; }
  size_t refcnt(PyObject*) const override { return 1; }
  void reportErrorCallback(PyObject*, c10::DispatchKey) const override {}
  void python_op_registration_trampoline(const c10::OperatorHandle&, c10::DispatchKey, c10::DispatchKeySet,
                                         torch::jit::Stack*, bool, bool) const override {
    unreachable("a Python operator");
  }
  void throw_abstract_impl_not_imported_error(std::string, const char*, const char*) const override {}
  void python_dispatcher(const c10::OperatorHandle&, c10::DispatchKeySet, torch::jit::Stack*) const override {
    unreachable("the Python dispatcher");
  }
  bool is_contiguous(const Impl*, at::MemoryFormat) const override { unreachable("is_contiguous"); }
  c10::SymBool sym_is_contiguous(const Impl*, at::MemoryFormat) const override { unreachable("sym_is_contiguous"); }
  bool is_strides_like(const Impl*, at::MemoryFormat) const override { unreachable("is_strides_like"); }
  bool is_non_overlapping_and_dense(const Impl*) const override { unreachable("is_non_overlapping_and_dense"); }
  c10::Device device(const Impl*) const override { unreachable("device"); }
  int64_t dim(const Impl*) const override { unreachable("dim"); }
  c10::IntArrayRef strides(const Impl*) const override { unreachable("strides"); }
  c10::IntArrayRef sizes(const Impl*) const override { unreachable("sizes"); }
  c10::SymIntArrayRef sym_sizes(const Impl*) const override { unreachable("sym_sizes"); }
  c10::Layout layout(const Impl*) const override { unreachable("layout"); }
  int64_t numel(const Impl*) const override { unreachable("numel"); }
  c10::SymInt sym_numel(const Impl*) const override { unreachable("sym_numel"); }
  c10::SymIntArrayRef sym_strides(const Impl*) const override { unreachable("sym_strides"); }
  c10::SymInt sym_storage_offset(const Impl*) const override { unreachable("sym_storage_offset"); }
  void trace_gpu_event_creation(c10::DeviceType, uintptr_t) const override {}
  void trace_gpu_event_deletion(c10::DeviceType, uintptr_t) const override {}
  void trace_gpu_event_record(c10::DeviceType, uintptr_t, uintptr_t) const override {}
  void trace_gpu_event_wait(c10::DeviceType, uintptr_t, uintptr_t) const override {}
  void trace_gpu_memory_allocation(c10::DeviceType, uintptr_t) const override {}
  void trace_gpu_memory_deallocation(c10::DeviceType, uintptr_t) const override {}
  void trace_gpu_stream_creation(c10::DeviceType, uintptr_t) const override {}
  void trace_gpu_device_synchronization(c10::DeviceType) const override {}
  void trace_gpu_stream_synchronization(c10::DeviceType, uintptr_t) const override {}
  void trace_gpu_event_synchronization(c10::DeviceType, uintptr_t) const override {}
  void reset_backward_hooks(const Impl*) const override {}
};

c10::impl::PyInterpreter* interpreter() {
  // Never destroyed: threads may compare modes with it after static destruction.
  static auto* const made = new c10::impl::PyInterpreter(new Interpreter);
  return made;
}

/// One installed client. Its mode is on libtorch's per-thread stack of modes, which at::ThreadLocalState carries. The
/// "Python object" of the mode is the frame itself. The owner of the mode is the owner of the frame.
struct Frame {
  explicit Frame(std::shared_ptr<OpTap> tap)
      : client(std::move(tap)), mode(reinterpret_cast<PyObject*>(this), interpreter()) {}
  std::shared_ptr<OpTap> client;
  std::atomic<bool> active{true};
  Mode mode;
};

Frame* frame_of(const Mode& mode) {
  if (&mode.pyinterpreter() != interpreter()) return nullptr;
  return reinterpret_cast<Frame*>(mode.ptr(interpreter()));
}

Frame* top_frame() {
  const int64_t depth = ModeStack::stack_len();
  return depth ? frame_of(*ModeStack::get_stack_at(depth - 1)) : nullptr;
}

/// libtorch has excluded all keys above ours. While the top mode is off the stack, operators go to the next outer one.
void Interpreter::dispatch(const c10::OperatorHandle& op, torch::jit::Stack* stack) const {
  struct WithoutTop {
    std::shared_ptr<Mode> mode = ModeStack::pop_stack();
    Frame* frame = frame_of(*mode);
    ~WithoutTop() {
      if (frame->active) ModeStack::push_non_infra_mode_onto_stack(std::move(mode));
    }
  } top;
  const OpCall call(op);
  if (top.frame->active) {
    top.frame->client->call(call, *stack);
  } else {
    call.next(*stack);
  }
}

std::shared_ptr<Deferral> deferral_of(const Mode& mode) {
  Frame* const frame = frame_of(mode);
  return frame && frame->active ? std::dynamic_pointer_cast<Deferral>(frame->client) : nullptr;
}

/// The number of modes from the top of this thread's stack to the innermost client that defers, inclusive; 0 if there
/// is none.
int64_t modes_to_deferral() {
  const int64_t depth = ModeStack::stack_len();
  for (int64_t below = 1; below <= depth; ++below) {
    if (deferral_of(*ModeStack::get_stack_at(depth - below))) return below;
  }
  return 0;
}

/// Removes the upper modes from this thread's stack while it lives.
class WithoutModes {
 public:
  explicit WithoutModes(int64_t count) {
    modes_.reserve(count);
    while (count-- > 0) modes_.push_back(ModeStack::pop_stack());
  }
  ~WithoutModes() {
    for (; !modes_.empty(); modes_.pop_back()) ModeStack::push_non_infra_mode_onto_stack(std::move(modes_.back()));
  }
  WithoutModes(const WithoutModes&) = delete;
  WithoutModes& operator=(const WithoutModes&) = delete;

 private:
  std::vector<std::shared_ptr<Mode>> modes_;
};

}  // namespace

bool any_tap_needs_each_call() {
  for (int64_t i = 0, depth = ModeStack::stack_len(); i < depth; ++i) {
    const Frame* const frame = frame_of(*ModeStack::get_stack_at(i));
    if (frame && frame->active && frame->client->needs_each_call()) return true;
  }
  return false;
}

std::shared_ptr<Deferral> active_deferral() {
  const int64_t count = modes_to_deferral();
  return count ? deferral_of(*ModeStack::get_stack_at(ModeStack::stack_len() - count)) : nullptr;
}

void sync() {
  const auto client = active_deferral();
  if (!client) return;
  const WithoutModes off(modes_to_deferral());
  client->sync();
}

EagerGuard::EagerGuard() {
  sync();
  client_ = active_deferral();
  if (client_) client_->set_deferring(false);
}

EagerGuard::~EagerGuard() {
  if (client_) client_->set_deferring(true);
}

void OpCall::next(Stack& stack) const {
  struct SameOperator {
    ~SameOperator() { redispatched_operator = nullptr; }
  } until_the_end;
  redispatched_operator = handle().schema().name().c_str();
  handle().callBoxed(&stack);
}

OpTapGuard::OpTapGuard(std::shared_ptr<OpTap> tap) {
  TORCH_CHECK_VALUE(tap, "OpTapGuard: expected a tap, found null. Pass a std::make_shared<…>().");
  auto frame = std::make_shared<Frame>(std::move(tap));
  node_ = frame;
  ModeStack::push_non_infra_mode_onto_stack(std::shared_ptr<Mode>(frame, &frame->mode));
}

OpTapGuard::~OpTapGuard() {
  auto* const frame = static_cast<Frame*>(node_.get());
  frame->active = false;
  if (top_frame() != frame) {
    log_error(
        "OpTapGuard: the guard was destroyed out of order or on the wrong thread. Its tap receives no more calls. "
        "Destroy guards in the reverse order of their creation, on the thread that created them.");
    return;
  }
  for (Frame* top = top_frame(); top && !top->active; top = top_frame()) ModeStack::pop_stack();
}

}  // namespace bellows::tap
