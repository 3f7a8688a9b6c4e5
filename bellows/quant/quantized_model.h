#pragma once

#include <memory>
#include <string>
#include <vector>

#include "bellows/core/model.h"
#include "bellows/quant/layer_table.h"

namespace bellows::quant {

class LayerPlaces;

/// A model with quantized layers. Each forward pass receives the operators of the original model and runs quantized layers
/// instead of operators that read their weights.
class QuantizedModel : public ModelWrapper {
 public:
  /// Throws: c10::ValueError if the model has no such layer, or if shapes differ
  QuantizedModel(const Model& model, std::vector<QuantizedLayer> layers, bool release_weights);

  ~QuantizedModel() override;

  const std::shared_ptr<const std::vector<QuantizedLayer>>& layers() const { return layers_; }

  std::vector<at::Tensor> forward_all(const std::vector<at::Tensor>& inputs) override;
  /// Parameters that are not quantized.
  NamedTensors named_parameters() const override;
  /// Buffers of the original model, and the tensors of quantized layers in the form in which the layers run.
  NamedTensors named_buffers() const override;
  void set_training(bool on) override;
  bool training() const override { return false; }
  void to(c10::Device device) override;
  void to(c10::ScalarType dtype) override;
  /// Null, because the module on its own is not quantized.
  std::shared_ptr<torch::nn::Module> module() const override { return nullptr; }

 private:
  std::shared_ptr<const std::vector<QuantizedLayer>> layers_;
  std::unique_ptr<const LayerPlaces> places_;
};

/// Loads all tensors of a model that are not weights of quantized layers.
/// Params: where – name of the file or checkpoint, for errors
/// Throws: c10::ValueError if another tensor is missing, is unexpected or has a different shape
void load_unquantized(const Model& model, const NamedTensors& tensors, const std::vector<QuantizedLayer>& layers,
                      const std::string& where);

}  // namespace bellows::quant
