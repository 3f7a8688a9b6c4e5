#include "bellows/graph/recording/stand_ins.h"

#include <algorithm>
#include <cstdlib>

namespace bellows::graph::detail {
namespace {

/// Memory of zeros. The system provides its pages when they are first written, and most operators only read them.
c10::Storage zeros(size_t bytes) {
  void* const data = std::calloc(std::max<size_t>(bytes, 1), 1);
  TORCH_CHECK_WITH(OutOfMemoryError, data, "Region: cannot allocate ", bytes, " bytes to record an operator.");
  return {c10::Storage::use_byte_size_t(), bytes, c10::DataPtr(data, data, &std::free, c10::kCPU)};
}

}  // namespace

StandIns::StandIns(const tap::OpCall& op, const OperatorFacts& facts, tap::Stack& stack, BufferTable& buffers)
    : buffers_(buffers), next_(static_cast<BufferId>(buffers.size())) {
  const auto arguments = op.arguments(stack);
  const auto is_written = [&](size_t i) {
    return std::find(facts.writes.begin(), facts.writes.end(), static_cast<int>(i)) != facts.writes.end();
  };
  // Written buffers come first: an operator may read a buffer that it writes.
  std::vector<c10::IValue> all(arguments.size());
  for (const bool written : {true, false}) {
    for (size_t i = 0; i < arguments.size(); ++i) {
      if (is_written(i) == written) all[i] = replaced(arguments[i], written);
    }
  }
  for (size_t i = 0; i < all.size(); ++i) {
    if (facts.arguments[i] < OperatorFacts::Kind::number) {
      for_each_tensor(all[i], [&](const at::Tensor& tensor) {
        identities_.push_back(tensor.unsafeGetTensorImpl());
        owners_.push_back(tensor);
      });
    }
    stack_.push_back(std::move(all[i]));
  }
}

c10::IValue StandIns::replaced(const c10::IValue& value, bool written) {
  if (value.isTensor()) return replaced(value.toTensor(), written);
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(replaced(tensor, written));
    return list;
  }
  if (!value.isOptionalTensorList()) return value;
  c10::List<std::optional<at::Tensor>> list;
  for (const c10::IValue& item : value.toListRef())
    list.push_back(item.isTensor() ? std::make_optional(replaced(item.toTensor(), written)) : std::nullopt);
  return list;
}

at::Tensor StandIns::replaced(const at::Tensor& tensor, bool written) {
  if (!tensor.defined()) return tensor;
  const BufferId id = buffers_.of(tensor);
  const auto found = std::find_if(known_.begin(), known_.end(), [&](const Known& one) { return one.id == id; });
  const bool is_real = !written && !buffers_[id].busy();  // pending operators may write busy buffers
  if (found == known_.end()) {
    known_.push_back({is_real ? tensor.storage() : zeros(tensor.storage().nbytes()), id});
    return is_real ? tensor : Geometry::of(tensor).over(known_.back().storage);
  }
  const bool same = found->storage.unsafeGetStorageImpl() == tensor.storage().unsafeGetStorageImpl();
  return same ? tensor : Geometry::of(tensor).over(found->storage);
}

BufferId StandIns::of(const at::Tensor& result) {
  if (!result.defined()) return no_buffer;
  if (!is_plain(result)) return opaque_buffer;
  const auto found = std::find_if(known_.begin(), known_.end(), [&](const Known& one) {
    return one.storage.unsafeGetStorageImpl() == result.storage().unsafeGetStorageImpl();
  });
  if (found != known_.end()) return found->id;
  known_.push_back({result.storage(), next_});
  return next_++;
}

}  // namespace bellows::graph::detail
