#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "bellows/graph/program/program.h"

namespace bellows::export_detail {

/// A function of tensors, in the form in which it is exported.
using Forward = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>;

/// Where the first value of a program's input comes from.
struct InputSource {
  int argument = -1;    ///< index of the function's argument; -1 if the function uses its own tensor
  at::Tensor tensor{};  ///< the tensor. For a tensor of the function's own, a copy of its values before the first use,
                        ///< unless it is one of the tensors that keep their values
  std::string name{};   ///< name of the parameter or buffer; empty for other tensors
  bool uninitialized = false;  ///< memory that the function allocates, and writes before it reads it
};

/// One call of a function as a program without any optimization.
struct RecordedCall {
  graph::Program program{};
  std::vector<InputSource> sources{};        ///< for each of Program::inputs
  std::vector<graph::Operand> results{};     ///< the function's results
  std::vector<at::Tensor> result_tensors{};  ///< their values
  std::vector<std::string> sites{};          ///< for each instruction, the place in the user's code; may be empty
};

/// A tensor that keeps its values, such as a parameter, and its name.
using Named = std::pair<std::string, at::Tensor>;

/// Calls `function` without gradients and records its operators below autograd, so that composite operators are
/// decomposed. Tensors get the geometry in which the function receives them.
/// Params: inputs – the arguments
///         named  – tensors that keep their values; the program refers to them by name
///         sites  – whether to find the place of each operator in the user's code, which takes up to milliseconds each
/// Throws: c10::ValueError if the function reads values on the host, or if the sizes of a result depend on values. It is
///         also thrown if the function writes an argument or a named tensor, or uses a tensor that is not plain.
///         Exceptions of the function
RecordedCall record_call(const Forward& function, const std::vector<at::Tensor>& inputs, std::span<const Named> named,
                         bool sites);

}  // namespace bellows::export_detail
