#include "bellows/models/formula_weights.h"

#include <torch/torch.h>

#include "bellows/core/grad_mode.h"

namespace bellows::models {

namespace {

uint64_t fnv1a(std::string_view text) {
  uint64_t hash = 0xCBF29CE484222325;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3;
  return hash;
}

uint64_t splitmix(uint64_t z) {
  z += 0x9E3779B97F4A7C15;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
  return z ^ (z >> 31);
}

at::Tensor formula_parameter(std::string_view name, c10::IntArrayRef sizes) {
  const at::Tensor u = formula_uniform(name, sizes);
  if (sizes.size() < 2) return name.ends_with("weight") ? 1 + u / 4 : u / 8;
  const double fan_in = static_cast<double>(c10::multiply_integers(sizes.slice(1)));
  double scale = 2;
  while (scale * scale * fan_in > 6) scale /= 2;
  return u * scale;
}

}  // namespace

at::Tensor formula_uniform(std::string_view name, c10::IntArrayRef sizes) {
  at::Tensor result = torch::empty(sizes, torch::kFloat64);
  double* out = result.data_ptr<double>();
  const uint64_t seed = fnv1a(name);
  for (int64_t i = 0; i < result.numel(); ++i) {
    out[i] = (static_cast<double>(splitmix(seed + static_cast<uint64_t>(i)) >> 48) - 32768) / 32768;
  }
  return result;
}

at::Tensor formula_labels(std::string_view name, int64_t count, int64_t classes) {
  TORCH_CHECK_VALUE(classes >= 1, "formula_labels: expected at least one class, got ", classes, ".");
  at::Tensor result = torch::empty({count}, torch::kInt64);
  const uint64_t seed = fnv1a(name);
  for (int64_t i = 0; i < count; ++i) {
    result.data_ptr<int64_t>()[i] = static_cast<int64_t>(splitmix(seed + static_cast<uint64_t>(i)) >> 32) % classes;
  }
  return result;
}

std::vector<int64_t> formula_positions(std::string_view name, int64_t numel, int64_t count) {
  TORCH_CHECK_VALUE(numel >= 1, "formula_positions: expected a tensor with elements, got ", numel, " (", name, ").");
  const uint64_t seed = fnv1a(std::string(name) + "/sample");
  std::vector<int64_t> result;
  for (int64_t i = 0; i < count; ++i) {
    result.push_back(static_cast<int64_t>(splitmix(seed + static_cast<uint64_t>(i)) % static_cast<uint64_t>(numel)));
  }
  return result;
}

void set_formula_weights(const NamedTensors& parameters) {
  const no_grad guard;
  for (const auto& [name, tensor] : parameters) tensor.copy_(formula_parameter(name, tensor.sizes()));
}

}  // namespace bellows::models
