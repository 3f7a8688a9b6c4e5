#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bellows/core/model.h"
#include "bellows/parallel/placement/device_map.h"

namespace bellows::parallel {

struct StreamedWeightsOptions {
  /// Safetensors file with all parameters and buffers of the model. It must not change while it is in use.
  std::string file;
  /// Names in the file, by name in the model. Names that are not listed are equal in both.
  std::map<std::string, std::string> names = {};
  /// Budget in bytes for the weights on the device, including the memory into which weights are loaded. Ignored if
  /// `device_map` is set.
  int64_t memory_bytes = 0;
  /// Like DeviceMapOptions::keep_together. Ignored if `device_map` is set.
  std::vector<std::string> keep_together = {};
  std::optional<DeviceMap> device_map = {};  ///< from infer_device_map(), for this model
  /// The device that computes. The model may be on the CPU; its weights move to this device. Accelerators have not been
  /// tested on a device.
  c10::Device device = c10::kCPU;
};

/// Counters of StreamedWeights.
struct StreamedWeightsCounters {
  int64_t resident_bytes = 0;  ///< weights that are always on the device
  int64_t streamed_bytes = 0;  ///< weights that are loaded when they are used
  int64_t loaded_bytes = 0;    ///< memory that loaded modules use now, including memory that is kept for the next one
  int64_t peak_bytes = 0;      ///< the most that resident and loaded weights have used together
  int64_t loads = 0;           ///< number of loads of a module
  int64_t prefetched = 0;      ///< number of loads that started before the module was used
  int64_t bytes_read = 0;      ///< bytes of streamed weights that were read from the file, without failed reads
};

/// Runs a model whose weights do not fit into memory. The device map keeps some modules in memory. The weights of all
/// other modules have no memory until an operator uses one of them. Then all weights of this module are loaded from the
/// file. A thread already loads the module that is expected next, so that reading and computing overlap.
/// ```
/// const parallel::StreamedWeights weights(model, {.file = "model.safetensors", .memory_bytes = 4LL << 30});
/// const at::Tensor output = weights.model().forward(input);
/// ```
/// Buffers of the model are always in memory. The weights are read-only, and have no gradients.
/// Numerics: exact. Operators use the same kernels as without streaming. If the dtype in the file differs from that of the
///           model, the values are converted as by load_state_dict()
/// Cost:     each forward pass reads all streamed weights once if the model uses its modules one after the other. The
///           bytes of resident and loaded weights never exceed the budget
/// Threads:  model() can be called on any thread. Calls on several threads run one after the other
class StreamedWeights {
 public:
  /// Takes the memory of the streamed weights away, and reads the other weights and the buffers. To create a model that
  /// never uses memory for its weights, create it while a tap::SkipInitialization exists.
  /// Throws: c10::ValueError if the file is missing or damaged. Also if it does not fit the model, because a tensor is
  ///         missing, has another shape, or is not floating-point although the model's tensor is (the message lists the
  ///         tensors). Also if the budget is too small, the device map is of another model, or two parameters share memory
  ///         without being the same tensor. The model may then have no values
  StreamedWeights(const Model& model, const StreamedWeightsOptions& options);
  /// The streamed weights stay without memory. Every access throws.
  ~StreamedWeights();
  StreamedWeights(const StreamedWeights&) = delete;
  StreamedWeights& operator=(const StreamedWeights&) = delete;

  /// Returns a model that loads its weights when it is called. It may outlive this object.
  /// Throws: forward throws c10::ValueError in training mode, or if one operator needs more weights at once than the
  ///         working memory can hold. It also throws c10::ValueError if gradients are enabled and an operator uses a
  ///         streamed weight that requires a gradient. Frozen weights are not checked: forward runs, but a backward
  ///         pass that needs them throws c10::Error if they are no longer in memory. forward throws errors of reading
  ///         the file, which name the tensor; the next call tries again. Moving or casting the model throws
  Model model() const;
  const DeviceMap& device_map() const;
  StreamedWeightsCounters counters() const;

  /// Loads weights for the operators that this thread calls while the guard exists. Use it if you call the module
  /// itself instead of model(). Results that share memory with a streamed weight lose their values when another module
  /// is used; copy them.
  /// Threads: waits while a guard exists on another thread. Create and destroy guards on the same thread and in nested
  ///          order
  class Guard {
   public:
    /// Throws: c10::ValueError if the model is in training mode
    explicit Guard(const StreamedWeights& weights);
    ~Guard();
    Guard(const Guard&) = delete;
    Guard& operator=(const Guard&) = delete;

   private:
    std::shared_ptr<void> use_;
  };

 private:
  class Streaming;
  class Use;
  class StreamedModel;
  std::shared_ptr<Streaming> streaming_;
};

}  // namespace bellows::parallel
