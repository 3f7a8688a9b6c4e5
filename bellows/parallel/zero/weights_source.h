#pragma once

#include <memory>
#include <string>
#include <vector>

#include "bellows/comm/group.h"
#include "bellows/comm/shard_spec.h"
#include "bellows/core/model.h"

namespace bellows::parallel {

/// The weights of a model in a safetensors file, from which each rank reads only its parts.
/// Threads: not thread-safe
class WeightsSource {
 public:
  /// Opens the file, and compares its header on all ranks. Collective.
  /// Throws: c10::ValueError if a parameter or buffer of the model is missing in the file or has another shape; the
  ///         message lists them, and suggests names. c10::ValueError if the ranks' files differ, or if this rank cannot
  ///         open the file. c10::Error if another rank cannot open it
  WeightsSource(const std::string& path, const Model& model, const comm::Group& ranks);
  ~WeightsSource();

  /// Reads a part of a tensor. The dtype is converted.
  /// Params: name – of the parameter in the model; part – view with the elements that `spec` describes
  /// Throws: c10::ValueError if the file was changed or truncated after it was opened, or cannot be read
  void read(const std::string& name, const comm::ShardSpec& spec, const at::Tensor& part) const;
  /// Reads a complete tensor.
  void read(const std::string& name, const at::Tensor& tensor) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace bellows::parallel
