#include "bellows/data/loader/batch.h"

#include <c10/util/Exception.h>

namespace bellows::data {

Batch::Batch(NamedTensors tensors, std::vector<int64_t> ids, BatchPlace place)
    : tensors_(std::move(tensors)), ids_(std::move(ids)), place_(place) {}

bool Batch::contains(std::string_view name) const {
  for (const auto& [known, tensor] : tensors_) {
    if (known == name) return true;
  }
  return false;
}

const at::Tensor& Batch::operator[](std::string_view name) const {
  std::string all;
  for (const auto& [known, tensor] : tensors_) {
    if (known == name) return tensor;
    all += (all.empty() ? "" : ", ") + known;
  }
  TORCH_CHECK_VALUE(false, "Batch: no tensor has the name \"", name,
                    "\". The batch contains: ", all.empty() ? "nothing" : all, ".");
}

Batch Batch::to(c10::Device device, bool non_blocking) const {
  Batch moved = *this;
  for (auto& [name, tensor] : moved.tensors_) {
    tensor = tensor.to(tensor.options().device(device), non_blocking);
  }
  return moved;
}

}  // namespace bellows::data
