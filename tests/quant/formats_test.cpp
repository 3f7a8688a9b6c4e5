// Files of quantized layers, compared with files that other projects wrote.
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "bellows/quant/formats/awq.h"
#include "bellows/quant/formats/compressed_tensors.h"
#include "bellows/quant/formats/config.h"
#include "bellows/quant/formats/gptq.h"
#include "tests/support/errors.h"
#include "tests/support/golden.h"

namespace bellows::quant {

namespace {

using testing::HasSubstr;

/// Layers that the original packages wrote.
const Golden& layers() {
  static const Golden golden("quant/formats.safetensors");
  return golden;
}

NamedTensors file_of(const std::string& layer, const std::vector<std::string>& names) {
  NamedTensors tensors;
  for (const std::string& name : names) tensors.emplace_back(name, layers()(layer + ".file." + name));
  return tensors;
}

QuantizationConfig config_of(const std::string& layer) {
  const at::Tensor bytes = layers()(layer + ".config");
  const auto* const text = reinterpret_cast<const char*>(bytes.const_data_ptr<uint8_t>());
  return parse_quantization_config({text, static_cast<size_t>(bytes.numel())});
}

const at::Tensor& tensor_of(const NamedTensors& tensors, const std::string& name) {
  for (const auto& [key, tensor] : tensors) {
    if (key == name) return tensor;
  }
  static const at::Tensor none;
  return none;
}

NamedTensors replaced(NamedTensors tensors, const std::string& name, const at::Tensor& tensor) {
  for (auto& [key, value] : tensors) {
    if (key == name) value = tensor;
  }
  return tensors;
}

NamedTensors without(const NamedTensors& tensors, const std::string& name) {
  NamedTensors rest;
  for (const auto& one : tensors) {
    if (one.first != name) rest.push_back(one);
  }
  return rest;
}

/// Expects the same names, dtypes and bytes, in any order.
void expect_equal(const NamedTensors& ours, const NamedTensors& expected, const std::string& context) {
  EXPECT_EQ(ours.size(), expected.size()) << context;
  for (const auto& [name, tensor] : expected) {
    const at::Tensor& found = tensor_of(ours, name);
    ASSERT_TRUE(found.defined()) << context << ": " << name;
    EXPECT_EQ(found.scalar_type(), tensor.scalar_type()) << context << ": " << name;
    EXPECT_TRUE(found.is_contiguous()) << context << ": " << name;
    EXPECT_TRUE(found.to(at::kFloat).equal(tensor.to(at::kFloat))) << context << ": " << name;
    if (tensor.scalar_type() != at::kInt) continue;  // fp32 has too few digits to compare words
    EXPECT_TRUE(found.equal(tensor)) << context << ": " << name;
  }
}

/// The weight that the integers of a golden layer of GPTQ or AWQ stand for.
at::Tensor expected_weight(const std::string& layer) {
  const Golden& golden = layers();
  const at::Tensor index = golden(layer + ".index");
  const at::Tensor scale = golden(layer + ".scale").index_select(1, index);
  return (golden(layer + ".values").to(at::kInt) - golden(layer + ".zero_point").index_select(1, index)) * scale;
}

QuantizedTensor random_weight(int64_t out, int64_t in, const Scheme& scheme) {
  at::manual_seed(1);
  QuantizedTensor weight = quantize(torch::randn({out, in}), scheme);
  // Scales that fp16 represents
  weight.parameters.scale = weight.parameters.scale.to(at::kHalf).to(at::kFloat);
  return weight;
}

Scheme affine_groups(int bits, int64_t group_size, bool is_signed = false) {
  return {.bits = bits, .is_signed = is_signed, .granularity = Granularity::group, .group_size = group_size};
}

/// An order in which the groups of neighbors in `weight` belong to inputs that are not neighbors.
QuantizedLinear shuffled(const QuantizedTensor& weight) {
  const int64_t groups = weight.values.size(1) / weight.scheme.group_size;
  const at::Tensor order = torch::arange(weight.values.size(1)).view({-1, groups}).t().reshape({-1}).contiguous();
  return {.weight = weight, .input_order = order};
}

using Write = std::function<NamedTensors(const QuantizedLinear&)>;
using Read = std::function<QuantizedLinear(const NamedTensors&, const Scheme&)>;

void expect_round_trip(const QuantizedLinear& layer, const Write& write, const Read& read, const std::string& format) {
  const std::string context = format + ", " + layer.weight.scheme.to_text();
  const QuantizedLinear back = read(write(layer), layer.weight.scheme);
  EXPECT_TRUE(back.dequantize().equal(layer.dequantize())) << context;
  EXPECT_TRUE(back.weight.parameters.scale.equal(layer.weight.parameters.scale)) << context;
  EXPECT_EQ(back.input_order.defined(), layer.input_order.defined()) << context;
  if (!layer.input_order.defined()) return;
  EXPECT_TRUE(back.input_order.equal(layer.input_order)) << context;
}

const Write write_v1 = [](const QuantizedLinear& layer) { return to_gptq(layer, 1); };
const Write write_v2 = [](const QuantizedLinear& layer) { return to_gptq(layer, 2); };
const Read read_v1 = [](const NamedTensors& tensors, const Scheme& scheme) { return from_gptq(tensors, scheme, 1); };
const Read read_v2 = [](const NamedTensors& tensors, const Scheme& scheme) { return from_gptq(tensors, scheme, 2); };
const Write write_packed = [](const QuantizedLinear& layer) { return to_pack_quantized(layer); };
const Write write_bytes = [](const QuantizedLinear& layer) { return to_int_quantized(layer); };

}  // namespace

TEST(GptqFormat, FilesAreThoseOfAutoGptq) {
  for (const std::string layer : {"gptq2", "gptq3", "gptq4", "gptq8"}) {
    const NamedTensors file = file_of(layer, {"qweight", "qzeros", "scales", "g_idx"});
    const QuantizationConfig config = config_of(layer);
    EXPECT_EQ(config.format, WeightFormat::gptq);
    const QuantizedLinear ours = from_gptq(file, config.weights);
    EXPECT_TRUE(ours.dequantize().equal(expected_weight(layer))) << layer;
    EXPECT_EQ(ours.input_order.defined(), config.activation_order) << layer;
    EXPECT_EQ(ours.weight.scheme, config.weights) << layer;
    expect_equal(to_gptq(ours), file, layer);
  }
}

TEST(GptqFormat, KeepsLayers) {
  for (const int bits : {2, 3, 4, 8}) {
    for (const auto& [write, read] : {std::pair{write_v1, read_v1}, std::pair{write_v2, read_v2}}) {
      for (const Scheme& scheme :
           {group_scheme(bits, 16), affine_groups(bits, 32), affine_groups(bits, 32, true), weight_scheme(bits)}) {
        expect_round_trip({random_weight(32, 96, scheme)}, write, read, "GPTQ");
      }
      expect_round_trip(shuffled(random_weight(64, 64, affine_groups(bits, 8))), write, read, "GPTQ");
    }
  }
  const QuantizedTensor whole = random_weight(32, 32, {.bits = 4});
  EXPECT_TRUE(from_gptq(to_gptq({whole}), {.bits = 4, .granularity = Granularity::channel})
                  .dequantize()
                  .equal(whole.dequantize()));
}

TEST(GptqFormat, VersionsDifferInZeroPoints) {
  QuantizedTensor weight = random_weight(8, 8, affine_groups(4, 8));
  weight.parameters.zero_point = torch::tensor({0, 1, 2, 3, 4, 5, 6, 15}, at::kInt).view({8, 1});
  const auto zeros = [&](int version) { return tensor_of(to_gptq({weight}, version), "qzeros").item<int64_t>(); };
  EXPECT_EQ(zeros(1) & 0xffffffff, 0xe543210f);
  EXPECT_EQ(zeros(2) & 0xffffffff, 0xf6543210);
}

TEST(GptqFormat, ReadsFilesWithoutAGroupIndex) {
  const QuantizedTensor weight = random_weight(8, 16, affine_groups(4, 8));
  EXPECT_TRUE(from_gptq(without(to_gptq({weight}), "g_idx"), weight.scheme).dequantize().equal(weight.dequantize()));
}

TEST(GptqFormat, RejectsDamagedFiles) {
  const Scheme scheme = affine_groups(4, 16);
  const NamedTensors file = to_gptq({random_weight(16, 64, scheme)});
  const auto error_with = [&](const NamedTensors& tensors, const Scheme& used, int version = 1) {
    return message_of([&] { from_gptq(tensors, used, version); });
  };
  const auto error_of = [&](const char* name, const at::Tensor& tensor) {
    return error_with(replaced(file, name, tensor), scheme);
  };
  EXPECT_THAT(error_with({}, scheme), HasSubstr("a tensor \"qweight\" of shape [*, *], found only: no tensors"));
  EXPECT_THAT(error_with(without(file, "scales"), scheme),
              HasSubstr("a tensor \"scales\" of shape [4, 16], found only: qweight, qzeros, g_idx"));
  EXPECT_THAT(error_with(file, affine_groups(5, 16)), HasSubstr("expected 2, 3, 4, 8 bits, got 5"));
  EXPECT_THAT(error_with(file, affine_groups(3, 16)), HasSubstr("whole integers of 3 bits, found the shape [8, 16]"));
  EXPECT_THAT(error_with(file, affine_groups(4, 24)), HasSubstr("multiple of the group size 24, got 64"));
  EXPECT_THAT(error_with(file, affine_groups(4, 0)), HasSubstr("multiple of the group size 0"));
  EXPECT_THAT(error_with(file, {.bits = 4}), HasSubstr("a scale per output channel or per group, got uint4 affine"));
  EXPECT_THAT(error_with(file, scheme, 3), HasSubstr("expected version 1 or 2, got 3"));
  EXPECT_THAT(error_of("qweight", torch::zeros({8, 16})), HasSubstr("\"qweight\" in Int, found Float"));
  EXPECT_THAT(error_of("qweight", torch::zeros({8}, at::kInt)), HasSubstr("of shape [*, *], found [8]"));
  EXPECT_THAT(error_of("qweight", torch::zeros({8, 0}, at::kInt)), HasSubstr("[8, 0] contains no values"));
  EXPECT_THAT(error_of("qzeros", torch::zeros({4, 3}, at::kInt)),
              HasSubstr("\"qzeros\" of shape [4, 2], found [4, 3]"));
  EXPECT_THAT(error_of("scales", torch::zeros({4, 16})), HasSubstr("positive, finite scales in \"scales\""));
  EXPECT_THAT(error_of("scales", torch::zeros({4, 16}, at::kInt)), HasSubstr("floating-point scales"));
  EXPECT_THAT(error_of("scales", torch::ones({4, 16}) / 0), HasSubstr("positive, finite"));
  EXPECT_THAT(error_of("g_idx", torch::full({64}, 4, at::kInt)),
              HasSubstr("groups in [0, 3] in the group index, found"));
  EXPECT_THAT(error_of("g_idx", torch::full({64}, -1, at::kInt)), HasSubstr("found values in [-1, -1]"));
  EXPECT_THAT(error_of("g_idx", torch::zeros({64}, at::kInt)), HasSubstr("4 groups of 16 inputs in the group index"));
  EXPECT_THAT(error_of("g_idx", torch::zeros({63}, at::kInt)), HasSubstr("\"g_idx\" of shape [64], found [63]"));
}

TEST(GptqFormat, RejectsLayersThatItCannotStore) {
  const auto error_with = [&](const QuantizedLinear& layer) { return message_of([&] { to_gptq(layer); }); };
  EXPECT_THAT(error_with({random_weight(8, 8, affine_groups(5, 8))}), HasSubstr("2, 3, 4, 8 bits, got 5"));
  EXPECT_THAT(error_with({random_weight(7, 8, affine_groups(4, 8))}), HasSubstr("a weight of shape [7, 8]"));
  const Scheme columns{.bits = 4, .granularity = Granularity::channel, .axis = 1};
  EXPECT_THAT(error_with({random_weight(8, 8, columns)}), HasSubstr("a scale per output channel, per group"));
  const Scheme middle{.bits = 4, .symmetric = true, .granularity = Granularity::channel};
  EXPECT_THAT(error_with({random_weight(8, 8, middle)}), HasSubstr("2^(bits − 1) = 8, found 7 to 7. Use a signed"));
  QuantizedTensor weight = random_weight(8, 8, affine_groups(4, 8));
  EXPECT_THAT(error_with({weight, torch::zeros({8}, at::kLong)}), HasSubstr("each of the 8 inputs once"));
  weight.parameters.scale = weight.parameters.scale * 1e6;
  EXPECT_THAT(error_with({weight}), HasSubstr("do not fit into Half"));
  weight.parameters.scale = torch::ones({3});
  EXPECT_THAT(error_with({weight}), HasSubstr("scales and zero points of shape [8, 1], got [3]"));
}

TEST(AwqFormat, FilesAreThoseOfAutoAwq) {
  for (const std::string layer : {"awq.group", "awq.channel"}) {
    const NamedTensors file = file_of(layer, {"qweight", "qzeros", "scales"});
    const QuantizationConfig config = config_of(layer);
    EXPECT_EQ(config.format, WeightFormat::awq);
    EXPECT_THAT(config.ignore, testing::ElementsAre("lm_head"));
    const QuantizedLinear ours = from_awq(file, config.weights);
    EXPECT_TRUE(ours.dequantize().equal(expected_weight(layer))) << layer;
    expect_equal(to_awq(ours), file, layer);
  }
}

TEST(AwqFormat, KeepsLayers) {
  for (const Scheme& scheme : {group_scheme(4, 16), affine_groups(4, 32), weight_scheme(4)})
    expect_round_trip({random_weight(24, 96, scheme)}, to_awq, from_awq, "AWQ");
}

TEST(AwqFormat, RejectsBadInput) {
  const Scheme scheme = affine_groups(4, 8);
  const QuantizedTensor weight = random_weight(16, 16, scheme);
  const NamedTensors file = to_awq({weight});
  const auto read_error = [&](const NamedTensors& tensors, const Scheme& used) {
    return message_of([&] { from_awq(tensors, used); });
  };
  EXPECT_THAT(read_error(file, affine_groups(3, 8)), HasSubstr("AWQ: expected 4 bits, got 3"));
  EXPECT_THAT(read_error(without(file, "qzeros"), scheme),
              HasSubstr("\"qzeros\" of shape [2, 2], found only: qweight"));
  EXPECT_THAT(read_error(replaced(file, "qzeros", torch::zeros({2, 3}, at::kInt)), scheme), HasSubstr("found [2, 3]"));
  EXPECT_THAT(read_error(file, affine_groups(4, 5)), HasSubstr("multiple of the group size 5"));
  EXPECT_THAT(message_of([&] { to_awq(shuffled(weight)); }), HasSubstr("cannot store a layer with an input order"));
  EXPECT_THAT(message_of([&] { to_awq({random_weight(12, 16, scheme)}); }), HasSubstr("multiple of 8"));
}

TEST(CompressedTensors, FilesAreThoseOfTheOriginal) {
  for (const std::string layer : {"pack2", "pack4", "pack8", "int8", "naive4"}) {
    const QuantizationConfig config = config_of(layer);
    const bool packed = config.format == WeightFormat::pack_quantized;
    std::vector<std::string> names{packed ? "weight_packed" : "weight", "weight_scale"};
    if (packed) names.emplace_back("weight_shape");
    if (!config.weights.symmetric) names.emplace_back("weight_zero_point");
    const NamedTensors file = file_of(layer, names);
    const QuantizedLinear ours =
        packed ? from_pack_quantized(file, config.weights) : from_int_quantized(file, config.weights);
    EXPECT_TRUE(ours.weight.values.equal(layers()(layer + ".values"))) << layer;
    const at::Tensor zeros = layers()(layer + ".zero_point");
    EXPECT_TRUE(ours.weight.parameters.zero_point.equal(zeros.view_as(ours.weight.parameters.zero_point))) << layer;
    EXPECT_TRUE(ours.dequantize().equal(layers()(layer + ".dequantized"))) << layer;
    expect_equal(packed ? to_pack_quantized(ours) : to_int_quantized(ours), file, layer);
  }
}

TEST(CompressedTensors, Float8FilesAreThoseOfTheOriginal) {
  const NamedTensors file = file_of("float8", {"weight", "weight_scale"});
  const QuantizationConfig config = config_of("float8");
  EXPECT_TRUE(config.is_float);
  const Float8Tensor ours = from_float_quantized(file, config.weights);
  EXPECT_TRUE(ours.dequantize().equal(layers()("float8.dequantized")));
  expect_equal(to_float_quantized(ours), file, "float8");
}

TEST(CompressedTensors, KeepLayers) {
  for (const int bits : {2, 3, 4, 7, 8}) {
    std::vector<Scheme> schemes{group_scheme(bits, 11),
                                affine_groups(bits, 33),
                                affine_groups(bits, 11, true),
                                weight_scheme(bits),
                                {.bits = bits, .is_signed = true, .symmetric = true}};
    for (const Scheme& scheme : schemes) {
      const QuantizedLinear layer{random_weight(13, 33, scheme)};
      expect_round_trip(layer, write_bytes, from_int_quantized, "int-quantized");
      if (bits != 3 && bits != 7) expect_round_trip(layer, write_packed, from_pack_quantized, "pack-quantized");
    }
    const QuantizedLinear ordered = shuffled(random_weight(13, 32, affine_groups(bits, 8)));
    expect_round_trip(ordered, write_bytes, from_int_quantized, "int-quantized");
  }
  expect_round_trip({random_weight(5, 6, {.bits = 8})}, write_bytes, from_int_quantized, "int-quantized");
  expect_round_trip(shuffled(random_weight(13, 32, group_scheme(4, 8))), write_packed, from_pack_quantized, "packed");
  for (const Granularity granularity : {Granularity::tensor, Granularity::channel, Granularity::group}) {
    const Scheme scheme{.granularity = granularity, .group_size = 8};
    for (const auto dtype : {at::kFloat8_e4m3fn, at::kFloat8_e5m2}) {
      const Float8Tensor weight = quantize_float8(torch::randn({6, 16}), dtype, scheme);
      const Float8Tensor back = from_float_quantized(to_float_quantized(weight), scheme);
      EXPECT_TRUE(back.dequantize().equal(weight.dequantize()) && back.scale.sizes() == weight.scale.sizes());
    }
  }
}

TEST(CompressedTensors, StoreScalesInADtype) {
  const QuantizedTensor weight = random_weight(4, 8, weight_scheme(4));
  EXPECT_EQ(tensor_of(to_pack_quantized({weight}, at::kBFloat16), "weight_scale").scalar_type(), at::kBFloat16);
  EXPECT_TRUE(from_pack_quantized(to_pack_quantized({weight}, at::kHalf), weight.scheme)
                  .dequantize()
                  .equal(weight.dequantize()));
}

TEST(CompressedTensors, RejectBadInput) {
  const Scheme scheme = affine_groups(4, 8, true);
  const QuantizedTensor weight = random_weight(5, 24, scheme);
  const NamedTensors packed = to_pack_quantized({weight}), bytes = to_int_quantized({weight});
  const auto packed_error = [&](const NamedTensors& tensors, const Scheme& used) {
    return message_of([&] { from_pack_quantized(tensors, used); });
  };
  const auto bytes_error = [&](const NamedTensors& tensors, const Scheme& used) {
    return message_of([&] { from_int_quantized(tensors, used); });
  };
  const auto with_shape = [&](int64_t out, int64_t in) {
    return packed_error(replaced(packed, "weight_shape", torch::tensor({out, in}, at::kLong)), scheme);
  };
  EXPECT_THAT(packed_error(packed, affine_groups(3, 8, true)), HasSubstr("expected 2, 4, 8 bits, got 3"));
  EXPECT_THAT(with_shape(5, 25), HasSubstr("\"weight_shape\" is [5, 25], but \"weight_packed\" has the shape [5, 3]"));
  EXPECT_THAT(with_shape(4, 24), HasSubstr("\"weight_shape\" is [4, 24]"));
  EXPECT_THAT(with_shape(5, -8), HasSubstr("\"weight_shape\" is [5, -8]"));
  EXPECT_THAT(with_shape(5, std::numeric_limits<int64_t>::max()), HasSubstr("\"weight_shape\" is [5, 9223"));
  EXPECT_THAT(packed_error(without(packed, "weight_zero_point"), scheme),
              HasSubstr("\"weight_zero_point\" of shape [1, 3]"));
  EXPECT_THAT(packed_error(without(packed, "weight_scale"), scheme), HasSubstr("\"weight_scale\" of shape [5, 3]"));
  EXPECT_THAT(bytes_error(bytes, affine_groups(3, 8, true)),
              HasSubstr("integers in [-4, 3] for 3 bits, found values in [-8,"));
  EXPECT_THAT(bytes_error(bytes, affine_groups(9, 8, true)), HasSubstr("expected 1 to 8 bits, got 9"));
  EXPECT_THAT(bytes_error(bytes, affine_groups(4, 7, true)), HasSubstr("multiple of the group size 7"));
  EXPECT_THAT(bytes_error(replaced(bytes, "weight_zero_point", torch::full({5, 3}, 9, at::kChar)), scheme),
              HasSubstr("zero points that 4 bits can represent"));
  EXPECT_THAT(bytes_error(replaced(bytes, "weight", torch::zeros({5, 24})), scheme),
              HasSubstr("\"weight\" in Char, found"));
  EXPECT_THAT(message_of([&] { to_pack_quantized({random_weight(4, 8, {.bits = 4})}); }),
              HasSubstr("a scale per output channel or per group for zero points"));
  EXPECT_THAT(message_of([&] { from_float_quantized(bytes, scheme); }), HasSubstr("in Float8_e4m3fn, found Char"));
  EXPECT_THAT(message_of([&] { to_float_quantized({}); }), HasSubstr("a weight of shape [out, in] with scales"));
}

}  // namespace bellows::quant
