#include <ATen/Tensor.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/native_batch_norm.h>
#include <ATen/ops/native_batch_norm_backward.h>
#include <torch/library.h>

#include <array>
#include <tuple>

#include "bellows/graph/passes/passes.h"
#include "bellows/graph/program/program_edit.h"

namespace bellows::graph::detail {
namespace {

using at::Tensor;
using Three = std::tuple<Tensor, Tensor, Tensor>;

/// libtorch computes instance norm as the batch norm of one sample that has the channels of all samples:
/// [N, C, *] -> [1, N·C, *].
Tensor as_one_sample(const Tensor& x) {
  at::DimVector sizes(x.sizes());
  sizes[1] *= sizes[0];
  sizes[0] = 1;
  return x.contiguous().view(sizes);
}

Tensor as_samples(const Tensor& y, const Tensor& like) {
  const Tensor made = y.view(like.sizes());
  return like.is_contiguous() ? made : at::empty_like(like).copy_(made);
}

c10::optional<Tensor> flat(const c10::optional<Tensor>& one) {
  return one && one->defined() ? c10::optional<Tensor>(one->reshape({-1})) : c10::nullopt;
}

Three forward_kernel(const Tensor& input, const c10::optional<Tensor>& weight, const c10::optional<Tensor>& bias,
                     double eps) {
  const auto [y, mean, scale] =
      at::native_batch_norm(as_one_sample(input), flat(weight), flat(bias), {}, {}, /*training=*/true, 0, eps);
  const std::array<int64_t, 2> channels{input.size(0), input.size(1)};
  return {as_samples(y, input), mean.view(channels), scale.view(channels)};
}

Three backward_kernel(const Tensor& grad, const Tensor& input, const c10::optional<Tensor>& weight, const Tensor& mean,
                      const Tensor& scale) {
  auto [dx, dweight, dbias] =
      at::native_batch_norm_backward(as_one_sample(grad), as_one_sample(input), flat(weight), {}, {}, flat(mean),
                                     flat(scale), /*train=*/true, 0, {true, true, true});
  const std::array<int64_t, 2> channels{input.size(0), input.size(1)};
  if (dweight.defined()) dweight = dweight.view(channels);
  if (dbias.defined()) dbias = dbias.view(channels);
  return {as_samples(dx, input), dweight, dbias};
}

/// Sizes and strides of [N, C, *] for an operand [1, N·C, *] that is all of such a buffer.
std::optional<Geometry> samples_of(const Program& program, const Operand& operand) {
  const Geometry &seen = operand.geometry, &made = program.values[operand.value].geometry;
  const size_t rank = seen.sizes.size();
  if (rank < 3 || made.sizes.size() != rank || seen.sizes[0] != 1 || made.sizes[0] < 2 || seen.offset != 0 ||
      made.offset != 0 || made.sizes[0] * made.sizes[1] != seen.sizes[1] || seen.strides != row_major(seen).strides ||
      made.strides != row_major(made).strides)
    return std::nullopt;
  for (size_t i = 2; i < rank; ++i) {
    if (made.sizes[i] != seen.sizes[i]) return std::nullopt;
  }
  Geometry samples = seen;
  samples.sizes = made.sizes;
  samples.strides = made.strides;
  return samples;
}

Geometry of_channels(const Geometry& vector, const Geometry& samples) {
  Geometry made = vector;
  made.sizes.assign({samples.sizes[0], samples.sizes[1]});
  made.strides.assign({samples.sizes[1] * vector.strides[0], vector.strides[0]});
  return made;
}

bool is_none(const Instruction::Argument& argument) {
  return argument.operands.empty() || argument.operands[0].value == no_value;
}

/// Rewrites the batch norms to which at::instance_norm reduces its work.
class InstanceNorms {
 public:
  explicit InstanceNorms(Program& program) : program_(program) {}

  int64_t run() {
    int64_t fired = 0;
    for (Instruction& one : program_.instructions) {
      if (!one.op || one.kernel || !one.updates.empty()) continue;
      const bool backward = one.op->name == "aten::native_batch_norm_backward";
      if (!backward && one.op->name != "aten::native_batch_norm") continue;
      fired += backward ? rewrite_backward(one) : rewrite_forward(one);
    }
    return fired;
  }

 private:
  /// Params: training – argument; running – the first argument of the running statistics
  static bool uses_own_statistics(const Instruction& one, size_t training, size_t running) {
    const c10::IValue& value = one.arguments[training].constant;
    return value.isBool() && value.toBool() && is_none(one.arguments[running]) && is_none(one.arguments[running + 1]);
  }

  bool rewrite_forward(Instruction& one) {
    if (!uses_own_statistics(one, 5, 3)) return false;
    const auto samples = samples_of(program_, one.arguments[0].operands[0]);
    if (!samples || !is_whole(one.results[0])) return false;
    static const OperatorFacts* const op = operator_named("bellows::instance_norm");
    std::vector<Instruction::Argument> arguments = {one.arguments[0], one.arguments[1], one.arguments[2],
                                                    one.arguments[7]};
    put(one, op, std::move(arguments), *samples, 1);
    return true;
  }

  bool rewrite_backward(Instruction& one) {
    if (!uses_own_statistics(one, 7, 3)) return false;
    const auto samples = samples_of(program_, one.arguments[1].operands[0]);
    const Operand& grad = one.arguments[0].operands[0];
    if (!samples || grad.geometry.strides != row_major(grad.geometry).strides || !is_whole(one.results[0]))
      return false;
    static const OperatorFacts* const op = operator_named("bellows::instance_norm_backward");
    std::vector<Instruction::Argument> arguments = {one.arguments[0], one.arguments[1], one.arguments[2],
                                                    one.arguments[5], one.arguments[6]};
    put(one, op, std::move(arguments), *samples, 2);
    return true;
  }

  bool is_whole(const Instruction::Result& result) const {
    const Operand& made = result.operands[0];
    return made.value != no_value && made.geometry.offset == 0 &&
           made.geometry.strides == row_major(made.geometry).strides &&
           covers(made.geometry, program_.values[made.value].nbytes);
  }

  /// Params: images – the number of arguments that are images; all other tensors have one value per channel
  void put(Instruction& one, const OperatorFacts* op, std::vector<Instruction::Argument> arguments,
           const Geometry& samples, size_t images) {
    const auto reshape = [&](Operand& operand, bool is_image) {
      if (operand.value == no_value) return;
      Geometry made = is_image ? samples : of_channels(operand.geometry, samples);
      made.offset = operand.geometry.offset;
      operand.geometry = made;
    };
    for (size_t i = 0; i < arguments.size(); ++i) {
      arguments[i].kind = op->arguments[i];
      for (Operand& operand : arguments[i].operands) reshape(operand, i < images);
    }
    for (size_t i = 0; i < one.results.size(); ++i) {
      Operand& made = one.results[i].operands[0];
      reshape(made, i == 0);
      if (i == 0) program_.values[made.value].geometry = made.geometry;
    }
    one.op = op;
    one.arguments = std::move(arguments);
  }

  Program& program_;
};

}  // namespace

TORCH_LIBRARY_FRAGMENT(bellows, library) {
  library.def("instance_norm(Tensor input, Tensor? weight, Tensor? bias, float eps) -> (Tensor, Tensor, Tensor)",
              {at::Tag::pt2_compliant_tag});
  library.def(
      "instance_norm_backward(Tensor grad, Tensor input, Tensor? weight, Tensor mean, Tensor scale)"
      " -> (Tensor, Tensor, Tensor)",
      {at::Tag::pt2_compliant_tag});
}

TORCH_LIBRARY_IMPL(bellows, CompositeExplicitAutograd, library) {
  library.impl("instance_norm", forward_kernel);
  library.impl("instance_norm_backward", backward_kernel);
}

int64_t say_instance_norms(Program& program, const PassOptions&) {
  return InstanceNorms(program).run();
}

}  // namespace bellows::graph::detail
