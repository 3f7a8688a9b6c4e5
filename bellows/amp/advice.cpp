#include "bellows/amp/advice.h"

#include <c10/util/StringUtil.h>
#include <c10/util/irange.h>

#include "bellows/amp/module_types.h"
#include "bellows/core/error.h"
#include "bellows/core/round_up.h"

namespace bellows::amp {

namespace {

constexpr int64_t unit = 8;

std::string reason(int64_t size) {
  return c10::str(size, " is not a multiple of ", unit, "; pad it to ", round_up(size, unit));
}

/// The dims of a weight that become sides of a matrix multiplication.
std::vector<int64_t> product_dims(const at::Tensor& weight, const std::string& type) {
  if (weight.dim() < 2) return {};
  if (type.starts_with("Embedding")) return {1};            // rows are looked up, not multiplied
  if (weight.dim() > 2 && weight.size(1) == 1) return {0};  // one input per group: no matmul over it
  return {0, 1};
}

}  // namespace

std::vector<std::string> advise(const Model& model, int64_t batch_size) {
  TORCH_CHECK_VALUE(batch_size >= 0, "advise: expected a batch_size of at least 0, got ", batch_size, ".");
  std::vector<std::string> advice;
  if (batch_size % unit != 0) advice.push_back(c10::str("batch size: ", reason(batch_size)));
  const auto types = module_types(model);
  for (const auto& [name, parameter] : model.named_parameters()) {
    const auto type = types.find(owner_of(name));
    const std::string type_name = type == types.end() ? "" : type->second;
    for (const int64_t dim : product_dims(parameter, type_name)) {
      if (parameter.size(dim) % unit == 0) continue;
      advice.push_back(c10::str(name, " ", parameter.sizes(), type_name.empty() ? "" : " (" + type_name + ")", ", dim ",
                                dim, ": ", reason(parameter.size(dim))));
    }
  }
  return advice;
}

}  // namespace bellows::amp
