#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <string>
#include <vector>

#include "bellows/runtime/backend.h"

namespace bellows::runtime {

/// A folder that is deleted with the object.
class TestFolder {
 public:
  TestFolder();
  ~TestFolder();
  TestFolder(const TestFolder&) = delete;
  TestFolder& operator=(const TestFolder&) = delete;
  std::string operator/(const std::string& name) const { return (path_ / name).string(); }

 private:
  std::filesystem::path path_;
};

/// The model of the tests: softmax(linear(relu(linear(x)))) and the mean of the logits. x is [batch, 8], and the outputs
/// are [batch, 4] and [batch]. package.py compiles the same model.
std::vector<at::Tensor> test_model(const at::Tensor& x);
at::Tensor test_input(int64_t batch);

void write_script(const std::string& path);
void write_program(const std::string& path);
void write_onnx(const std::string& path);  ///< only in builds with ONNX

/// What a file states about its tensors.
struct Statement {
  bool types = true;           ///< dtypes and sizes of inputs
  bool output_types = true;    ///< dtypes and sizes of outputs
  int64_t smallest_batch = 1;  ///< of compiled packages
};

/// Checks everything that InferenceModel and InferenceBackend promise.
void expect_contract(const InferenceBackend& backend, const std::string& file, const Statement& statement = {});

/// Loads the file truncated at 50 places. Each of them must throw c10::ValueError.
void expect_truncated_files_throw(const InferenceBackend& backend, const std::string& file);

}  // namespace bellows::runtime
