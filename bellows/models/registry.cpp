#include "bellows/models/registry.h"

#include <mutex>

#include "bellows/core/error.h"
#include "bellows/models/mlp.h"
#include "bellows/models/plugin.h"
#include "bellows/models/resnet.h"
#include "bellows/models/torchscript.h"

namespace bellows::models {

namespace {

[[gnu::used]] constexpr char library_mark[] = BELLOWS_LIBRARY_MARK;
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

/// What static initialisers left. Function-local, so that it is there before any of them runs.
struct Announced {
  std::mutex mutex;
  std::vector<ModelEntry> entries;
};
Announced& announced() {
  static Announced list;
  return list;
}

void adopt_announced() {
  std::vector<ModelEntry> entries;
  {
    const std::lock_guard lock(announced().mutex);
    entries.swap(announced().entries);
  }
  std::string taken;
  for (ModelEntry& entry : entries) {
    if (table().find(entry.name)) {
      taken += (taken.empty() ? "\"" : ", \"") + entry.name + "\"";
    } else {
      table().add(std::move(entry));
    }
  }
  TORCH_CHECK_VALUE(taken.empty(), "BELLOWS_MODEL: ", taken, taken.find(',') == std::string::npos ? " is" : " are",
                    " taken by another model. Register yours under another name.");
}

}  // namespace

const Registry<ModelEntry>& registry() {
  adopt_announced();
  return table();
}

void register_model(ModelEntry entry) {
  adopt_announced();
  table().add(std::move(entry));
}

void announce_model(ModelEntry entry) noexcept {
  const std::lock_guard lock(announced().mutex);
  announced().entries.push_back(std::move(entry));
}

ModelEntry model_entry(const std::string& name_or_file) {
  const Registry<ModelEntry>& models = registry();
  if (const ModelEntry* entry = models.find(name_or_file)) return *entry;
  if (is_torchscript_path(name_or_file)) return torchscript_entry(name_or_file);
  try {
    return models.at(name_or_file);
  } catch (const c10::Error& error) {
    TORCH_CHECK_VALUE(false, user_message(error),
                      ". One of your own: BELLOWS_MODEL in a plugin, or a TorchScript file (net.pt).");
  }
}

}  // namespace bellows::models
