#include "bellows/compile/onednn/layouts_impl.h"

namespace bellows::compile_detail::onednn {

bool is_fp32_vector(const Operand& operand, int64_t size) {
  const Geometry& geometry = operand.geometry;
  return data_type(geometry) == memory::data_type::f32 && geometry.sizes.size() == 1 && geometry.sizes[0] == size &&
         geometry.strides[0] == 1 && geometry.offset == 0;
}
/// True for batch norm as written by the pass "evaluation".
bool is_evaluation(const Instruction& one) {
  return one.op->name == "aten::_native_batch_norm_legit_no_training";
}

bool Layouts::batch_norm(int at) {
  const Instruction& one = program_.instructions[at];
  const Operand &x = operand(one, 0), &y = one.results[0].operands[0];
  if (!is_image(x) || !is_image(y)) return false;
  const bool training = !is_evaluation(one);
  if (training && !one.arguments[5].constant.toBool()) return false;
  const BatchNorm shape{.sizes = dims_of(x.geometry.sizes),
                        .type = data_type(x.geometry),
                        .eps = one.arguments[training ? 7 : 6].constant.toDouble(),
                        .momentum = one.arguments[training ? 6 : 5].constant.toDouble(),
                        .affine = defined(one, 1),
                        .tracked = defined(one, 3)};
  std::vector<Operand> operands;
  operands.reserve(5);
  for (const size_t i : {1, 2, 3, 4}) {
    const bool expected = i < 3 ? shape.affine : shape.tracked;
    if (defined(one, i) != expected || (expected && !is_fp32_vector(operand(one, i), shape.sizes[1]))) return false;
    if (expected) operands.push_back(operand(one, i));
  }
  const Operand &mean = one.results[1].operands[0], &invstd = one.results[2].operands[0];
  const bool fits = training ? mean.value >= 0 && is_fp32_vector(mean, shape.sizes[1]) &&
                                   is_fp32_vector(invstd, shape.sizes[1]) &&
                                   shape.sizes[0] * shape.sizes[2] * shape.sizes[3] > 1
                             : shape.tracked && is_unread(mean.value) && is_unread(invstd.value) && one.updates.empty();
  if (!fits) return false;
  for (const Operand& vector : operands) need_plain(vector.value);
  return training ? norm_training(at, shape, std::move(operands)) : norm_inference(at, shape, std::move(operands));
}

bool Layouts::norm_inference(int at, const BatchNorm& shape, std::vector<Operand> operands) {
  const Instruction& one = program_.instructions[at];
  const KernelPointer kernel = batch_norm_inference(shape);
  if (!kernel) return false;
  operands.insert(operands.begin(), channels_last_of(operand(one, 0)));
  emit("batch_norm", kernel, operands, {made_channels_last(one.results[0].operands[0])});
  ++report_.norms;
  return true;
}

/// Includes the ReLU after the norm if nothing else reads the norm's result.
bool Layouts::norm_training(int at, BatchNorm shape, std::vector<Operand> operands) {
  const Instruction& one = program_.instructions[at];
  const Operand &mean = one.results[1].operands[0], &invstd = one.results[2].operands[0];
  const int relu = relu_behind(at);
  shape.relu = relu >= 0;
  const Operand& y = (shape.relu ? program_.instructions[relu] : one).results[0].operands[0];
  operands.insert(operands.begin(), channels_last_of(operand(one, 0)));
  std::vector<Operand> results{made_channels_last(y), mean, invstd};
  if (shape.relu) {
    results.push_back(opaque(shape.sizes[1] * sizeof(float), mean.geometry));
    norms_with_relu_[y.value] = {.kept = results.back(), .mean = mean.value};
    taken_[relu] = true;
    ++report_.fused;
  }
  there_[mean.value] = there_[invstd.value] = true;
  for (const auto& update : one.updates) there_[update.after] = true;
  emit("batch_norm", batch_norm_training(shape), operands, results, one.updates);
  ++report_.norms;
  return true;
}

/// Returns: the index of the ReLU that is the only reader of a result, or -1
int Layouts::relu_behind(int at) const {
  const Instruction& one = program_.instructions[at];
  const Operand& y = one.results[0].operands[0];
  const int reader = sole_reader(y.value);
  if (reader < 0 || taken_[reader]) return -1;
  const Instruction& next = program_.instructions[reader];
  const bool is_relu = next.op && !next.kernel && next.op->name == "aten::relu" && next.op->writes.empty();
  return is_relu && next.state == one.state && owned(next) && operand(next, 0) == y ? reader : -1;
}

/// Fuses ReLU's gradient with the gradient of the preceding norm, which moves forward to this position.
bool Layouts::relu_backward(int at) {
  const Instruction& one = program_.instructions[at];
  const Operand &gradient = operand(one, 0), &made = one.results[0].operands[0];
  const auto kept = norms_with_relu_.find(operand(one, 1).value);
  const int reader = sole_reader(made.value);
  if (kept == norms_with_relu_.end() || reader < 0 || taken_[reader] || !one.updates.empty()) return follow(at);
  const Instruction& norm = program_.instructions[reader];
  const bool fits = norm.op && !norm.kernel && norm.op->name == "aten::native_batch_norm_backward" &&
                    norm.state == one.state && all_constant(norm) && operand(norm, 0) == made && is_image(made) &&
                    (is_image(gradient) || part_of_twin(gradient)) && gradient.geometry.sizes == made.geometry.sizes &&
                    gradient.geometry.dtype == made.geometry.dtype && one.arguments[2].constant.toScalar().equal(0) &&
                    kept->second.mean == operand(norm, 5).value;
  for (const size_t i : {1, 2, 5, 6}) {
    if (fits && defined(norm, i) && maker_[operand(norm, i).value] >= at) return follow(at);
  }
  if (!fits || !norm_backward(norm, gradient, &kept->second.kept)) return follow(at);
  taken_[reader] = true;
  ++report_.fused;
  return true;
}

bool Layouts::batch_norm_backward(int at) {
  const Instruction& one = program_.instructions[at];
  return is_image(operand(one, 0)) && norm_backward(one, operand(one, 0), nullptr);
}

/// Params: gradient – of the norm's result, or of its ReLU's result
///         kept     – what forward kept for the ReLU's gradient; nullptr if there is no ReLU
bool Layouts::norm_backward(const Instruction& one, const Operand& gradient, const Operand* kept) {
  const Operand &x = operand(one, 1), &weight = operand(one, 2), &mean = operand(one, 5), &invstd = operand(one, 6);
  if (!is_image(x) || !one.arguments[7].constant.toBool() || !one.updates.empty()) return false;
  const BatchNorm shape{.sizes = dims_of(x.geometry.sizes),
                        .type = data_type(x.geometry),
                        .eps = one.arguments[8].constant.toDouble(),
                        .affine = weight.value >= 0,
                        .relu = kept != nullptr};
  const auto vector = [&](const Operand& operand) { return is_fp32_vector(operand, shape.sizes[1]); };
  const Operand& to_x = one.results[0].operands[0];
  bool fits = is_image(to_x) && gradient.geometry.dtype == x.geometry.dtype && vector(mean) && vector(invstd) &&
              (!shape.affine || vector(weight));
  for (const size_t i : {1, 2}) {
    const Operand& made = one.results[i].operands[0];
    fits = fits && (shape.affine ? made.value >= 0 && vector(made) : made.value < 0);
  }
  if (!fits) return false;
  std::vector<Operand> operands{channels_last_of(gradient), channels_last_of(x)};
  for (const Operand* channel : {&weight, &mean, &invstd}) {
    if (channel->value < 0) continue;
    need_plain(channel->value);
    operands.push_back(*channel);
  }
  if (kept) operands.push_back(*kept);
  std::vector<Operand> results{made_channels_last(to_x)};
  for (const size_t i : {1, 2}) {
    if (!shape.affine) continue;
    results.push_back(one.results[i].operands[0]);
    there_[results.back().value] = true;
  }
  emit("batch_norm", onednn::batch_norm_backward(shape), operands, results);
  ++report_.norms;
  return true;
}

}  // namespace bellows::compile_detail::onednn
