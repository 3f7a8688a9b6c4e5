#include "bellows/tap/random_operators.h"

#include <ATen/core/Generator.h>
#include <ATen/ops/bernoulli_native.h>
#include <ATen/ops/normal_native.h>
#include <ATen/ops/random_native.h>
#include <ATen/ops/randperm_native.h>
#include <ATen/ops/uniform_native.h>
#include <torch/library.h>

#include <atomic>

#include "bellows/tap/kernel_replacement.h"
#include "bellows/tap/skip_initialization.h"

namespace bellows::tap {

namespace {

using Generator = RandomOperators::Generator;

std::atomic<RandomOperators*> replacement = nullptr;

at::Tensor& bernoulli_float(at::Tensor& self, double p, Generator generator) {
  if (skips_initialization(self)) return self;
  if (auto* ours = replacement.load(); ours && ours->bernoulli(self, p, generator)) return self;
  return at::native::bernoulli_(self, p, std::move(generator));
}

at::Tensor& bernoulli_tensor(at::Tensor& self, const at::Tensor& p, Generator generator) {
  if (skips_initialization(self)) return self;
  if (auto* ours = replacement.load(); ours && ours->bernoulli(self, p, generator)) return self;
  return at::native::bernoulli_(self, p, std::move(generator));
}

at::Tensor& uniform(at::Tensor& self, double from, double to, Generator generator) {
  if (skips_initialization(self)) return self;
  if (auto* ours = replacement.load(); ours && ours->uniform(self, from, to, generator)) return self;
  return at::native::uniform_(self, from, to, std::move(generator));
}

at::Tensor& normal(at::Tensor& self, double mean, double std, Generator generator) {
  if (skips_initialization(self)) return self;
  if (auto* ours = replacement.load(); ours && ours->normal(self, mean, std, generator)) return self;
  return at::native::normal_(self, mean, std, std::move(generator));
}

at::Tensor& random(at::Tensor& self, Generator generator) {
  if (skips_initialization(self)) return self;
  if (auto* ours = replacement.load(); ours && ours->random(self, generator)) return self;
  return at::native::random_(self, std::move(generator));
}

at::Tensor& random_from(at::Tensor& self, int64_t from, std::optional<int64_t> to, Generator generator) {
  if (skips_initialization(self)) return self;
  if (auto* ours = replacement.load(); ours && ours->random(self, from, to, generator)) return self;
  return at::native::random_(self, from, to, std::move(generator));
}

at::Tensor& random_to(at::Tensor& self, int64_t to, Generator generator) {
  if (skips_initialization(self)) return self;
  if (auto* ours = replacement.load(); ours && ours->random(self, 0, to, generator)) return self;
  return at::native::random_(self, to, std::move(generator));
}

at::Tensor& randperm(int64_t n, Generator generator, at::Tensor& out) {
  if (auto* ours = replacement.load(); ours && ours->randperm(out, n, generator)) return out;
  return at::native::randperm_out_cpu(n, std::move(generator), out);
}

torch::Library* install_random() {
  const SilentReplacement silent;
  auto* library = new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::CPU, __FILE__, __LINE__);
  library->impl("bernoulli_.float", bernoulli_float);
  library->impl("bernoulli_.Tensor", bernoulli_tensor);
  library->impl("uniform_", uniform);
  library->impl("normal_", normal);
  library->impl("random_", random);
  library->impl("random_.from", random_from);
  library->impl("random_.to", random_to);
  library->impl("randperm.generator_out", randperm);
  return library;
}

}  // namespace

void replace_kernels_of_random_operators() {
  [[gnu::used]] static const torch::Library* const installed = install_random();  // never undone
}

void replace_random_operators(RandomOperators* operators) {
  replace_kernels_of_random_operators();
  replacement = operators;
}

}  // namespace bellows::tap
