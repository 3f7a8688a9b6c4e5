#include "bellows/checkpoint/async_saver.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <chrono>

#include "bellows/core/error.h"
#include "bellows/core/grad_mode.h"
#include "bellows/core/log.h"
#include "bellows/system/thread.h"

namespace bellows::checkpoint {

namespace {

at::Tensor bytes_of(const c10::Storage& storage) {
  const at::Tensor view = at::empty({0}, at::TensorOptions(storage.device()).dtype(at::kByte));
  return view.set_(storage, 0, {static_cast<int64_t>(storage.nbytes())}, {1});
}

}  // namespace

AsyncSaver::~AsyncSaver() {
  try {
    wait();
  } catch (const std::exception& error) {
    log_error("checkpoint: the last save failed. ", user_message(error));
  }
}

void AsyncSaver::save(Folder& folder, const State& state) {
  wait();  // before the copy, because the save in flight reads the same buffers
  in_flight_ = start_async_or_run([&folder, copied = copy(state)] { folder.save(copied); });
}

bool AsyncSaver::save_best(Folder& folder, const State& state, double score, int64_t k) {
  wait();
  if (!folder.is_among_best(state.step, score, k)) return false;
  in_flight_ = start_async_or_run([&folder, score, k, copied = copy(state)] { folder.save_best(copied, score, k); });
  return true;
}

void AsyncSaver::wait() {
  if (!in_flight_.valid()) return;
  const auto begin = std::chrono::steady_clock::now();
  in_flight_.wait();
  waited_s_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  in_flight_.get();
}

State AsyncSaver::copy(const State& state) {
  const inference_mode ordinary_tensors(false);  // the buffers outlive the caller's guards
  const no_grad guard;
  copied_.clear();
  State result = state;
  result.model = copy(state.model);
  result.optimizer = copy(state.optimizer);
  result.rng = copy(state.rng);
  result.extra = copy(state.extra);
  buffers_.resize(copied_.size());
  return result;
}

NamedTensors AsyncSaver::copy(const NamedTensors& tensors) {
  NamedTensors result;
  result.reserve(tensors.size());
  for (const auto& [name, tensor] : tensors) result.emplace_back(name, copy(tensor));
  return result;
}

/// Copies each storage once, as a file stores it. Tensors that share a storage share its copy, and strides are
/// preserved.
at::Tensor AsyncSaver::copy(const at::Tensor& tensor) {
  const bool refused = !tensor.defined() || !tensor.has_storage() || tensor.is_meta() || tensor.is_quantized();
  if (refused) return tensor;  // the writer throws an error for it
  if (tensor.is_conj() || tensor.is_neg()) return tensor.resolve_conj().resolve_neg();
  const c10::Storage& storage = tensor.storage();
  const auto [place, is_new] = copied_.try_emplace(storage.unsafeGetStorageImpl(), copied_.size());
  if (is_new) {
    if (buffers_.size() < copied_.size()) buffers_.emplace_back();
    at::Tensor& buffer = buffers_[place->second];
    const auto bytes = static_cast<int64_t>(storage.nbytes());
    if (!buffer.defined() || buffer.numel() != bytes) buffer = at::empty({bytes}, at::kByte);
    buffer.copy_(bytes_of(storage));
  }
  return at::empty({0}, tensor.scalar_type())
      .set_(buffers_[place->second].storage(), tensor.storage_offset(), tensor.sizes(), tensor.strides());
}

}  // namespace bellows::checkpoint
