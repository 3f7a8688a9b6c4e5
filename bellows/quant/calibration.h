#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "bellows/core/model.h"
#include "bellows/core/mutex.h"
#include "bellows/quant/layer_table.h"
#include "bellows/quant/observer.h"
#include "bellows/tap/op_tap.h"

namespace bellows::quant {

/// The result of calibration for one layer.
struct CalibratedLayer {
  std::string name{};  ///< see QuantizedLayer
  std::string parameter{};
  LayerKind kind = LayerKind::linear;
  at::Tensor weight{};       ///< the parameter
  at::Tensor bias{};         ///< undefined if there is none
  bool has_one_bias = true;  ///< false if calls have different biases
  std::string kept{};        ///< why the weight cannot be quantized, or empty
  /// The batch norm that is the only reader of the layer's result: name of the module, and its four vectors and eps.
  struct Norm {
    std::string name{};
    at::Tensor weight{}, bias{}, mean{}, variance{};  ///< weight and bias may be undefined
    double eps = 0;
  };
  std::optional<Norm> norm{};
  Parameters input{};
  bool input_is_signed = false;
  bool reads_rows = false;  ///< see QuantizedLayer; true for embeddings
  /// The symmetric int8 scale of the result, if attention reads it as query, key or value; undefined otherwise.
  at::Tensor result_scale{};
  /// If attention reads the result as query: names of the layers of its key and value.
  struct Attention {
    std::string key{}, value{};
  };
  std::optional<Attention> attention{};
  int64_t calls = 0;  ///< per batch
};

/// Receives the input of a layer during calibration.
using SeesInput = std::function<void(const std::string& layer, LayerKind kind, const at::Tensor& input)>;

struct CalibrationOptions {
  ObserverOptions observer{};
  bool observes = true;             ///< whether the ranges of activations are needed
  bool observes_attention = false;  ///< whether the ranges of query, key and value are needed; only with `observes`
  SeesInput sees_input{};           ///< may be empty
  bool finds_embeddings = true;     ///< whether embeddings are layers
};

/// Runs a model on batches and finds its layers: the convolutions, linears and embeddings whose weight is a parameter of the
/// model. Embeddings are matrices whose rows are read by aten::embedding, or by sums that add a slice of them, as for position
/// embeddings.
/// The first batch finds the layers, and all batches contribute to the ranges of activations. Inputs of linears get the
/// affine uint8 scheme. Inputs of convolutions are uint8 with zero point 0 if they are never negative, otherwise symmetric
/// int8, because convolutions with a zero point are slower.
/// Params: batches – each has the inputs of one call, in the order of model.inputs()
/// Throws: c10::ValueError if there are no batches, or if an activation is NaN or infinite (the message names the layer)
std::vector<CalibratedLayer> calibrate(const Model& model, std::span<const std::vector<at::Tensor>> batches,
                                       const CalibrationOptions& options = {});

}  // namespace bellows::quant
