#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "bellows/quant/scheme.h"

namespace bellows::quant {

/// How a file stores the quantized weight of a linear layer.
enum class WeightFormat {
  gptq,             ///< formats/gptq.h, version 1
  gptq_v2,          ///< formats/gptq.h, version 2
  awq,              ///< formats/awq.h
  pack_quantized,   ///< formats/compressed_tensors.h, as are the following formats
  int_quantized,    ///< integers in bytes
  naive_quantized,  ///< like int_quantized, or like float_quantized if the weights are floating-point values
  float_quantized,  ///< 8-bit floating-point values
};

/// Quantization of the inputs of layers.
struct ActivationConfig {
  Scheme scheme{};        ///< granularity tensor or token
  bool dynamic = true;    ///< whether scales are computed from the values of each batch
  bool is_float = false;  ///< whether values are fp8
  bool operator==(const ActivationConfig&) const = default;
};

/// The field `quantization_config` in the config.json of a model, as Hugging Face's projects write it.
struct QuantizationConfig {
  WeightFormat format = WeightFormat::pack_quantized;
  Scheme weights = group_scheme(4, 128);  ///< symmetric schemes are signed; if is_float, only the granularity applies
  bool is_float = false;                  ///< whether weights are fp8: float_quantized, and optionally naive_quantized
  bool activation_order = false;          ///< whether files contain a group index: GPTQ and compressed-tensors
  std::optional<ActivationConfig> inputs{};    ///< compressed-tensors only; otherwise, inputs are not quantized
  std::vector<std::string> targets{"Linear"};  ///< quantized classes or names of layers: compressed-tensors
  std::vector<std::string> ignore{};           ///< names of layers that are not quantized; not for GPTQ
  bool operator==(const QuantizationConfig&) const = default;

  /// Throws: c10::ValueError if the format does not support an option
  void check() const;
};

/// Returns the JSON text of the field's value.
/// Throws: c10::ValueError if the configuration is invalid
std::string to_json(const QuantizationConfig& config, int indent = 2);

/// Reads the value of the field, or a whole config.json that contains it. Fields that do not affect how weights are stored
/// are ignored.
/// Params:  where – name of the file, for errors
/// Threads: thread-safe
/// Throws:  c10::ValueError if the text is not valid JSON, a value has another type or is out of range, or the
///          configuration needs a feature that is not supported, such as several groups of layers
QuantizationConfig parse_quantization_config(std::string_view json, const std::string& where = "quantization_config");

/// Returns the name in files, such as "pack-quantized". Version 2 of GPTQ is called "gptq_v2".
const char* name_of(WeightFormat format);

}  // namespace bellows::quant
