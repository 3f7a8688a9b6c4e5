#pragma once

// Implements Model::of() for modules whose forward takes several tensors.

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include <concepts>
#include <cstddef>
#include <tuple>
#include <utility>
#include <vector>

namespace bellows::model_detail {

inline constexpr size_t most_inputs = 8;

template <class Module, size_t... I>
concept TakesTensors = requires(Module& module, const std::vector<at::Tensor>& x) {
  module.forward(x[I]...);
};

inline std::vector<at::Tensor> as_outputs(at::Tensor one) {
  return {std::move(one)};
}
inline std::vector<at::Tensor> as_outputs(std::vector<at::Tensor> several) {
  return several;
}
template <class... T>
requires(std::convertible_to<T, at::Tensor>&&...) std::vector<at::Tensor> as_outputs(const std::tuple<T...>& several) {
  return std::apply([](const auto&... each) { return std::vector<at::Tensor>{each...}; }, several);
}
inline std::vector<at::Tensor> as_outputs(const std::pair<at::Tensor, at::Tensor>& two) {
  return {two.first, two.second};
}

template <class Module, size_t... I>
std::vector<at::Tensor> call_with(Module& module, const std::vector<at::Tensor>& x, std::index_sequence<I...>) {
  if constexpr (TakesTensors<Module, I...>) {
    return as_outputs(module.forward(x[I]...));
  } else {
    TORCH_CHECK_VALUE(false, "Model::of: the module's forward does not take ", x.size(),
                      " tensors, as many as inputs are named.");
  }
}

/// Calls module.forward(x[0], x[1], …) and returns the results as a vector.
template <class Module, size_t N = 1>
std::vector<at::Tensor> call(Module& module, const std::vector<at::Tensor>& x) {
  if constexpr (N > most_inputs) {
    TORCH_CHECK_VALUE(false, "Model::of: expected 1 to ", most_inputs, " inputs, got ", x.size(), ".");
  } else {
    if (x.size() == N) return call_with(module, x, std::make_index_sequence<N>());
    return call<Module, N + 1>(module, x);
  }
}

}  // namespace bellows::model_detail
