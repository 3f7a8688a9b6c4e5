#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bellows/models/exported/input_checks.h"
#include "bellows/models/exported/plan.h"
#include "bellows/models/exported/tensors.h"

namespace bellows::models::exported {

/// Whether a program can be switched between training and evaluation. An empty text means that it can.
struct ModeSupport {
  bool exported_in_training = true;
  std::string no_training;    ///< why the program cannot run in training mode
  std::string no_evaluation;  ///< why the program cannot run in evaluation mode
};

/// Finds the arguments that PyTorch's layers set differently in training and evaluation, and stores both values in the
/// nodes. Only arguments that were exported with their value for training change. For example, a batch norm that was
/// frozen before the export stays frozen, and a norm without running statistics always uses those of the batch.
ModeSupport find_modes(Graph& graph);

/// An exported program, without its tensors.
class ExportedProgram {
 public:
  /// Params: json  – of models/NAME.json
  ///         where – name of the program for messages
  /// Throws: c10::ValueError if the JSON is invalid, or if the program uses unknown or unsupported parts
  ExportedProgram(std::string_view json, std::string where);

  const InputChecks& checks() const { return checks_; }
  const std::vector<std::string>& output_names() const { return output_names_; }
  /// Dimensions of the first output; -1 if they are unknown.
  int64_t output_dimensions() const { return output_dimensions_; }
  /// Names of parameters and of buffers, in the order of the module.
  const std::vector<std::string>& parameters() const { return parameters_; }
  const std::vector<std::string>& buffers() const { return buffers_; }
  const ModeSupport& modes() const { return modes_; }
  /// Class of each module that runs an operator, such as {"bn1", "BatchNorm2d"}.
  const std::vector<std::pair<std::string, std::string>>& module_types() const { return module_types_; }

  /// Uses these tensors in forward().
  /// Throws: c10::ValueError if one is missing
  void bind(const ExportedTensors& tensors);
  /// Replaces constants with the device `from` by `to`.
  void change_device(c10::Device from, c10::Device to);
  /// Throws: c10::ValueError if an input does not fit; exceptions of the operators
  std::vector<at::Tensor> forward(const std::vector<at::Tensor>& inputs, bool training) const;

 private:
  struct Update {
    size_t output;  ///< of the graph
    std::string buffer;
    at::Tensor tensor{};
  };

  void read(const Json& document);
  void read_inputs(const Json& module);
  void add_input(const std::string& kind, const Json& spec, size_t index);
  void read_outputs(const Json& module);
  void move_updates_to_the_end();
  void find_module_types(const Json& module);

  std::string where_;
  std::shared_ptr<Graph> graph_;
  InputChecks checks_;
  std::vector<std::string> output_names_, parameters_, buffers_;
  std::vector<std::pair<size_t, std::string>> bound_names_;  ///< (input of the graph, tensor)
  std::vector<size_t> results_;                              ///< outputs of the graph that are outputs of the model
  std::vector<Update> updates_;
  std::vector<size_t> cloned_;  ///< inputs of the graph that are buffers in updates_
  std::vector<c10::IValue> bound_;
  ModeSupport modes_;
  int64_t output_dimensions_ = -1;
  std::vector<std::pair<std::string, std::string>> module_types_;
};

}  // namespace bellows::models::exported
