#include <ATen/core/grad_mode.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
#include <torch/version.h>

#include <memory>
#include <utility>

#include "bellows/core/error.h"
#include "bellows/io/archives/zip.h"
#include "bellows/runtime/async_queue.h"
#include "bellows/runtime/backends.h"
#include "bellows/runtime/call.h"
#include "bellows/runtime/file_kind.h"
#include "bellows/runtime/package_inputs.h"
#include "bellows/system/file.h"

namespace bellows::runtime {

namespace {

/// Checks all bytes of a package, and returns the source of its wrapper.
std::string wrapper_source(const std::string& path) {
  const MappedFile file(path);
  const io::ZipReader zip(file.bytes(), path);
  std::string source;
  bool library = false;
  for (const io::ZipEntry& entry : zip.entries()) {
    if (entry.stored) zip.verify(entry);
    if (entry.name.find("/data/aotinductor/model/") == std::string::npos) continue;
    library |= entry.name.ends_with(".so");
    if (entry.stored && entry.name.ends_with(".wrapper.cpp")) source = io::as_text(entry.data);
  }
  TORCH_CHECK_VALUE(library, path, ": the package has no shared library of a model with the name \"model\".");
  TORCH_CHECK_VALUE(!source.empty(), path,
                    ": the package does not contain the source of its wrapper, from which the dtypes and sizes of its "
                    "inputs are read. Compile it with torch._inductor.aoti_compile_and_package of libtorch ",
                    TORCH_VERSION, ".");
  return source;
}

class PackageModel final : public InferenceModel {
 public:
  PackageModel(const std::string& path, const LoadOptions& options) : path_(path), threads_(thread_count(options)) {
    const std::string source = wrapper_source(path);
    package_inputs_ = package_inputs(source);
    TORCH_CHECK_VALUE(!package_inputs_.empty(), path,
                      ": the source of the wrapper lists no inputs. Expected a package of "
                      "libtorch ",
                      TORCH_VERSION, ".");
    for (const PackageInput& input : package_inputs_) {
      TORCH_CHECK_VALUE(input.info.dtype != c10::ScalarType::Undefined, path,
                        ": the package does not state the dtype of "
                        "input \"",
                        input.info.name, "\". Expected a package of libtorch ", TORCH_VERSION, ".");
      inputs_.push_back(input.info);
    }
    for (std::string& output : package_outputs(source))
      outputs_.push_back({.name = std::move(output), .dtype = c10::ScalarType::Undefined});
    try {
      loader_ = std::make_unique<torch::inductor::AOTIModelPackageLoader>(path);
    } catch (const std::exception& error) {
      TORCH_CHECK_VALUE(false, "cannot load ", path, ": ", user_message(error),
                        ". A package needs the libtorch and the instruction sets for which it was compiled.");
    }
  }

  const std::vector<TensorInfo>& inputs() const override { return inputs_; }
  const std::vector<TensorInfo>& outputs() const override { return outputs_; }

  std::vector<at::Tensor> run(std::span<const at::Tensor> inputs) override {
    check_inputs(path_, inputs_, inputs);
    std::vector<at::Tensor> given;
    for (size_t i = 0; i < inputs.size(); ++i) given.push_back(with_strides_of(package_inputs_[i], inputs[i], path_));
    const ThreadGuard threads(threads_);
    const at::NoGradGuard no_gradients;
    try {
      return loader_->boxed_run(std::move(given));
    } catch (const c10::OutOfMemoryError&) {
      throw;
    } catch (const std::exception& error) {
      TORCH_CHECK_VALUE(false, path_, ": the package failed: ", user_message(error));
    }
  }

  std::future<std::vector<at::Tensor>> run_async(std::vector<at::Tensor> inputs) override {
    return queue_.add([this, inputs = std::move(inputs)] { return run(inputs); });
  }

 private:
  std::string path_;
  int64_t threads_;
  std::vector<PackageInput> package_inputs_;
  std::vector<TensorInfo> inputs_, outputs_;
  std::unique_ptr<torch::inductor::AOTIModelPackageLoader> loader_;
  AsyncQueue queue_;  ///< last member: it runs calls until it is destroyed
};

class AotInductorBackend final : public InferenceBackend {
 public:
  std::string name() const override { return "aotinductor"; }
  std::string missing() const override { return ""; }
  std::string version() const override { return TORCH_VERSION; }
  bool accepts(const std::string& path) const override { return file_kind(path) == FileKind::aotinductor; }
  std::unique_ptr<InferenceModel> load(const std::string& path, const LoadOptions& options) const override {
    check_options(name(), options);
    check_kind(path, name(), accepts(path));
    return std::make_unique<PackageModel>(path, options);
  }
};

}  // namespace

std::unique_ptr<InferenceBackend> make_aotinductor_backend() {
  return std::make_unique<AotInductorBackend>();
}

}  // namespace bellows::runtime
