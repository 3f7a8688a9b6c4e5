#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "bellows/comm/collectives.h"
#include "bellows/parallel/hooks/hooks.h"
#include "tests/parallel/ranks.h"

namespace bellows::parallel::testing {

using Shapes = std::vector<std::vector<int64_t>>;
using MakeHook = std::function<std::shared_ptr<GradientHook>()>;

inline const std::vector<std::pair<std::string, MakeHook>>& all_hooks() {
  static const std::vector<std::pair<std::string, MakeHook>> hooks = {
      {"all-reduce", [] { return all_reduce_hook(); }},
      {"bf16", [] { return bf16_hook(); }},
      {"fp16", [] { return fp16_hook(); }},
      {"int8", [] { return int8_hook({.error_feedback = false}); }},
      {"int8 with error feedback", [] { return int8_hook(); }},
      {"PowerSGD, rank 1", [] { return power_sgd_hook({.start_step = 0}); }},
      {"PowerSGD, rank 3", [] { return power_sgd_hook({.rank = 3, .start_step = 0, .min_compression_rate = 1}); }},
      {"top-k, 5 %", [] { return top_k_hook({.ratio = 0.05, .error_feedback = false}); }},
      {"top-k, 5 % with error feedback", [] { return top_k_hook({.ratio = 0.05}); }},
  };
  return hooks;
}

/// Parameters of one rank, and buckets of gradients for them.
class Gradients {
 public:
  explicit Gradients(const Shapes& shapes, at::ScalarType type = at::kDouble) {
    parameters_.reserve(shapes.size());
    for (const auto& shape : shapes) parameters_.push_back(at::empty(shape, type));
  }

  /// A bucket with gradients that follow a formula, for the parameters of these numbers.
  GradientBucket bucket(int64_t step, int rank, std::vector<size_t> members = {}, int64_t index = 0,
                        bool last = true) const {
    if (members.empty()) {
      for (size_t i = 0; i < parameters_.size(); ++i) members.push_back(i);
    }
    std::vector<at::Tensor> parts;
    parts.reserve(members.size());
    for (const size_t i : members)
      parts.push_back(formula(static_cast<int64_t>(i), parameters_[i].sizes(), step, rank).flatten());
    GradientBucket result{.index = index, .last = last, .flat = at::cat(parts).to(parameters_[0].scalar_type())};
    int64_t begin = 0;
    for (const size_t i : members) {
      const at::Tensor& parameter = parameters_[i];
      result.gradients.push_back(result.flat.narrow(0, begin, parameter.numel()).view(parameter.sizes()));
      result.parameters.push_back(parameter);
      begin += parameter.numel();
    }
    return result;
  }

  /// As tools/goldens/parallel.py has it.
  static at::Tensor formula(int64_t tensor, at::IntArrayRef shape, int64_t step, int rank) {
    const at::Tensor i = at::arange(c10::multiply_integers(shape), at::kDouble);
    const auto number = static_cast<double>(tensor);
    const double phase = 1.3 * number + 0.2 * static_cast<double>(step) + 0.3 * rank;
    return ((0.37 * i * i + phase).sin() + 0.5 * (0.11 * i + number).cos()).view(shape);
  }

 private:
  std::vector<at::Tensor> parameters_;
};

inline const Shapes odd_shapes = {{12, 10}, {17}, {}, {16, 3, 2, 2}, {12, 10}, {1, 1}, {0, 4}};

/// The mean that `hook` should come to.
inline at::Tensor exact(const Gradients& gradients, int64_t step, int ranks) {
  at::Tensor sum = gradients.bucket(step, 0).flat.to(at::kDouble);
  for (int rank = 1; rank < ranks; ++rank) sum = sum + gradients.bucket(step, rank).flat.to(at::kDouble);
  return sum / ranks;
}

inline at::Tensor bytes_of(const at::Tensor& tensor) {
  return tensor.contiguous().view(-1).view(at::kByte);
}

inline void expect_same_on_all_ranks(const at::Tensor& tensor, const comm::Group& group, const std::string& what) {
  EXPECT_TRUE(comm::all_gather(bytes_of(tensor), group).eq(bytes_of(tensor)).all().item<bool>()) << what;
}

/// What `hook` makes of steps `begin` to `end` - 1 of one bucket.
inline std::vector<at::Tensor> means_of(GradientHook& hook, const Gradients& gradients, const comm::Group& group,
                                        int begin, int end) {
  std::vector<at::Tensor> means;
  means.reserve(static_cast<size_t>(end - begin));
  for (int step = begin; step < end; ++step) {
    means.push_back(hook.mean(gradients.bucket(step, group.rank()), group).clone());
    expect_same_on_all_ranks(means.back(), group, hook.describe());
  }
  return means;
}

inline double largest(const at::Tensor& tensor) {
  return tensor.abs().max().item<double>();
}

}  // namespace bellows::parallel::testing
