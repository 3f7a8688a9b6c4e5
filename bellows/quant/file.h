#pragma once

#include <string>

#include "bellows/core/model.h"
#include "bellows/quant/quantize.h"

/// Files of quantized models: safetensors with the tensors of compressed-tensors ("fc.weight", "fc.weight_scale",
/// "fc.input_scale", …), and a JSON text in the metadata (key "bellows.quantization") that describes the layers. Integers of
/// fewer than 8 bits are in "fc.weight_bits", packed as in packed.h.
namespace bellows::quant {

/// Writes all tensors of a quantized model. The file appears under its name when it is complete.
/// Throws: c10::Error if writing fails
void save_quantized(const std::string& path, const Quantized& quantized);

/// Returns whether a safetensors file was written by save_quantized().
/// Throws: c10::ValueError if the file is missing or is not a safetensors file
bool is_quantized_file(const std::string& path);

/// Loads a file into a model of the same architecture. The model's floating-point weights of quantized layers are freed
/// (Options::release_weights).
/// Throws: c10::ValueError if the file is damaged, was not written by save_quantized(), or does not match the model (the
///         message names the layer or tensor)
Quantized load_quantized(const std::string& path, const Model& model);

}  // namespace bellows::quant
