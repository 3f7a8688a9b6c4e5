#include "bellows/export/program.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "bellows/core/version.h"
#include "bellows/runtime/async_queue.h"
#include "bellows/runtime/backends.h"
#include "bellows/runtime/call.h"
#include "bellows/runtime/file_kind.h"

namespace bellows::runtime {

namespace {

std::vector<TensorInfo> infos_of(const std::vector<ProgramTensor>& tensors) {
  std::vector<TensorInfo> infos;
  for (const ProgramTensor& tensor : tensors) {
    TensorInfo info{.name = tensor.name, .dtype = tensor.dtype};
    for (const std::string& size : tensor.sizes) {
      const bool fixed = !size.empty() && std::ranges::all_of(size, [](char c) { return c >= '0' && c <= '9'; });
      info.sizes.push_back(fixed ? std::stoll(size) : -1);
      info.axes.push_back(fixed ? "" : size);
    }
    infos.push_back(std::move(info));
  }
  return infos;
}

class ProgramInference final : public InferenceModel {
 public:
  ProgramInference(const std::string& path, const LoadOptions& options)
      : path_(path),
        program_(path, {.batch_invariant = options.batch_invariant}),
        threads_(thread_count(options)),
        inputs_(infos_of(program_.inputs())),
        outputs_(infos_of(program_.outputs())) {}

  const std::vector<TensorInfo>& inputs() const override { return inputs_; }
  const std::vector<TensorInfo>& outputs() const override { return outputs_; }

  std::vector<at::Tensor> run(std::span<const at::Tensor> inputs) override {
    check_inputs(path_, inputs_, inputs);
    const ThreadGuard threads(threads_);
    return program_.run(inputs);
  }

  std::future<std::vector<at::Tensor>> run_async(std::vector<at::Tensor> inputs) override {
    return queue_.add([this, inputs = std::move(inputs)] { return run(inputs); });
  }

 private:
  std::string path_;
  LoadedProgram program_;
  int64_t threads_;
  std::vector<TensorInfo> inputs_, outputs_;
  AsyncQueue queue_;  ///< last member: it runs calls until it is destroyed
};

class ProgramBackend final : public InferenceBackend {
 public:
  std::string name() const override { return "program"; }
  std::string missing() const override { return ""; }
  std::string version() const override { return BELLOWS_VERSION; }
  bool accepts(const std::string& path) const override { return file_kind(path) == FileKind::program; }
  std::unique_ptr<InferenceModel> load(const std::string& path, const LoadOptions& options) const override {
    check_options(name(), options);
    check_kind(path, name(), accepts(path));
    return std::make_unique<ProgramInference>(path, options);
  }
};

}  // namespace

std::unique_ptr<InferenceBackend> make_program_backend() {
  return std::make_unique<ProgramBackend>();
}

}  // namespace bellows::runtime
