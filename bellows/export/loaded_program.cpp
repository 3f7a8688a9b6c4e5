#include <torch/version.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "bellows/compile/jit/kernel_compiler.h"
#include "bellows/compile/jit/stored_kernels.h"
#include "bellows/core/error.h"
#include "bellows/core/log.h"
#include "bellows/export/artifact_file.h"
#include "bellows/export/program.h"
#include "bellows/export/program_session.h"
#include "bellows/kernels/parallel.h"

namespace bellows {

namespace {

using compile_detail::KernelCompiler;
using compile_detail::StoredKernels;
using export_detail::ArtifactFile;
using export_detail::ArtifactSection;
using export_detail::ProgramContent;
using export_detail::ProgramSession;
using FilePointer = std::shared_ptr<const ArtifactFile>;

/// Returns: a storage over the bytes of a mapped file, which stays open as long as the storage
c10::Storage storage_over(const FilePointer& file, io::ByteSpan bytes) {
  auto* const owner = new FilePointer(file);
  void* const data = const_cast<std::byte*>(bytes.data());
  c10::DataPtr pointer(
      data, owner, [](void* context) { delete static_cast<FilePointer*>(context); }, c10::kCPU);
  return {c10::Storage::use_byte_size_t(), bytes.size(), std::move(pointer)};
}

at::Tensor tensor_over(const FilePointer& file, io::ByteSpan bytes) {
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(
      storage_over(file, bytes), c10::DispatchKeySet(c10::DispatchKey::CPU), caffe2::TypeMeta::Make<uint8_t>());
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous({static_cast<int64_t>(bytes.size())});
  return tensor;
}

/// Returns: the kernels for this processor
std::shared_ptr<compile_detail::KernelProvider> kernels_of(const ArtifactFile& file, bool same_processor) {
  const bool portable = !same_processor && compile_detail::can_run_target(KernelCompiler::Target::x86_64_v3);
  std::map<std::string, std::string_view> libraries;
  for (const ArtifactSection& section : file.sections()) {
    if (section.kind != (same_processor ? "kernel" : "portable kernel")) continue;
    file.check(section);
    libraries.emplace(section.name, io::as_text(section.bytes));
  }
  if (same_processor) return std::make_shared<StoredKernels>(std::move(libraries));
  auto cache = std::make_shared<compile_detail::KernelCache>();
  if (cache->can_compile()) return cache;
  if (!portable) libraries.clear();
  if (libraries.empty())
    log_warn(file.path(),
             ": there are no kernels for this processor, and no C++ compiler. libtorch's operators run "
             "instead, which is slower. Install g++ or clang++, or export with portable kernels.");
  return std::make_shared<StoredKernels>(std::move(libraries));
}

/// A program as a model without parameters.
class ProgramModel final : public Model::Impl {
 public:
  explicit ProgramModel(LoadedProgram program) : program_(std::move(program)) {}
  at::Tensor forward(const at::Tensor& input) override { return program_(input); }
  std::vector<at::Tensor> forward_all(const std::vector<at::Tensor>& inputs) override { return program_.run(inputs); }
  std::vector<ModelInput> inputs() const override {
    std::vector<ModelInput> inputs;
    for (const ProgramTensor& input : program_.inputs()) inputs.push_back({input.name});
    return inputs;
  }
  std::vector<std::string> outputs() const override {
    std::vector<std::string> outputs;
    for (const ProgramTensor& output : program_.outputs()) outputs.push_back(output.name);
    return outputs;
  }
  NamedTensors named_parameters() const override { return {}; }
  NamedTensors named_buffers() const override { return {}; }
  void set_training(bool on) override {
    TORCH_CHECK_VALUE(!on, "a compiled program cannot be trained. Train the original model, and export it again.");
  }
  bool training() const override { return false; }
  void to(c10::Device device) override {
    TORCH_CHECK_VALUE(device.is_cpu(), "a compiled program runs on the CPU, got ", device, ".");
  }

 private:
  LoadedProgram program_;
};

}  // namespace

class LoadedProgram::Impl {
 public:
  Impl(const std::string& path, const LoadProgramOptions& options) : file_(std::make_shared<ArtifactFile>(path)) {
    using Json = nlohmann::json;
    const Json header = Json::parse(file_->content());
    TORCH_CHECK_VALUE(header.value("libtorch", "") == TORCH_VERSION, "cannot load ", path, ": expected libtorch ",
                      TORCH_VERSION, ", the program was exported with ", header.value("libtorch", "another version"),
                      ". Export the model again with this version.");
    const bool same_processor = header.value("processor", "") == compile_detail::processor_digest();
    for (const ArtifactSection& section : file_->sections()) {
      if (section.kind == "weight") weights_.emplace(section.name, &section);
    }
    const auto constants = std::make_shared<graph::ConstantStore>();
    if (same_processor) add_packed(*constants);
    try {
      const auto storage_of = [&](const std::string& name) { return storage_over(file_, weights_.at(name)->bytes); };
      ProgramContent content = ProgramContent::from_json({text("operators"), text("rest")}, storage_of);
      const auto check = [this](const std::string& name) { file_->check(*weights_.at(name)); };
      session_ = std::make_unique<ProgramSession>(std::move(content), kernels_of(*file_, same_processor), constants,
                                                  options, check);
    } catch (const std::exception& error) {
      TORCH_CHECK_VALUE(false, "cannot load ", path, ": ", user_message(error));
    }
  }

  ProgramSession& session() { return *session_; }

 private:
  std::string text(std::string_view name) const {
    for (const ArtifactSection& section : file_->sections()) {
      if (section.kind != "program" || section.name != name) continue;
      file_->check(section);
      return std::string(io::as_text(section.bytes));
    }
    TORCH_CHECK_VALUE(false, "the file has no part `", name, "`.");
  }

  void add_packed(graph::ConstantStore& constants) const {
    std::vector<const ArtifactSection*> packed;
    for (const ArtifactSection& section : file_->sections()) {
      if (section.kind != "packed") continue;
      packed.push_back(&section);
      constants.add(section.name, tensor_over(file_, section.bytes));
    }
    kernels::parallel_chunks(static_cast<int64_t>(packed.size()), [&](int64_t i) { file_->check(*packed[i]); });
  }

  FilePointer file_;
  std::map<std::string, const ArtifactSection*> weights_;
  std::unique_ptr<ProgramSession> session_;
};

LoadedProgram::LoadedProgram(const std::string& path, const LoadProgramOptions& options)
    : impl_(std::make_shared<Impl>(path, options)) {}

const std::vector<ProgramTensor>& LoadedProgram::inputs() const {
  return impl_->session().content().inputs;
}
const std::vector<ProgramTensor>& LoadedProgram::outputs() const {
  return impl_->session().content().outputs;
}
std::vector<at::Tensor> LoadedProgram::run(std::span<const at::Tensor> inputs) const {
  return impl_->session().run(inputs);
}
Model LoadedProgram::model() const {
  return {"program", std::make_shared<ProgramModel>(*this)};
}
std::string LoadedProgram::explain() const {
  return impl_->session().explain();
}

}  // namespace bellows
