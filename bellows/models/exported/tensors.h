#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <vector>

#include "bellows/models/exported/archive.h"
#include "bellows/models/exported/schema.h"

namespace bellows::models::exported {

/// The form of a tensor in its file of raw bytes. The file holds a complete storage, which several tensors may share.
struct StoredForm {
  std::string record;  ///< name of the file in the archive
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  std::vector<int64_t> sizes{}, strides{};
  int64_t offset = 0;
  c10::Device device = c10::kCPU;  ///< when the model was exported
  bool is_parameter = false, requires_grad = false;

  /// Returns a view of this form. Params: bytes – one-dimensional tensor of bytes
  at::Tensor view(const at::Tensor& bytes) const;
};

/// The tensors of a program, by name. Tensors that shared storage share it again. Names that refer to the same elements,
/// such as tied weights, are the same tensor.
class ExportedTensors {
 public:
  /// Loads the parameters, buffers and constants onto the CPU.
  /// Throws: c10::ValueError if the list of tensors or a tensor in it is invalid
  ExportedTensors(const ExportedArchive& archive, const std::string& program);

  /// Throws: c10::ValueError if there is none with this name
  const at::Tensor& at(const std::string& name) const;
  const StoredForm& form(const std::string& name) const { return forms_.at(name); }
  const std::map<std::string, StoredForm>& forms() const { return forms_; }
  /// Uses the parameters and buffers of `other` instead of its own ones. Constants stay.
  /// Throws: c10::ValueError if a tensor is missing in `other`, or has another shape or dtype
  void share(const ExportedTensors& other);
  /// Moves all tensors. The tensor objects stay the same, and shared storages stay shared.
  void to(c10::Device device);
  /// Adds the files of weights and constants with the present values of the tensors. The bytes of a file that no tensor
  /// covers do not change.
  void add_files(const ExportedArchive& archive, std::map<std::string, at::Tensor>& files) const;
  /// The device of most parameters when the model was exported.
  c10::Device exported_device() const;

 private:
  void load(const ExportedArchive& archive, const std::string& folder, const std::string& config);
  void add(const ExportedArchive& archive, const std::string& name, StoredForm form);

  std::map<std::string, StoredForm> forms_;
  std::map<std::string, at::Tensor> tensors_;
  std::map<std::string, at::Tensor> files_;  ///< bytes of the files while they are loaded
  std::string path_;
};

}  // namespace bellows::models::exported
