#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bellows/core/model.h"

namespace bellows::parallel {

/// Where the weights of a module are while they are not in use.
enum class WeightPlace {
  device,  ///< on the device that computes; for models on the CPU, in main memory
  host,    ///< in main memory; they are copied to the device when they are used
  disk,    ///< in a file; they are read when they are used
};
/// Parameters start at multiples of this number of bytes in the memory of a module, like blocks of an allocator.
inline constexpr int64_t weight_alignment = 64;

/// Returns "device", "host" or "disk".
std::string to_string(WeightPlace place);

/// A parameter and its size. Tied parameters occur once, under their first name.
struct WeightSize {
  std::string name;
  int64_t bytes = 0;
};

/// Returns the sizes of all parameters of a model. Parameters that are registered under several names occur once.
/// Cost: no access to the values, so the model may have been created with tap::SkipInitialization
std::vector<WeightSize> weight_sizes(const Model& model);

struct DeviceMapOptions {
  int64_t device_bytes = 0;  ///< budget for weights and activations on the device
  int64_t host_bytes = 0;    ///< budget for weights in host memory; only for models on an accelerator
  /// Peak of the activations of one batch. The map leaves this part of the device's budget free.
  int64_t activation_bytes = 0;
  /// Patterns for modules that stay in one piece, such as "encoder.layer.*". If empty, these are the outermost modules
  /// with a number as name, which are the blocks of a transformer or a ResNet. All other modules that own parameters
  /// each form their own piece.
  std::vector<std::string> keep_together = {};
};

/// A piece of a model whose weights are moved together.
struct MappedModule {
  std::string name;  ///< path of the module; empty for parameters of the model itself
  WeightPlace place = WeightPlace::device;
  int64_t bytes = 0;
  std::vector<std::string> parameters;  ///< names of its parameters
};

/// The place of each part of a model, in the order of the model's parameters.
struct DeviceMap {
  std::vector<MappedModule> modules;
  int64_t device_bytes = 0;   ///< bytes of the modules on the device
  int64_t host_bytes = 0;     ///< bytes of the modules in host memory
  int64_t disk_bytes = 0;     ///< bytes of the modules in the file
  int64_t working_bytes = 0;  ///< memory on the device that the other modules share while they are used

  bool all_on_device() const { return host_bytes == 0 && disk_bytes == 0; }
  /// Returns one line per place, and one line per module.
  std::string to_string() const;
};

/// Decides where the weights of a model are. The map keeps as many bytes as possible on the device. Modules that do not
/// fit there are in host memory, as far as the budget for host memory permits, and otherwise on disk. They need working
/// memory on the device: enough for the two largest of them, so that one can be loaded while the other one is used. If
/// there is less memory, it is enough for the largest one, and nothing is loaded in advance.
///
/// The map is found by trying for each number n whether the n largest modules fit on the device together with the
/// working memory of the rest. The remaining budget is filled in the order of the model.
/// Throws: c10::ValueError if the budget is smaller than the largest module (the message states the minimum), if a
///         budget is negative, or if a pattern matches no module (the message suggests one)
/// Ref:    accelerate.infer_auto_device_map
DeviceMap infer_device_map(const std::vector<WeightSize>& weights, const DeviceMapOptions& options);
inline DeviceMap infer_device_map(const Model& model, const DeviceMapOptions& options) {
  return infer_device_map(weight_sizes(model), options);
}

}  // namespace bellows::parallel
