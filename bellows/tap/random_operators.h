#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

namespace bellows::tap {

/// Replaces libtorch's CPU kernels of operators that draw random numbers. Each function either performs the operator
/// and returns true, or changes nothing and returns false. libtorch's kernel then runs.
///
/// The functions are called below autograd, for CPU tensors, with the arguments that the operator received. No argument
/// has been checked.
/// Threads: called on any thread, also concurrently
class RandomOperators {
 public:
  using Generator = std::optional<at::Generator>;

  virtual ~RandomOperators() = default;
  virtual bool bernoulli(at::Tensor& self, double p, const Generator& generator) = 0;
  virtual bool bernoulli(at::Tensor& self, const at::Tensor& p, const Generator& generator) = 0;
  virtual bool uniform(at::Tensor& self, double from, double to, const Generator& generator) = 0;
  virtual bool normal(at::Tensor& self, double mean, double std, const Generator& generator) = 0;
  virtual bool random(at::Tensor& self, const Generator& generator) = 0;
  virtual bool random(at::Tensor& self, int64_t from, std::optional<int64_t> to, const Generator& generator) = 0;
  virtual bool randperm(at::Tensor& out, int64_t n, const Generator& generator) = 0;
};

/// From now on, calls `operators` for `bernoulli_`, `uniform_`, `normal_`, `random_` and `randperm` of CPU tensors, on
/// all threads of the process. Null ends the replacement. Operators that libtorch composes of these, such as `dropout`,
/// `rand`, `randn` and `randint`, are included.
/// Changes: the first call permanently replaces libtorch's CPU kernels of these operators in the whole process. Without
///          `operators`, they behave like libtorch's kernels
/// Params:  operators – must exist until the process ends, because a thread may still call it
/// Cost:    one atomic load per call of one of these operators
/// Threads: thread-safe
void replace_random_operators(RandomOperators* operators);
/// Replaces the kernels. They still compute what libtorch computes, except during SkipInitialization.
void replace_kernels_of_random_operators();

}  // namespace bellows::tap
