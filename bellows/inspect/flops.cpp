#include "bellows/inspect/flops.h"

#include <ATen/core/Tensor.h>

#include <atomic>
#include <map>

#include "bellows/core/mutex.h"

namespace bellows::inspect {

namespace {

using Values = c10::ArrayRef<c10::IValue>;
using Sizes = c10::IntArrayRef;

Sizes sizes_of(const c10::IValue& value) {
  return value.toTensor().sizes();
}

int64_t product(Sizes sizes) {
  int64_t result = 1;
  for (int64_t size : sizes) result *= size;
  return result;
}

/// a [*, m, k] · b [*, k, n], or b [k]
int64_t matmul_flops(Sizes a, Sizes b) {
  return 2 * product(a) * (b.size() < 2 ? 1 : b.back());
}

template <int A, int B>
int64_t product_of_arguments(Values in, Values) {
  return matmul_flops(sizes_of(in[A]), sizes_of(in[B]));
}

/// Weights are stored as [n, k], as in linear layers. n is taken from the result, because the weight may be packed.
int64_t linear_flops(Values in, Values out) {
  return 2 * product(sizes_of(out[0])) * sizes_of(in[0]).back();
}

/// Params: point – spatial sizes at which the filter is applied: those of the result, or of the input if transposed
int64_t convolution_flops(int64_t batch, Sizes weight, Sizes point) {
  return 2 * batch * product(weight) * product(point);
}

int64_t convolution(Values in, Values out) {
  const bool transposed = in[6].toBool();
  return convolution_flops(sizes_of(in[0])[0], sizes_of(in[1]), sizes_of(transposed ? in[0] : out[0]).slice(2));
}

/// Operators without a `transposed` argument.
int64_t plain_convolution(Values in, Values out) {
  return convolution_flops(sizes_of(in[0])[0], sizes_of(in[1]), sizes_of(out[0]).slice(2));
}

/// arguments: grad_output, input, weight, bias_sizes, stride, padding, dilation, transposed, output_padding, groups,
/// output_mask
int64_t convolution_backward(Values in, Values) {
  const Sizes grad = sizes_of(in[0]), input = sizes_of(in[1]), weight = sizes_of(in[2]);
  const bool transposed = in[7].toBool();
  const auto mask = in[10].toBoolList();
  int64_t flops = 0;
  if (mask[0]) flops += convolution_flops(grad[0], weight, (transposed ? input : grad).slice(2));
  if (mask[1])
    flops +=
        2 * grad[0] * grad[1] * input[1] * product((transposed ? input : grad).slice(2)) * product(weight.slice(2));
  return flops;
}

/// query [B, H, S, D], key [B, H, T, D], value [B, H, T, V]
int64_t attention_flops(Sizes query, Sizes key, Sizes value) {
  const int64_t scores = query[0] * query[1] * query[2] * key[2];
  return 2 * scores * (query[3] + value[3]);
}

int64_t attention(Values in, Values) {
  return attention_flops(sizes_of(in[0]), sizes_of(in[1]), sizes_of(in[2]));
}

/// Recomputes the logits; then the gradients of the logits, of value, query and key.
int64_t attention_backward(Values in, Values) {
  const Sizes query = sizes_of(in[1]), key = sizes_of(in[2]), value = sizes_of(in[3]);
  const int64_t scores = query[0] * query[1] * query[2] * key[2];
  return 2 * scores * (3 * query[3] + 2 * value[3]);
}

std::map<std::string, FlopFormula, std::less<>> initial_formulas() {
  std::map<std::string, FlopFormula, std::less<>> formulas = {
      {"aten::mm", product_of_arguments<0, 1>},
      {"aten::addmm", product_of_arguments<1, 2>},
      {"aten::_addmm_activation", product_of_arguments<1, 2>},
      {"aten::bmm", product_of_arguments<0, 1>},
      {"aten::baddbmm", product_of_arguments<1, 2>},
      {"aten::addbmm", product_of_arguments<1, 2>},
      {"aten::mv", product_of_arguments<0, 1>},
      {"aten::addmv", product_of_arguments<1, 2>},
      {"aten::dot", product_of_arguments<0, 1>},
      {"aten::_scaled_mm", product_of_arguments<0, 1>},
      {"aten::mkldnn_linear", linear_flops},
      {"mkldnn::_linear_pointwise", linear_flops},
      {"mkl::_mkl_linear", linear_flops},
      {"aten::_weight_int8pack_mm", linear_flops},
      {"aten::_weight_int4pack_mm_for_cpu", linear_flops},
      {"aten::_slow_conv2d_forward", plain_convolution},
      {"aten::cudnn_convolution", plain_convolution},
      {"aten::mkldnn_convolution", plain_convolution},
      {"aten::convolution_backward", convolution_backward},
  };
  for (const char* name : {"aten::convolution", "aten::_convolution", "aten::convolution_overrideable"})
    formulas[name] = convolution;
  for (const char* kind : {"flash_attention", "efficient_attention", "cudnn_attention", "flash_attention_for_cpu"}) {
    const std::string name = std::string("aten::_scaled_dot_product_") + kind;
    formulas[name] = attention;
    formulas[name + "_backward"] = attention_backward;
  }
  return formulas;
}

struct FlopTable {
  Mutex mutex;
  std::map<std::string, FlopFormula, std::less<>> formulas BELLOWS_GUARDED_BY(mutex) = initial_formulas();
  std::atomic<int64_t> version = 1;
};

FlopTable& flop_table() {
  static FlopTable& table = *new FlopTable;
  return table;
}

}  // namespace

FlopFormula flop_formula(std::string_view op) {
  FlopTable& table = flop_table();
  MutexLock lock(table.mutex);
  const auto found = table.formulas.find(op);
  return found == table.formulas.end() ? nullptr : found->second;
}

void register_flop_formula(std::string op, FlopFormula formula) {
  FlopTable& table = flop_table();
  MutexLock lock(table.mutex);
  table.formulas[std::move(op)] = formula;
  ++table.version;
}

int64_t flop_formula_version() {
  return flop_table().version;
}

}  // namespace bellows::inspect
