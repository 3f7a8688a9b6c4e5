#include <algorithm>

#include "bellows/compile/onednn/layouts_impl.h"

namespace bellows::compile_detail::onednn {

/// Params: first – index of the kernel size argument; stride and padding follow
std::optional<Pooling> Layouts::pooling_of(const Instruction& one, int first, const Operand& input,
                                           const Operand& output) const {
  if (!is_image(input) || !is_image(output) || input.geometry.dtype != output.geometry.dtype ||
      !is_floating(data_type(input.geometry)))
    return {};
  Pooling made{.input = dims_of(input.geometry.sizes),
               .output = dims_of(output.geometry.sizes),
               .kernel = pair_of(one.arguments[first]),
               .padding = pair_of(one.arguments[first + 2], 0),
               .dilation = {1, 1},
               .type = data_type(input.geometry)};
  const bool as_kernel = one.arguments[first + 1].constant.toIntVector().empty();
  made.stride = as_kernel ? made.kernel : pair_of(one.arguments[first + 1]);
  return made;
}

/// Keeps the positions of the maxima in oneDNN's format if only backward passes read them.
bool Layouts::max_pool(int at) {
  if (integer_pool(at)) return true;
  const Instruction& one = program_.instructions[at];
  const Operand &x = operand(one, 0), &y = one.results[0].operands[0], &places = one.results[1].operands[0];
  auto shape = pooling_of(one, 1, x, y);
  if (!shape || (places.value >= 0 && is_output_[places.value])) return false;
  shape->dilation = pair_of(one.arguments[4]);
  const std::vector<int> readers = places.value < 0 ? std::vector<int>{} : readers_[places.value];
  const bool backward_only = std::all_of(readers.begin(), readers.end(), [&](int reader) {
    const Instruction& other = program_.instructions[reader];
    return other.op && !other.kernel && other.op->name == "aten::max_pool2d_with_indices_backward" &&
           operand(other, 7) == places && is_image(operand(other, 0)) && is_image(other.results[0].operands[0]) &&
           all_constant(other) && program_.states[other.state].dispatch_state.onednn;
  });
  const bool training = !readers.empty();
  const auto pass = backward_only ? pooling_forward(*shape, training) : std::nullopt;
  if (!pass || (training && !pooling_backward(*shape))) return false;
  std::vector<Operand> results{made_channels_last(y)};
  if (training) {
    Geometry bytes = places.geometry;
    bytes.dtype = caffe2::TypeMeta::Make<uint8_t>();
    results.push_back(opaque(pass->workspace, bytes));
    workspaces_[places.value] = results.back();
  }
  emit("pooling", pass->kernel, {channels_last_of(x)}, results);
  ++report_.pools;
  return true;
}

bool Layouts::max_pool_backward(int at) {
  const Instruction& one = program_.instructions[at];
  const auto workspace = workspaces_.find(operand(one, 7).value);
  if (workspace == workspaces_.end()) return false;
  const Operand &gradient = operand(one, 0), &to_x = one.results[0].operands[0];
  auto shape = *pooling_of(one, 2, to_x, gradient);
  shape.dilation = pair_of(one.arguments[5]);
  const Operand from = channels_last_of(gradient), to = made_channels_last(to_x);
  emit("pooling", pooling_backward(shape)->kernel, {from, workspace->second}, {to});
  ++report_.pools;
  return true;
}

bool Layouts::average_pool(int at) {
  const Instruction& one = program_.instructions[at];
  const Operand &x = operand(one, 0), &y = one.results[0].operands[0];
  auto shape = pooling_of(one, 1, x, y);
  if (!shape || one.arguments[4].constant.toBool() || !one.arguments[6].constant.isNone()) return false;
  shape->algorithm = one.arguments[5].constant.toBool() ? dnnl::algorithm::pooling_avg_include_padding
                                                        : dnnl::algorithm::pooling_avg_exclude_padding;
  const auto pass = pooling_forward(*shape, /*training=*/true);
  if (!pass) return false;
  const Operand from = channels_last_of(x);
  emit("pooling", pass->kernel, {from}, {made_channels_last(y)});
  ++report_.pools;
  return true;
}

bool Layouts::average_pool_backward(int at) {
  const Instruction& one = program_.instructions[at];
  const Operand &gradient = operand(one, 0), &to_x = one.results[0].operands[0];
  auto shape = pooling_of(one, 2, to_x, gradient);
  if (!shape || one.arguments[5].constant.toBool() || !one.arguments[7].constant.isNone()) return false;
  shape->algorithm = one.arguments[6].constant.toBool() ? dnnl::algorithm::pooling_avg_include_padding
                                                        : dnnl::algorithm::pooling_avg_exclude_padding;
  const auto pass = pooling_backward(*shape);
  if (!pass) return false;
  const Operand from = channels_last_of(gradient);
  emit("pooling", pass->kernel, {from}, {made_channels_last(to_x)});
  ++report_.pools;
  return true;
}

}  // namespace bellows::compile_detail::onednn
