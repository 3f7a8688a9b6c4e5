#include "bellows/runtime/script.h"

#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <utility>

#include "bellows/core/error.h"
#include "bellows/models/exported/exported_model.h"
#include "bellows/models/torchscript.h"
#include "bellows/runtime/async_queue.h"
#include "bellows/runtime/call.h"
#include "bellows/runtime/file_kind.h"

namespace bellows::runtime {

namespace {

using Tensors = std::vector<at::Tensor>;

/// The cause at the end of the interpreter's message, without the trace of the program.
std::string cause_of(const c10::Error& error) {
  const std::string message = user_message(error), mark = "RuntimeError: ";
  const size_t at = message.rfind(mark);
  std::string cause = at == std::string::npos ? message : message.substr(at + mark.size());
  while (!cause.empty() && cause.back() == '\n') cause.pop_back();
  return cause;
}

class ScriptModel final : public InferenceModel {
 public:
  ScriptModel(const std::string& path, const LoadOptions& options, const MakeScriptForward& forward)
      : path_(path), threads_(thread_count(options)) {
    const bool exported = file_kind(path) == FileKind::exported_program;
    const Model model = exported ? load_exported(path) : models::load_torchscript(path);
    model.eval();
    for (const ModelInput& input : model.inputs()) {
      inputs_.push_back({.name = input.name, .dtype = c10::ScalarType::Undefined});
      required_ += !input.optional;
    }
    for (const std::string& output : model.outputs())
      outputs_.push_back({.name = output, .dtype = c10::ScalarType::Undefined});
    forward_ = forward(model, options);
  }

  const std::vector<TensorInfo>& inputs() const override { return inputs_; }
  const std::vector<TensorInfo>& outputs() const override { return outputs_; }

  Tensors run(std::span<const at::Tensor> inputs) override {
    const size_t count = std::clamp(inputs.size(), required_, inputs_.size());
    check_inputs(path_, std::span(inputs_).first(count), inputs);
    const ThreadGuard threads(threads_);
    const c10::InferenceMode mode;
    try {
      return ordinary_tensors(forward_({inputs.begin(), inputs.end()}));
    } catch (const c10::OutOfMemoryError&) {
      throw;
    } catch (const c10::Error& error) {
      std::string given;
      for (const at::Tensor& one : inputs)
        given += c10::str(given.empty() ? "" : ", ", one.scalar_type(), " ", one.sizes());
      TORCH_CHECK_VALUE(false, path_, ": the program failed with inputs ", given, ": ", cause_of(error));
    }
  }

  std::future<Tensors> run_async(Tensors inputs) override {
    return queue_.add([this, inputs = std::move(inputs)] { return run(inputs); });
  }

 private:
  std::string path_;
  int64_t threads_;
  size_t required_ = 0;
  std::vector<TensorInfo> inputs_{}, outputs_{};
  ScriptForward forward_;
  AsyncQueue queue_;  ///< last member: it runs calls until it is destroyed
};

class ScriptBackend final : public InferenceBackend {
 public:
  ScriptBackend(std::string name, std::string version, MakeScriptForward forward)
      : name_(std::move(name)), version_(std::move(version)), forward_(std::move(forward)) {}

  std::string name() const override { return name_; }
  std::string missing() const override { return ""; }
  std::string version() const override { return version_; }
  bool accepts(const std::string& path) const override {
    const FileKind kind = file_kind(path);
    return kind == FileKind::torchscript || kind == FileKind::exported_program;
  }
  std::unique_ptr<InferenceModel> load(const std::string& path, const LoadOptions& options) const override {
    check_options(name_, options, /*autocast=*/true);
    check_kind(path, name_, accepts(path));
    return std::make_unique<ScriptModel>(path, options, forward_);
  }

 private:
  const std::string name_, version_;
  const MakeScriptForward forward_;
};

}  // namespace

std::unique_ptr<InferenceBackend> make_script_backend(std::string name, std::string version,
                                                      MakeScriptForward forward) {
  return std::make_unique<ScriptBackend>(std::move(name), std::move(version), std::move(forward));
}

}  // namespace bellows::runtime
