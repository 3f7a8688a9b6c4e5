#include "bellows/train/step/failure_localization.h"

#include <ATen/ops/isfinite.h>
#include <c10/util/irange.h>

#include <algorithm>

#include "bellows/core/error.h"
#include "bellows/data/order/packing.h"
#include "bellows/inspect/first_nan.h"

namespace bellows::train {

namespace {

bool all_finite(const at::Tensor& tensor) {
  return !tensor.is_floating_point() || at::isfinite(tensor).all().item<bool>();
}

/// Masks the padding of variable-length arrays, which may be NaN.
at::Tensor without_padding(const data::Batch& batch, const std::string& name, const at::Tensor& tensor) {
  if (!batch.contains(name + "_lengths") || !tensor.is_floating_point()) return tensor;
  at::Tensor padding = data::padding_mask(batch[name + "_lengths"], tensor.size(1)).logical_not();
  while (padding.dim() < tensor.dim()) padding = padding.unsqueeze(-1);
  return tensor.masked_fill(padding, 0);
}

std::string bad_input(const data::Batch& batch) {
  for (const auto& [name, padded] : batch.tensors()) {
    const at::Tensor tensor = without_padding(batch, name, padded);
    if (all_finite(tensor)) continue;
    std::vector<int64_t> ids;
    for (const auto row : c10::irange(batch.size())) {
      if (!all_finite(tensor[static_cast<int64_t>(row)])) ids.push_back(batch.ids()[row]);
    }
    return c10::str("The batch's \"", name, "\" already contains it, in the samples ", id_list(ids), ".");
  }
  return "";
}

std::string bad_weight(const Model& model) {
  for (const auto& [name, tensor] : model.state_dict()) {
    if (!all_finite(tensor.detach()))
      return c10::str("\"", name,
                      "\" of the model already contains it, so the previous step produced it. Try a smaller lr, a ",
                      "warm-up, or max_grad_norm.");
  }
  return "";
}

}  // namespace

std::string id_list(const std::vector<int64_t>& ids) {
  constexpr size_t shown = 8;
  std::string text;
  for (const auto i : c10::irange(std::min(shown, ids.size()))) text += (i ? ", " : "") + std::to_string(ids[i]);
  return ids.size() > shown ? c10::str(text, " and ", ids.size() - shown, " more") : text;
}

std::string bad_input_or_weight(const Job& job, const data::Batch& batch) {
  const std::string words = bad_input(batch);
  return words.empty() ? bad_weight(job.model) : words;
}

std::string blame_bad_value(const Job& job, const data::Batch& batch, const std::function<void()>& replay) {
  if (std::string words = bad_input_or_weight(job, batch); !words.empty()) return words;
  inspect::FirstNan watch(job.model);
  try {
    replay();
  } catch (const std::exception& error) {
    return c10::str("A second run of the batch, to find the operator, failed: ", user_message(error));
  }
  const auto finding = watch.finding();
  return finding ? "First produced by " + finding->to_string()
                 : "When the batch ran again, no NaN or infinity occurred. The step is not deterministic.";
}

}  // namespace bellows::train
