#pragma once

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>

#include "bellows/quant/quantize.h"

namespace bellows::quant::samples {

inline const QuantizedLayer& layer(const Quantized& quantized, const std::string& name) {
  for (const QuantizedLayer& one : *quantized.layers) {
    if (one.name == name) return one;
  }
  throw std::runtime_error("no layer " + name);
}

/// The largest difference, relative to the largest expected value.
inline double relative(const at::Tensor& got, const at::Tensor& expected) {
  return ((got - expected).abs().max() / expected.abs().max()).item<double>();
}

inline std::string file_named(const std::string& name) {
  return ::testing::TempDir() + "bellows-quant-" + name + ".safetensors";
}

}  // namespace bellows::quant::samples
