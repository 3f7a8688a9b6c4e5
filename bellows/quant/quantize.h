#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "bellows/core/model.h"
#include "bellows/quant/layer.h"
#include "bellows/quant/observer.h"
#include "bellows/quant/report.h"
#include "bellows/quant/scheme.h"
#include "bellows/quant/training/trained_layer.h"

/// Quantization of whole models.
/// ```
/// const quant::Quantized int8 = quant::quantize(model, {}, calibration);  // static int8
/// std::cout << int8.report.to_text();
/// const auto fast = compile([&](const at::Tensor& x) { return int8.model.forward(x); }, {.frozen = int8.model});
/// ```
namespace bellows::quant {

/// How the integers of a weight are chosen.
enum class Rounding {
  nearest,     ///< the nearest integer
  hqq,         ///< methods/hqq.h; needs no calibration data
  gptq,        ///< methods/gptq.h
  awq,         ///< methods/awq.h
  auto_round,  ///< methods/auto_round.h
};

/// Returns "nearest", "hqq", "gptq", "awq" or "auto_round".
const char* name_of(Rounding rounding);
/// Throws: c10::ValueError if there is no such name
Rounding rounding_of(const std::string& name);

struct Options {
  Method method = Method::static_range;
  /// Of the weights. Methods static_range and dynamic need int8 with one scale per output channel. Method weight_only also
  /// supports 2 to 8 bits and groups. In memory, 4-bit linears and embeddings need 4 bits per weight, and all other layers
  /// 8.
  Scheme weights = weight_scheme();
  /// How the ranges of activations are chosen, with method static_range.
  ObserverOptions activations{};
  /// Of the weights of linears. Convolutions always use the nearest integers. awq needs the method weight_only.
  Rounding rounding = Rounding::nearest;
  /// Moves outliers from the inputs of linears to their weights (methods/smooth_quant.h): alpha in (0, 1], 0: off. For the
  /// methods static_range and dynamic.
  double smooth = 0;
  /// Corrects the bias of linears, so that the mean of their outputs stays the same (methods/bias_correction.h).
  bool correct_bias = false;
  /// Folds a batch norm that follows a convolution into its weight and bias.
  bool fold_norms = true;
  /// If a sum reads the input of a quantized convolution, too, such as the shortcut of a residual block, it reads the same
  /// 8-bit values. In compiled functions, the activations then need no fp32 copy. For the method static_range.
  bool quantize_sums = true;
  /// Multiplies 8-bit integers in attention whose query, key and value are results of quantized linears, with fp32 softmax
  /// between both matmuls (quantized_attention() in operators.h). Attention with a mask, causal order or dropout stays in
  /// floating point. For the method static_range; not with `trained`.
  bool quantize_attention = true;
  /// Stores the weights of embeddings as integers, with the scheme of `weights`, always rounded to the nearest integer.
  /// If a linear shares its weight with an embedding, both read the same integers. Activations are not concerned, so all
  /// methods treat embeddings alike, also with `trained`. If false, embeddings and weights that they share with other layers
  /// stay in floating point, and the report does not list embeddings.
  bool quantize_embeddings = true;
  /// Names of layers that stay in floating point. "*" matches any text, such as "encoder.*". A name that no layer
  /// has is an error.
  std::vector<std::string> skip{};
  /// Layers with fewer weights stay in floating point.
  int64_t min_weights = 0;
  /// Throws an exception if a layer that is neither skipped nor small cannot be quantized. Otherwise, such layers stay in
  /// floating point, and the report lists them.
  bool strict = false;
  /// Frees the floating-point weights of quantized layers. The original model can then no longer be used: its weights are
  /// NaN. By default, both models work.
  bool release_weights = false;
  /// Ranges and steps of quantization-aware training (FakeQuantizer::trained_layers()), which replace the calibration of
  /// ranges. The quantized model then computes with the same integers as the fake-quantized one. Layers that are not in the
  /// table stay in floating point. Needs the method static_range and rounding to the nearest integer. Empty: ranges are
  /// calibrated.
  TrainedLayers trained{};
};

struct Quantized {
  Model model;     ///< runs the quantized layers
  Model original;  ///< the model that was quantized
  std::shared_ptr<const std::vector<QuantizedLayer>> layers;
  Report report{};
};

/// Returns a model that computes with integer weights, and a report. The model shares all other parameters with the original
/// one. It is for inference: it runs without gradients, and train() throws an exception.
///
/// Embeddings are matrices whose rows are read by aten::embedding, or matrices of which slices along dim 0 are added to
/// something, as position embeddings. Rows are dequantized when they are read.
///
/// The model runs on its own, but only compiled functions are fast: there, convolutions and linears run on oneDNN's int8
/// primitives.
/// The original model is put into evaluation mode. Unless `release_weights` is set, it can still be used.
/// Params:  calibration – inputs of some calls, in the order of model.inputs(). The first call finds the layers. Method
///                        static_range chooses the ranges of activations from all of them, so pass a few hundred samples.
///                        One call is enough for the other methods, and with `trained`
/// Threads: the model's forward is thread-safe if the original one is
/// Cost:    two passes over the calibration data
/// Throws:  c10::ValueError if an option is invalid, if there is no calibration data, if it gives NaN or infinite activations,
///          if no layer can be quantized, or with `strict`
Quantized quantize(const Model& model, const Options& options, std::span<const std::vector<at::Tensor>> calibration);

/// Returns a model that runs `layers` instead of the layers of the same name. The report has no SQNR.
/// Params: release_weights – see Options
/// Throws: c10::ValueError if the model has no such layer, or if shapes differ
Quantized with_layers(const Model& model, std::vector<QuantizedLayer> layers, bool release_weights = false);

}  // namespace bellows::quant
