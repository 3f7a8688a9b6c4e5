#include "bellows/serve/batch/padding.h"

#include <ATen/ops/full.h>
#include <c10/util/Exception.h>

#include <algorithm>

namespace bellows::serve {

namespace {

bool varies_on(const TensorSpec& spec, int64_t axis) {
  return static_cast<int64_t>(spec.dims.size()) >= axis && spec.dims[static_cast<size_t>(axis - 1)] < 0;
}

}  // namespace

Padding::Padding(const PadOptions& options, std::span<const TensorSpec> inputs, std::span<const TensorSpec> outputs)
    : axis_(options.axis), buckets_(options.buckets) {
  for (const TensorSpec& input : inputs) {
    const auto value = options.values.find(input.name);
    values_.emplace_back();
    if (varies_on(input, axis_)) values_.back() = value == options.values.end() ? 0 : value->second;
  }
  for (const TensorSpec& output : outputs) outputs_.push_back(varies_on(output, axis_));
  TORCH_CHECK_VALUE(std::ranges::any_of(values_, [](const auto& value) { return value.has_value(); }),
                    "parameters: pad_axis: no input has the size -1 on axis ", axis_,
                    ". Axes are counted with the batch axis, which is axis 0.");
  for (const auto& [name, value] : options.values) {
    const auto found = std::ranges::find(inputs, name, &TensorSpec::name);
    TORCH_CHECK_VALUE(found != inputs.end() && varies_on(*found, axis_), "parameters: pad_values: there is no input \"",
                      name, "\" whose size varies on axis ", axis_, ".");
  }
}

std::optional<int64_t> Padding::length(std::span<const at::Tensor> inputs) const {
  std::optional<int64_t> common;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!values_[i]) continue;
    const int64_t own = inputs[i].size(axis_);
    if (common && *common != own) return std::nullopt;
    common = own;
  }
  return common;
}

int64_t Padding::padded_length(int64_t longest) const {
  const auto bucket = std::ranges::lower_bound(buckets_, longest);
  return bucket == buckets_.end() ? longest : *bucket;
}

bool Padding::can_join(std::span<const at::Tensor> first, std::span<const at::Tensor> other) const {
  const auto first_length = length(first), other_length = length(other);
  if (!first_length || !other_length) return false;
  const auto bucket = std::ranges::lower_bound(buckets_, *first_length);
  if (bucket != std::ranges::lower_bound(buckets_, *other_length)) return false;
  for (size_t i = 0; i < first.size(); ++i) {
    const at::IntArrayRef a = first[i].sizes(), b = other[i].sizes();
    if (a.size() != b.size()) return false;
    for (size_t axis = 1; axis < a.size(); ++axis) {
      const bool padded = values_[i] && static_cast<int64_t>(axis) == axis_;
      if (a[axis] != b[axis] && !padded) return false;
    }
  }
  return true;
}

at::Tensor Padding::padding_for(size_t index, const at::Tensor& input, int64_t rows, int64_t length) const {
  std::vector<int64_t> sizes = input.sizes().vec();
  sizes[0] = rows;
  sizes[static_cast<size_t>(axis_)] = length;
  return at::full(sizes, values_[index].value_or(0), input.options());
}

}  // namespace bellows::serve
