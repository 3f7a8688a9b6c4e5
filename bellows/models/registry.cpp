#include "bellows/models/registry.h"

#include "bellows/models/mlp.h"
#include "bellows/models/resnet.h"

namespace bellows::models {

namespace {

constexpr std::array<int64_t, 3> digits_shape = {1, 8, 8}, photo_shape = {3, 224, 224};

void add_own_models(Registry<ModelEntry>& models) {
  models.add({"mlp", "two hidden layers of 128 on 8x8 images", digits_shape, [](int64_t classes, int64_t channels) {
                return mlp({.in_features = channels * digits_shape[1] * digits_shape[2], .num_classes = classes});
              }});
  models.add(
      {"digits_resnet", "small residual network for small images", digits_shape, [](int64_t classes, int64_t channels) {
         return digits_resnet({.num_classes = classes, .in_channels = channels});
       }});
  models.add({"resnet18", "ResNet-18 with torchvision's names", photo_shape, [](int64_t classes, int64_t channels) {
                return resnet18({.num_classes = classes, .in_channels = channels});
              }});
  models.add({"resnet34", "ResNet-34 with torchvision's names", photo_shape, [](int64_t classes, int64_t channels) {
                return resnet34({.num_classes = classes, .in_channels = channels});
              }});
  models.add({"resnet50", "ResNet-50 with torchvision's names", photo_shape, [](int64_t classes, int64_t channels) {
                return resnet50({.num_classes = classes, .in_channels = channels});
              }});
}

Registry<ModelEntry>& table() {
  static Registry<ModelEntry> models = [] {
    Registry<ModelEntry> own("model");
    add_own_models(own);
    return own;
  }();
  return models;
}

}  // namespace

const Registry<ModelEntry>& registry() {
  return table();
}

void register_model(ModelEntry entry) {
  table().add(std::move(entry));
}

}  // namespace bellows::models
