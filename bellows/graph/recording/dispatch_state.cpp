#include "bellows/graph/recording/dispatch_state.h"

#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <c10/core/AutogradState.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/graph_task.h>

#include <optional>

namespace bellows::graph {
namespace {

constexpr auto argument_tap_key = c10::DispatchKey::TESTING_ONLY_GenericWrapper;
/// Taps are added and removed around a region. All other keys of the thread belong to the state.
constexpr c10::DispatchKeySet tap_keys({c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot,
                                        argument_tap_key});

/// Precisions of matmuls, convolutions and recurrent layers in oneDNN.
struct Precisions {
  at::Float32Precision of[3];
};

constexpr at::Float32Op precise_ops[] = {at::Float32Op::MATMUL, at::Float32Op::CONV, at::Float32Op::RNN};

Precisions precisions() {
  Precisions result;
  for (int i = 0; i < 3; ++i)
    result.of[i] = at::globalContext().float32Precision(at::Float32Backend::MKLDNN, precise_ops[i]);
  return result;
}

int packed(const Precisions& all) {
  int result = 0;
  for (const auto one : all.of) result = result * 8 + static_cast<int>(one);
  return result;
}

void set_precisions(int value) {
  for (int i = 3; i-- > 0; value /= 8) {
    at::globalContext().setFloat32Precision(at::Float32Backend::MKLDNN, precise_ops[i],
                                            static_cast<at::Float32Precision>(value % 8));
  }
}

/// Process-wide settings are written only if they differ, because other threads read them.
void put_process_state(const DispatchState& state, const DispatchState& now) {
  at::Context& context = at::globalContext();
  if (state.deterministic != now.deterministic || state.deterministic_warns != now.deterministic_warns)
    context.setDeterministicAlgorithms(state.deterministic, state.deterministic_warns);
  if (state.fill_uninitialized != now.fill_uninitialized)
    context.setDeterministicFillUninitializedMemory(state.fill_uninitialized);
  if (state.onednn != now.onednn) context.setUserEnabledMkldnn(state.onednn);
  if (state.default_dtype != now.default_dtype) c10::set_default_dtype(c10::scalarTypeToTypeMeta(state.default_dtype));
}

void put_autocast_dtypes(const DispatchState& state) {
  at::autocast::set_autocast_dtype(c10::kCPU, state.autocast_cpu);
  at::autocast::set_autocast_dtype(c10::kCUDA, state.autocast_cuda);
}

c10::DispatchKeySet recorded_and(uint64_t recorded, c10::DispatchKeySet present) {
  return c10::DispatchKeySet(c10::DispatchKeySet::RAW, recorded) | (present & tap_keys);
}

}  // namespace

int float32_precision() {
  return packed(precisions());
}

DispatchState DispatchState::capture() {
  const auto& autograd = c10::AutogradState::get_tls_state();
  const at::Context& context = at::globalContext();
  const auto keys = c10::impl::tls_local_dispatch_key_set();
  return {.grad = autograd.get_grad_mode(),
          .inference = autograd.get_inference_mode(),
          .forward_grad = autograd.get_fw_grad_mode(),
          .backward = torch::autograd::get_current_graph_task_id() >= 0,
          .deterministic = context.deterministicAlgorithms(),
          .deterministic_warns = context.deterministicAlgorithmsWarnOnly(),
          .fill_uninitialized = context.deterministicFillUninitializedMemory(),
          .onednn = context.userEnabledMkldnn(),
          .default_dtype = c10::get_default_dtype_as_scalartype(),
          .autocast_cpu = at::autocast::get_autocast_dtype(c10::kCPU),
          .autocast_cuda = at::autocast::get_autocast_dtype(c10::kCUDA),
          .included = (keys.included_ - tap_keys).raw_repr(),
          .excluded = (keys.excluded_ - tap_keys).raw_repr()};
}

std::string DispatchState::difference(const DispatchState& recorded) const {
  const auto flag = [](const char* name, bool got) {
    return c10::str(name, got ? " on" : " off", " instead of ", got ? "off" : "on");
  };
  if (grad != recorded.grad) return flag("grad mode", grad);
  if (inference != recorded.inference) return flag("inference mode", inference);
  if (forward_grad != recorded.forward_grad) return flag("forward-mode gradients", forward_grad);
  if (backward != recorded.backward) return flag("backward pass", backward);
  if (deterministic != recorded.deterministic) return flag("deterministic algorithms", deterministic);
  if (onednn != recorded.onednn) return flag("oneDNN", onednn);
  if (default_dtype != recorded.default_dtype)
    return c10::str("default dtype ", default_dtype, " instead of ", recorded.default_dtype);
  return *this == recorded ? "" : "a different state of autocast, of the dispatcher or of deterministic mode";
}

/// Its destructor restores the state, even if the constructor of the scope throws midway.
struct DispatchStateScope::Kept {
  Kept() = default;
  ~Kept();
  Kept(const Kept&) = delete;
  Kept& operator=(const Kept&) = delete;

  DispatchState before = DispatchState::capture();
  c10::AutogradState autograd = c10::AutogradState::get_tls_state();
  bool autocast_cache = at::autocast::is_autocast_cache_enabled();
  std::optional<int> precision;
  std::optional<c10::impl::ForceDispatchKeyGuard> keys;
};

DispatchStateScope::DispatchStateScope(const DispatchState& state, int precision) : kept_(std::make_unique<Kept>()) {
  c10::AutogradState autograd = kept_->autograd;
  autograd.set_grad_mode(state.grad);
  autograd.set_inference_mode(state.inference);
  autograd.set_fw_grad_mode(state.forward_grad);
  c10::AutogradState::set_tls_state(autograd);
  put_process_state(state, kept_->before);
  if (const int now = float32_precision(); precision >= 0 && precision != now) {
    kept_->precision = now;
    set_precisions(precision);
  }
  put_autocast_dtypes(state);
  at::autocast::set_autocast_cache_enabled(false);  // there may be no guard that would clear it
  const auto present = c10::impl::tls_local_dispatch_key_set();
  // An ArgumentTap has already received these operators when they were called.
  kept_->keys.emplace(recorded_and(state.included, present.included_),
                      recorded_and(state.excluded, present.excluded_).add(argument_tap_key));
}

DispatchStateScope::~DispatchStateScope() = default;

DispatchStateScope::Kept::~Kept() {
  const DispatchState inside = DispatchState::capture();
  c10::AutogradState::set_tls_state(autograd);
  keys.reset();
  at::autocast::set_autocast_cache_enabled(autocast_cache);
  put_autocast_dtypes(before);
  put_process_state(before, inside);
  if (precision) set_precisions(*precision);
}

}  // namespace bellows::graph
