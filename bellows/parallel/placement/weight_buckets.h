#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <vector>

#include "bellows/core/model.h"
#include "bellows/parallel/placement/device_map.h"
#include "bellows/parallel/placement/weight_file.h"

namespace bellows::parallel {

/// A tensor of the model and its place in the file.
struct WeightSource {
  std::string name;  ///< in the model
  at::Tensor tensor;
  bool is_parameter = true;  ///< otherwise a buffer
  const io::SafetensorsEntry* entry = nullptr;
};

/// Finds each parameter and buffer of the model in the file. Tied tensors occur once.
/// Throws: c10::ValueError if a tensor is missing, or has another shape or kind of dtype (the message lists them)
std::vector<WeightSource> weight_sources(const Model& model, const WeightFile& file,
                                         const std::map<std::string, std::string>& names);

/// The weights of a streamed module.
struct WeightBucket {
  /// A parameter in the memory of the bucket.
  struct Part {
    WeightSource source;
    int64_t offset = 0;  ///< in bytes
    /// Returns the parameter's values in a buffer on the CPU that has the layout of the bucket.
    at::Tensor view_of(const at::Tensor& buffer) const;
  };
  std::string module;
  WeightPlace place = WeightPlace::disk;
  int64_t bytes = 0;
  std::vector<Part> parts;
  c10::Storage storage;  ///< of all parameters of the bucket; has no memory unless the bucket is loaded
  at::Tensor host;       ///< [bytes], uint8: the values, if they are in host memory
};

/// Moves parameters into a new bucket on the device. The tensor objects and their strides stay the same. Their values
/// and their memory are dropped.
/// Params: why – message of the exception if the values are accessed while the bucket has no memory
WeightBucket make_bucket(const MappedModule& module, const std::vector<const WeightSource*>& sources,
                         c10::Device device, const std::string& why);

/// Reads all values of a bucket.
/// Params: buffer – [bytes], uint8, on the CPU
/// Returns: the number of bytes that were read from the file
int64_t read_bucket(const WeightBucket& bucket, const WeightFile& file, const at::Tensor& buffer);

}  // namespace bellows::parallel
