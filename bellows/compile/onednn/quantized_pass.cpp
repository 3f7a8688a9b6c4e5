#include "bellows/compile/onednn/layouts_impl.h"
#include "bellows/graph/program/program_edit.h"

// Layers of quantized models (quant/operators.h). Operations behind a layer become part of its primitive, including the
// quantization for the next layer, so that activations stay 8-bit integers between layers.
namespace bellows::compile_detail::onednn {
namespace {

using graph::detail::is_row_major;

// Arguments of bellows::quantized_linear and bellows::quantized_convolution.
enum Argument : size_t { input, input_scale, zero_point, weight, weight_scale, bias, stride };

bool is_scalar(const Operand& operand) {
  return operand.value >= 0 && operand.geometry.sizes.empty() && operand.geometry.offset == 0;
}

}  // namespace

/// A quantized layer of the program and what becomes part of it.
struct Layouts::QuantizedCall {
  Operand input, input_scale, input_zero_point, weight, weight_scale, bias;
  Operand output_scale, output_zero_point;
  Integers integers;
  Epilogue epilogue;
  bool image = false;
  /// Max pooling between the layer and the quantization, and the quantization; -1 if there is none.
  int pooling = -1, quantization = -1;
  KernelPointer pool;
};

bool Layouts::is_zero(const Operand& scalar) const {
  const auto found = constants_.find(scalar.value);
  return found != constants_.end() && *static_cast<const int32_t*>(found->second.storage().data()) == 0;
}

std::optional<Layouts::QuantizedCall> Layouts::quantized_call(int at) const {
  const Instruction& one = program_.instructions[at];
  QuantizedCall call{.input = operand(one, Argument::input),
                     .input_scale = operand(one, Argument::input_scale),
                     .input_zero_point = operand(one, Argument::zero_point),
                     .weight = operand(one, Argument::weight),
                     .weight_scale = operand(one, Argument::weight_scale),
                     .bias = operand(one, Argument::bias),
                     .epilogue = {.result = one.results[0].operands[0]}};
  const auto known = [&](const Operand& tensor) { return constants_.contains(tensor.value); };
  const int64_t outputs = call.weight.geometry.sizes.at(0);
  if (!one.updates.empty() || !known(call.weight) || !known(call.weight_scale) || !known(call.input_zero_point) ||
      !whole(call.epilogue.result) || !is_fp32_vector(call.weight_scale, outputs) || !is_scalar(call.input_scale) ||
      !is_scalar(call.input_zero_point) || !is_row_major(call.weight.geometry) || count_of(call.input.geometry) == 0)
    return {};
  if (call.bias.value >= 0 && !is_fp32_vector(call.bias, outputs)) return {};
  call.integers.input = data_type(call.input.geometry);
  call.integers.input_zero_point = !is_zero(call.input_zero_point);
  return call;
}

/// Takes an addition of one number per output channel as the bias.
bool Layouts::take_bias(QuantizedCall& call, const Instruction& one, int at) const {
  if (call.image || call.bias.value >= 0 || !call.epilogue.post.empty() || one.op->name != "aten::add.Tensor" ||
      one.arguments[2].constant != c10::IValue(1))
    return false;
  const Operand& vector = operand(one, 1);
  if (!sees_all(operand(one, 0), call.epilogue.result) || vector.value < 0 || maker_[vector.value] >= at ||
      !is_fp32_vector(vector, call.weight.geometry.sizes[0]))
    return false;
  call.bias = vector;
  return true;
}

/// Takes the quantization for the next layer.
bool Layouts::take_quantization(QuantizedCall& call, const Instruction& one) const {
  if (one.op->name != "bellows::quantize") return false;
  const Operand &scale = operand(one, 1), &zero = operand(one, 2);
  if (!is_scalar(scale) || !is_scalar(zero) || !constants_.contains(scale.value) || !constants_.contains(zero.value))
    return false;
  call.output_scale = scale;
  call.output_zero_point = zero;
  call.integers.output = data_type(one.results[0].operands[0].geometry);
  call.integers.output_zero_point = !is_zero(zero);
  return true;
}

/// Takes an addition of 8-bit values: a dequantization that only the addition reads.
bool Layouts::take_integer_addition(QuantizedCall& call, const Instruction& one, int at) const {
  if (!call.image || !call.epilogue.added.empty() || one.op->name != "aten::add.Tensor" ||
      one.arguments[2].constant != c10::IValue(1))
    return false;
  const bool first = operand(one, 0) == call.epilogue.result, second = operand(one, 1) == call.epilogue.result;
  const Operand& other = operand(one, first ? 1 : 0);
  const int maker = first == second || other.value < 0 ? -1 : maker_[other.value];
  if (maker < at || taken_[maker] || sole_reader(other.value) < 0) return false;
  const Instruction& made = program_.instructions[maker];
  if (!made.op || made.op->name != "bellows::dequantize" || !(made.results[0].operands[0] == other)) return false;
  const Operand &values = operand(made, 0), &scale = operand(made, 1), &zero_point = operand(made, 2);
  if (!is_image(values) || values.geometry.sizes != call.epilogue.result.geometry.sizes ||
      is_floating(data_type(values.geometry)) || maker_[values.value] >= at || !is_scalar(scale) ||
      !constants_.contains(scale.value) || !is_scalar(zero_point) || !is_zero(zero_point))
    return false;
  call.integers.added = data_type(values.geometry);
  call.integers.added_scale = *static_cast<const float*>(constants_.at(scale.value).storage().data());
  call.epilogue.post.push_back({PostOp::Kind::add});
  call.epilogue.added.push_back(values);
  call.epilogue.taken.push_back(maker);
  return true;
}

/// Takes an addition of fp32 values. It cannot follow an addition of 8-bit values, because all added tensors of a primitive
/// have the same type here.
bool Layouts::take_float_addition(QuantizedCall& call, const Instruction& one, int at, int reader) {
  if (call.integers.added != memory::data_type::undef) return false;
  return call.image ? take_addition(call.epilogue, one, at, reader) : take_row_addition(call.epilogue, one, at);
}

/// Takes the quantization behind a max pooling. Rounding is monotone, so the maximum of the integers is the integer of the
/// maximum.
bool Layouts::take_pooling(QuantizedCall& call, int reader) const {
  const Instruction& one = program_.instructions[reader];
  if (!call.image || !one.op || one.kernel || one.op->name != "aten::max_pool2d_with_indices" || !all_constant(one) ||
      !one.updates.empty() || !(operand(one, 0) == call.epilogue.result))
    return false;
  // NaN is not the largest integer.
  if (!call.epilogue.added.empty() && call.integers.added == memory::data_type::undef) return false;
  const Operand &pooled = one.results[0].operands[0], &places = one.results[1].operands[0];
  const int quantization = is_unread(places.value) ? sole_reader(pooled.value) : -1;
  if (quantization < 0 || taken_[quantization]) return false;
  const Instruction& next = program_.instructions[quantization];
  auto shape = pooling_of(one, 1, call.epilogue.result, pooled);
  if (!shape || !next.op || next.kernel || next.state != one.state || !owned(next) || !(operand(next, 0) == pooled))
    return false;
  shape->dilation = pair_of(one.arguments[4]);
  shape->type = data_type(next.results[0].operands[0].geometry);
  const auto pass = pooling_forward(*shape, /*training=*/false);
  if (!pass || !take_quantization(call, next)) return false;
  call.pooling = reader;
  call.quantization = quantization;
  call.pool = pass->kernel;
  call.epilogue.result.geometry.dtype = next.results[0].operands[0].geometry.dtype;
  return true;
}

/// Returns the new value between the layer and the max pooling.
Operand Layouts::put_before_pooling(const QuantizedCall& call) {
  const Operand made = temporary(channels_last_geometry(call.epilogue.result.geometry));
  integer_pools_[call.pooling] = {made, call.quantization, call.pool};
  taken_[call.quantization] = true;
  ++report_.fused;
  return made;
}

bool Layouts::integer_pool(int at) {
  const auto found = integer_pools_.find(at);
  if (found == integer_pools_.end()) return false;
  const Operand& result = program_.instructions[found->second.quantization].results[0].operands[0];
  emit("pooling", found->second.kernel, {found->second.input}, {made_channels_last(result)});
  ++report_.pools;
  return true;
}

void Layouts::extend(QuantizedCall& call, int at) {
  const auto same = [&](const Operand& seen) {
    return call.image ? seen == call.epilogue.result : sees_all(seen, call.epilogue.result);
  };
  while (call.epilogue.post.size() < 3 && !call.integers.quantizes_output()) {
    const int reader = sole_reader(call.epilogue.result.value);
    if (reader < 0 || taken_[reader]) break;
    if (take_pooling(call, reader)) break;
    const Instruction& one = program_.instructions[reader];
    if (!one.op || one.kernel || one.state != program_.instructions[at].state || !all_constant(one) ||
        !one.op->writes.empty() || one.results.size() != 1 || one.results[0].list || !one.updates.empty())
      break;
    const Operand& result = one.results[0].operands[0];
    if (call.image ? !owned(one) : !whole(result) || !is_dense_rows(result.geometry)) break;
    if (count_of(result.geometry) != count_of(call.epilogue.result.geometry)) break;
    const auto activation = post_op_of(one);
    if (activation && same(operand(one, 0))) {
      call.epilogue.post.push_back(*activation);
    } else if (!(same(operand(one, 0)) && take_quantization(call, one)) && !take_bias(call, one, at) &&
               !take_integer_addition(call, one, at) && !take_float_addition(call, one, at, reader)) {
      break;
    }
    call.epilogue.result = result;
    call.epilogue.taken.push_back(reader);
  }
}

void Layouts::put_quantized(const QuantizedCall& call, const KernelPointer& kernel, const Operand& weight) {
  const auto place = [&](const Operand& image) { return call.image ? channels_last_of(image) : image; };
  for (const Operand* read : {&call.bias, &call.weight_scale, &call.input_scale}) need_plain(read->value);
  if (!call.image) {
    need_plain(call.input.value);
    for (const Operand& added : call.epilogue.added) need_plain(added.value);
  }
  std::vector<Operand> operands{place(call.input), weight, call.input_scale, call.weight_scale};
  if (call.integers.input_zero_point) operands.push_back(call.input_zero_point);
  if (call.bias.value >= 0) operands.push_back(call.bias);
  if (call.integers.quantizes_output()) operands.push_back(call.output_scale);
  if (call.integers.output_zero_point) operands.push_back(call.output_zero_point);
  for (const Operand& added : call.epilogue.added) operands.push_back(place(added));
  Operand result = call.epilogue.result;
  if (call.pooling >= 0)
    result = put_before_pooling(call);
  else if (call.image)
    result = made_channels_last(result);
  else
    there_[result.value] = true;
  emit(call.image ? "convolution" : "linear", kernel, operands, {result});
  take(call.epilogue);
  ++(call.image ? report_.convolutions : report_.linears);
  ++report_.quantized;
}

/// Emits the layer with what follows it or, if oneDNN has no fast primitive for this, on its own.
bool Layouts::put_with_epilogue(const QuantizedCall& call, int at, const Desc& plain, const MakesPass& pass_of) {
  QuantizedCall extended = call;
  extend(extended, at);
  for (const QuantizedCall* const tried : std::initializer_list<const QuantizedCall*>{&extended, &call}) {
    const auto pass = pass_of(*tried);
    if (!pass) continue;
    need_plain(tried->weight.value);
    put_quantized(*tried, pass->kernel, packed(tried->weight, plain, pass->weight));
    return true;
  }
  return false;
}

bool Layouts::integer_linear_with(const QuantizedCall& call, int at, Linear shape) {
  // With more rows, oneDNN scales the integers in another order.
  if (batch_invariant_ || !prefers_integer_linear(shape)) return false;
  QuantizedCall extended = call;
  extend(extended, at);
  shape.bias = extended.bias.value >= 0;
  const PackingLinear made = integer_linear(shape, extended.integers, extended.epilogue.post);
  need_plain(extended.weight.value);
  put_quantized(extended, made.forward, packed_by(made.pack, extended.weight, made.packed_bytes));
  return true;
}

bool Layouts::quantized_linear(int at) {
  auto call = quantized_call(at);
  if (!call || call->weight.geometry.sizes.size() != 2 || !is_row_major(call->input.geometry) ||
      !is_row_major(call->epilogue.result.geometry))
    return false;
  const int64_t inner = call->weight.geometry.sizes[1], columns = call->weight.geometry.sizes[0];
  const Linear shape{
      .rows = count_of(call->input.geometry) / inner, .inner = inner, .columns = columns, .row_stride = inner};
  if (integer_linear_with(*call, at, shape)) return true;
  const Desc plain({inner, columns}, memory::data_type::s8, memory::dims{1, inner});
  return put_with_epilogue(*call, at, plain, [&](const QuantizedCall& tried) {
    Linear with_bias = shape;
    with_bias.bias = tried.bias.value >= 0;
    return quantized_linear_forward(with_bias, tried.integers, tried.epilogue.post);
  });
}

bool Layouts::quantized_convolution(int at) {
  auto call = quantized_call(at);
  const Instruction& one = program_.instructions[at];
  if (!call || !is_image(call->input) || !is_image(call->epilogue.result)) return false;
  call->image = true;
  const auto& sizes = call->weight.geometry.sizes;
  Convolution shape{.input = dims_of(call->input.geometry.sizes),
                    .weight = dims_of(sizes),
                    .output = dims_of(call->epilogue.result.geometry.sizes),
                    .stride = pair_of(one.arguments[Argument::stride]),
                    .padding = pair_of(one.arguments[Argument::stride + 1], 0),
                    .dilation = pair_of(one.arguments[Argument::stride + 2]),
                    .type = memory::data_type::s8};
  const int64_t groups = one.arguments[Argument::stride + 3].constant.toInt();
  if (groups > 1) {
    shape.weight[0] /= groups;
    shape.weight.insert(shape.weight.begin(), groups);
  }
  const Desc plain(shape.weight, memory::data_type::s8,
                   groups > 1 ? memory::format_tag::goihw : memory::format_tag::oihw);
  return put_with_epilogue(*call, at, plain, [&](const QuantizedCall& tried) {
    shape.bias = tried.bias.value >= 0;
    return quantized_convolution_forward(shape, tried.integers, tried.epilogue.post);
  });
}

}  // namespace bellows::compile_detail::onednn
