#include <algorithm>

#include "bellows/compile/onednn/layouts_impl.h"

namespace bellows::compile_detail::onednn {
namespace {

bool same_type(const Operand& a, const Operand& b) {
  return a.geometry.dtype == b.geometry.dtype;
}

bool is_vector(const Operand& operand, int64_t size) {
  const Geometry& geometry = operand.geometry;
  return geometry.sizes.size() == 1 && geometry.sizes[0] == size && geometry.strides[0] == 1 && geometry.offset == 0;
}

bool is_fp32(const Operand& operand) {
  return data_type(operand.geometry) == memory::data_type::f32;
}

bool is_dense(const Operand& weight) {
  const Desc desc = desc_of(weight.geometry);
  return desc.get_size() ==
         static_cast<size_t>(c10::multiply_integers(weight.geometry.sizes)) * weight.geometry.dtype.itemsize();
}

/// The descriptor of a plain weight in the order of dims that primitives use.
Desc weight_desc(const Operand& weight, const Convolution& shape) {
  const auto& strides = weight.geometry.strides;
  const int64_t to = strides[shape.transposed ? 1 : 0], from = strides[shape.transposed ? 0 : 1];
  const auto type = data_type(weight.geometry);
  if (shape.weight.size() == 4) return {shape.weight, type, {to, from, strides[2], strides[3]}};
  const int64_t group = (shape.transposed ? shape.weight[2] : shape.weight[1]) * strides[0];
  return {shape.weight, type, {group, to, from, strides[2], strides[3]}};
}

/// True if convolutions as matmuls support these operations.
bool is_plain(const std::vector<PostOp>& post) {
  return std::all_of(post.begin(), post.end(),
                     [](const PostOp& one) { return one.is_add() || one.kind == PostOp::Kind::relu; });
}

}  // namespace

/// Params: first – index of the stride argument; the others follow as in aten::convolution
std::optional<Convolution> Layouts::shape_of(const Instruction& one, int first, const Operand& input,
                                             const Operand& weight, const Operand& output) const {
  const auto known = [&](const Operand& image) { return is_image(image) || part_of_twin(image); };
  if (!known(input) || !known(output) || weight.geometry.sizes.size() != 4 || !is_dense(weight) ||
      !same_type(input, weight) || !same_type(input, output) || !is_floating(data_type(input.geometry)))
    return {};
  Convolution made{.input = dims_of(input.geometry.sizes),
                   .weight = dims_of(weight.geometry.sizes),
                   .output = dims_of(output.geometry.sizes),
                   .stride = pair_of(one.arguments[first]),
                   .padding = pair_of(one.arguments[first + 1], 0),
                   .dilation = pair_of(one.arguments[first + 2]),
                   .type = data_type(input.geometry),
                   .transposed = one.arguments[first + 3].constant.toBool()};
  const int64_t groups = one.arguments[first + 5].constant.toInt();
  if (made.transposed) std::swap(made.weight[0], made.weight[1]);
  if (groups > 1) {
    made.weight[made.transposed ? 1 : 0] /= groups;
    made.weight.insert(made.weight.begin(), groups);
  }
  return made;
}

/// Fuses an addition of the convolution's result and an existing image of the same size.
bool Layouts::take_addition(Epilogue& epilogue, const Instruction& one, int at, int reader) {
  if (one.op->name != "aten::add.Tensor" || !one.arguments[2].constant.isInt() ||
      one.arguments[2].constant.toInt() != 1)
    return false;
  const bool first = operand(one, 0) == epilogue.result, second = operand(one, 1) == epilogue.result;
  const Operand& other = operand(one, first ? 1 : 0);
  if (first == second || !is_image(other) || !same_type(other, epilogue.result) ||
      other.geometry.sizes != epilogue.result.geometry.sizes || maker_[other.value] >= at || reader <= at)
    return false;
  epilogue.post.push_back({PostOp::Kind::add});
  epilogue.added.push_back(other);
  return true;
}

/// Fuses a norm with running statistics, which scales the convolution's weight and shifts its bias.
bool Layouts::take_norm(Epilogue& epilogue, const Instruction& one) {
  if (!is_evaluation(one) || !epilogue.post.empty() || epilogue.norm || !(operand(one, 0) == epilogue.result))
    return false;
  const int64_t channels = epilogue.result.geometry.sizes[1];
  for (const size_t i : {1, 2, 3, 4}) {
    const bool optional = i < 3 && !defined(one, 1) && !defined(one, 2);
    if (!optional && (!defined(one, i) || !is_fp32(operand(one, i)) || !is_vector(operand(one, i), channels)))
      return false;
  }
  for (const size_t i : {1, 2}) {
    if (!is_unread(one.results[i].operands[0].value)) return false;
  }
  epilogue.norm = &one;
  return true;
}

Layouts::Epilogue Layouts::epilogue_of(int at, bool fold_norm) {
  Epilogue made{.result = program_.instructions[at].results[0].operands[0]};
  while (made.post.size() < 3) {
    const int reader = sole_reader(made.result.value);
    if (reader < 0 || taken_[reader]) break;
    const Instruction& one = program_.instructions[reader];
    if (!one.op || one.kernel || one.state != program_.instructions[at].state || !all_constant(one)) break;
    const bool norm = fold_norm && take_norm(made, one);
    if (!norm && (!one.op->writes.empty() || !owned(one) || !is_image(one.results[0].operands[0]))) break;
    const auto activation = norm ? std::nullopt : post_op_of(one);
    if (activation && operand(one, 0) == made.result)
      made.post.push_back(*activation);
    else if (!norm && !take_addition(made, one, at, reader))
      break;
    made.result = one.results[0].operands[0];
    made.taken.push_back(reader);
  }
  return made;
}

bool Layouts::convolution(int at) {
  const bool fp32 = is_fp32(operand(program_.instructions[at], 0));
  Epilogue with = epilogue_of(at, fp32), without{.result = program_.instructions[at].results[0].operands[0]};
  if (!is_image(with.result)) return convolve(at, without);
  return convolve(at, with) || (!with.taken.empty() && convolve(at, without));
}

/// Emits the computation of the factors and the bias that replace a norm.
Operand Layouts::fold(const Epilogue& epilogue, const Convolution& shape, const Operand& bias, Operand& factor) {
  const Instruction& norm = *epilogue.norm;
  std::vector<Operand> operands;
  operands.reserve(5);
  for (const size_t i : {1, 2, 3, 4}) {
    if (!defined(norm, i)) continue;
    need_plain(operand(norm, i).value);
    operands.push_back(operand(norm, i));
  }
  if (bias.value >= 0) operands.push_back(bias);
  const size_t nbytes = static_cast<size_t>(shape.output[1]) * sizeof(float);
  factor = opaque(nbytes, operands.front().geometry);
  const Operand moved = opaque(nbytes, operands.front().geometry);
  const BatchNorm folded{
      .sizes = shape.output, .eps = norm.arguments[6].constant.toDouble(), .affine = defined(norm, 1)};
  emit("batch_norm", batch_norm_folding(folded, bias.value >= 0), operands, {factor, moved});
  return moved;
}

struct Layouts::Part {
  Operand image, weight;
  Convolution shape;
  LayerPass pass;
};

/// Returns: the parts of a convolution of concatenated channels; empty if a single convolution is better, because sums
///          cost as much as copies
std::vector<Layouts::Part> Layouts::parts_of(const Instruction& one, const Convolution& shape,
                                             const Epilogue& epilogue) const {
  const auto cat = cats_.find(operand(one, 0).value);
  if (cat == cats_.end() || shape.transposed || shape.weight.size() != 4 || epilogue.norm) return {};
  const auto& images = program_.instructions[cat->second].arguments[0].operands;
  if (static_cast<int64_t>(images.size() - 1) * shape.output[1] > shape.input[1]) return {};
  std::vector<Part> parts;
  parts.reserve(images.size());
  int64_t channel = 0;
  for (const Operand& image : images) {
    Part part{image, operand(one, 1), shape, {}};
    auto& sizes = part.weight.geometry.sizes;
    part.shape.input[1] = part.shape.weight[1] = sizes[1] = image.geometry.sizes[1];
    part.weight.geometry.offset += channel * part.weight.geometry.strides[1];
    channel += sizes[1];
    const bool last = parts.size() + 1 == images.size();
    part.shape.bias = shape.bias && last;
    std::vector<PostOp> post = last ? epilogue.post : std::vector<PostOp>{};
    if (!parts.empty()) post.insert(post.begin(), {PostOp::Kind::add});
    auto pass = convolution_forward(part.shape, post);
    if (!pass) return {};
    part.pass = std::move(*pass);
    parts.push_back(std::move(part));
  }
  return parts;
}

/// Computes a convolution of concatenated channels in parts. Each convolution adds the result for its part to the sum
/// of the previous ones, so that nothing is copied. For the sizes of a U-Net, the parts together are 1.06× (fp32) and
/// 1.00× (bf16) as fast as a single convolution.
bool Layouts::convolve_parts(const Instruction& one, const Convolution& shape, const Operand& bias,
                             const Epilogue& epilogue) {
  const std::vector<Part> parts = parts_of(one, shape, epilogue);
  if (parts.empty()) return false;
  cats_.erase(operand(one, 0).value);
  need_plain(operand(one, 1).value);
  need_plain(bias.value);
  const Geometry whole = channels_last_geometry(epilogue.result.geometry);
  Operand sum;
  for (const Part& part : parts) {
    const bool last = &part == &parts.back();
    std::vector<Operand> operands{channels_last_of(part.image)};
    operands.push_back(packed(part.weight, weight_desc(part.weight, part.shape), part.pass.weight));
    if (part.shape.bias) operands.push_back(bias);
    if (sum.value >= 0) operands.push_back(sum);
    for (size_t i = 0; last && i < epilogue.added.size(); ++i) operands.push_back(channels_last_of(epilogue.added[i]));
    sum = last ? made_channels_last(epilogue.result) : temporary(whole);
    emit("convolution", part.pass.kernel, operands, {sum});
  }
  take(epilogue);
  report_.convolutions += static_cast<int>(parts.size());
  ++report_.fused;
  return true;
}

void Layouts::take(const Epilogue& epilogue) {
  for (const int taken : epilogue.taken) taken_[taken] = true;
  report_.fused += static_cast<int>(epilogue.taken.size());
}

bool Layouts::convolve(int at, Epilogue& epilogue) {
  const Instruction& one = program_.instructions[at];
  const Operand &input = operand(one, 0), &weight = operand(one, 1);
  Operand bias = operand(one, 2);
  auto shape = shape_of(one, 3, input, weight, one.results[0].operands[0]);
  if (!shape || !one.updates.empty()) return false;
  if (bias.value >= 0 && (!same_type(bias, input) || !is_vector(bias, shape->output[1]))) return false;
  shape->bias = bias.value >= 0 || epilogue.norm;
  const bool product = prefers_product(*shape) && !constants_.contains(weight.value) && is_plain(epilogue.post);
  if (!product && convolve_parts(one, *shape, bias, epilogue)) return true;
  auto pass = product ? product_forward(*shape, epilogue.post, epilogue.norm) : std::nullopt;
  if (!pass) pass = convolution_forward(*shape, epilogue.post);
  if (!pass) return false;
  need_plain(weight.value);
  need_plain(bias.value);
  Operand factor;
  if (epilogue.norm) bias = fold(epilogue, *shape, bias, factor);
  const bool in_weight = epilogue.norm && !pass->scales;
  std::vector<Operand> operands{channels_last_of(input)};
  operands.push_back(packed(weight, weight_desc(weight, *shape), pass->weight, in_weight ? &factor : nullptr));
  if (epilogue.norm && pass->scales) operands.push_back(factor);
  if (shape->bias) operands.push_back(bias);
  for (const Operand& added : epilogue.added) operands.push_back(channels_last_of(added));
  emit("convolution", pass->kernel, operands, {made_channels_last(epilogue.result)});
  take(epilogue);
  ++report_.convolutions;
  return true;
}

/// Returns: the only reader of a weight's gradient if it casts it to float, as autocast does, otherwise -1. The
///          gradient is then computed in float and never rounded.
int Layouts::widening_of(const Operand& gradient) const {
  const int reader = gradient.value < 0 ? -1 : sole_reader(gradient.value);
  if (reader < 0 || taken_[reader]) return -1;
  const Instruction& one = program_.instructions[reader];
  if (!one.op || one.kernel || one.op->name != "aten::_to_copy" || !one.updates.empty() || is_fp32(gradient)) return -1;
  const Operand& made = one.results[0].operands[0];
  const bool same = operand(one, 0) == gradient && made.geometry.sizes == gradient.geometry.sizes &&
                    made.geometry.strides == gradient.geometry.strides && made.geometry.offset == 0;
  return same && is_fp32(made) ? reader : -1;
}

bool Layouts::convolution_backward(int at) {
  const Instruction& one = program_.instructions[at];
  const Operand &gradient = operand(one, 0), &input = operand(one, 1), &weight = operand(one, 2);
  auto shape = shape_of(one, 4, input, weight, gradient);
  if (!shape || !one.updates.empty()) return false;
  const Operand& to_input = one.results[0].operands[0];
  std::optional<LayerPass> data;
  if (to_input.value >= 0) {
    if (prefers_product(*shape)) data = product_backward_data(*shape);
    if (!data) data = onednn::convolution_backward_data(*shape);
    if (!data || !is_image(to_input) || !whole(to_input)) return false;
  }
  const bool weights = one.results[1].operands[0].value >= 0;
  if (!(weights ? weight_gradient(one, *shape) : data && one.results[2].operands[0].value < 0)) return false;
  if (!data) return true;
  need_plain(weight.value);
  const Operand plain = packed(weight, weight_desc(weight, *shape), data->weight);
  emit("convolution", data->kernel, {channels_last_of(gradient), plain}, {made_channels_last(to_input)});
  ++report_.convolutions;
  return true;
}

bool Layouts::weight_gradient(const Instruction& one, Convolution shape) {
  Operand to_weight = one.results[1].operands[0];
  const Operand& to_bias = one.results[2].operands[0];
  const int widening = widening_of(to_weight);
  if (widening >= 0) to_weight = program_.instructions[widening].results[0].operands[0];
  shape.wide = widening >= 0;
  shape.bias = to_bias.value >= 0;
  if (!is_dense(to_weight) || to_weight.geometry.offset != 0 || (shape.bias && !is_vector(to_bias, shape.output[1])))
    return false;
  auto pass = prefers_product(shape) ? product_backward_weight(shape) : std::nullopt;
  if (!pass) pass = convolution_backward_weight(shape);
  if (!pass) return false;
  const Desc wanted = weight_desc(to_weight, shape);
  const bool direct = wanted == pass->weight;
  const Operand made = direct ? to_weight : opaque(pass->weight.get_size(), to_weight.geometry);
  std::vector<Operand> results{made};
  if (shape.bias) results.push_back(to_bias);
  emit("convolution", pass->kernel, {channels_last_of(operand(one, 0)), channels_last_of(operand(one, 1))}, results);
  if (!direct) emit("reorder", make_reorder(pass->weight, wanted, "unpack weight's gradient"), {made}, {to_weight});
  for (const Operand& done : {to_weight, to_bias}) {
    if (done.value >= 0) there_[done.value] = true;
  }
  if (widening >= 0) taken_[widening] = true;
  report_.fused += widening >= 0;
  ++report_.convolutions;
  return true;
}

}  // namespace bellows::compile_detail::onednn
