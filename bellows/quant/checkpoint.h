#pragma once

#include "bellows/core/model.h"
#include "bellows/quant/formats/config.h"
#include "bellows/quant/quantize.h"

/// Whole models in the formats of GPTQ, AWQ and compressed-tensors, as on the Hugging Face Hub. Their tensors are in
/// safetensors files, and config.json contains the configuration. formats/ describes the tensors of a layer.
namespace bellows::quant {

/// Loads the tensors of a checkpoint into a model. A layer is quantized if the checkpoint has quantized tensors for it, such
/// as "fc.qweight" for the parameter "fc.weight". The model's floating-point weights of such layers are freed
/// (Options::release_weights).
/// Params:  tensors – for example from io::load_safetensors()
///          config  – for example from parse_quantization_config()
/// Returns: weight-only layers; with `config.inputs`, dynamic or static int8 layers
/// Throws:  c10::ValueError if a tensor is missing, unexpected or has a wrong shape, if no layer is quantized, or if the
///          configuration is not supported: fp8, and activations other than 8-bit integers
Quantized load_checkpoint(const NamedTensors& tensors, const QuantizationConfig& config, const Model& model);

/// Returns the tensors of a checkpoint with the layers of a quantized model in the format of `config`.
/// Params: config – bits and granularity must be those of the layers
/// Throws: c10::ValueError if the format cannot store a layer, such as a convolution or an input that is divided
NamedTensors to_checkpoint(const Quantized& quantized, const QuantizationConfig& config);

}  // namespace bellows::quant
