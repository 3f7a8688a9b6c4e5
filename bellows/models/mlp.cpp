#include "bellows/models/mlp.h"

#include <torch/torch.h>

namespace bellows::models {

namespace {

class Mlp final : public torch::nn::Module {
 public:
  explicit Mlp(const MlpOptions& options) : dropout_(options.dropout), in_features_(options.in_features) {
    layers_ = register_module("layers", torch::nn::ModuleList());
    int64_t width = options.in_features;
    for (const int64_t next : options.hidden) {
      layers_->push_back(torch::nn::Linear(width, next));
      width = next;
    }
    layers_->push_back(torch::nn::Linear(width, options.num_classes));
  }

  at::Tensor forward(const at::Tensor& x) {
    TORCH_CHECK_VALUE(x.dim() >= 2 && x.numel() == x.size(0) * in_features_, "mlp: expected ", in_features_,
                      " values per sample, got an input of ", x.sizes(),
                      ". Set in_features to the number of values per sample.");
    at::Tensor y = x.flatten(1);
    for (size_t i = 0; i < layers_->size(); ++i) {
      y = layers_->at<torch::nn::LinearImpl>(i).forward(y);
      if (i + 1 < layers_->size()) {
        y = torch::relu_(y);
        if (dropout_ > 0) y = torch::dropout(y, dropout_, is_training());
      }
    }
    return y;
  }

 private:
  torch::nn::ModuleList layers_{nullptr};
  double dropout_;
  int64_t in_features_;
};

}  // namespace

Model mlp(const MlpOptions& options) {
  std::vector<int64_t> widths = options.hidden;
  widths.insert(widths.begin(), options.in_features);
  widths.push_back(options.num_classes);
  for (const int64_t width : widths) {
    TORCH_CHECK_VALUE(width >= 1, "mlp: expected widths of at least 1, got ", c10::IntArrayRef(widths),
                      " (in_features, hidden …, num_classes).");
  }
  TORCH_CHECK_VALUE(options.dropout >= 0 && options.dropout < 1, "mlp: expected dropout in [0, 1), got ",
                    options.dropout, ".");
  return Model::of(std::make_shared<Mlp>(options), "mlp");
}

}  // namespace bellows::models
