#include <torch/version.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "bellows/compile/jit/kernel_compiler.h"
#include "bellows/compile/jit/stored_kernels.h"
#include "bellows/core/error.h"
#include "bellows/core/version.h"
#include "bellows/export/artifact_file.h"
#include "bellows/export/axes.h"
#include "bellows/export/comparison.h"
#include "bellows/export/program.h"
#include "bellows/export/program_session.h"
#include "bellows/export/recordings.h"

namespace bellows {

namespace {

using compile_detail::KernelCache;
using compile_detail::KernelCompiler;
using compile_detail::RememberedKernels;
using export_detail::ArtifactSection;
using export_detail::described;
using export_detail::Forward;
using export_detail::Named;
using export_detail::ProgramContent;
using export_detail::ProgramSession;
using export_detail::ProgramTemplate;
using export_detail::RecordedCall;
using export_detail::RecordingOptions;
using export_detail::Recordings;
using Inputs = std::vector<at::Tensor>;

std::string name_of(const export_detail::InputSource& source, size_t index) {
  return source.name.empty() ? c10::str("tensor ", index) : source.name;
}

ProgramContent content_of(const Recordings& recordings, const std::optional<c10::ScalarType>& autocast) {
  ProgramContent content{.program = ProgramTemplate::of(recordings.calls, recordings.symbols),
                         .places = recordings.places,
                         .autocast = autocast};
  const RecordedCall& first = recordings.calls.front();
  for (size_t i = 0; i < first.sources.size(); ++i) {
    const export_detail::InputSource& source = first.sources[i];
    if (source.argument >= 0)
      content.sources.push_back({.argument = source.argument});
    else
      content.sources.push_back({.weight = name_of(source, i), .storage = source.tensor.storage()});
  }
  for (size_t i = 0; i < recordings.inputs[0].size(); ++i)
    content.inputs.push_back(
        described(recordings.input_names[i], recordings, [&](size_t call) { return recordings.inputs[call][i]; }));
  for (size_t i = 0; i < first.results.size(); ++i)
    content.outputs.push_back(described(recordings.output_names[i], recordings,
                                        [&](size_t call) { return recordings.calls[call].result_tensors[i]; }));
  return content;
}

struct Stored {
  std::vector<std::string> texts;  ///< keeps bytes of sections
  std::vector<ArtifactSection> sections;
  uint64_t weights = 0, packed = 0;
};

io::ByteSpan bytes_of(const c10::Storage& storage) {
  return {static_cast<const std::byte*>(storage.data()), storage.nbytes()};
}

void add_weights(const ProgramContent& content, Stored& stored) {
  for (const ProgramContent::Source& source : content.sources) {
    if (source.argument >= 0) continue;
    stored.sections.push_back({.kind = "weight", .name = source.weight, .bytes = bytes_of(source.storage)});
    stored.weights += source.storage.nbytes();
  }
}

void add_packed(const std::map<std::string, at::Tensor>& constants, Stored& stored) {
  for (const auto& [key, tensor] : constants) {
    stored.sections.push_back({.kind = "packed", .name = key, .bytes = bytes_of(tensor.storage())});
    stored.packed += tensor.storage().nbytes();
  }
}

void add_kernels(const RememberedKernels& kernels, bool portable, Stored& stored) {
  const auto libraries = kernels.libraries();
  const auto compiler = portable && !libraries.empty() ? KernelCompiler::find() : std::nullopt;
  stored.texts.reserve(2 * libraries.size());
  const auto add = [&](const char* kind, const std::string& source, std::string library) {
    stored.texts.push_back(std::move(library));
    stored.sections.push_back(
        {.kind = kind, .name = compile_detail::source_name(source), .bytes = io::as_bytes(stored.texts.back())});
  };
  for (const auto& [source, library] : libraries) {
    add("kernel", source, library->content());
    if (compiler) add("portable kernel", source, compiler->compile(source, {}, KernelCompiler::Target::x86_64_v3));
  }
}

ProgramReport report_of(const ProgramContent& content, const Recordings& recordings) {
  ProgramReport report{.inputs = content.inputs, .outputs = content.outputs};
  report.operators = static_cast<int64_t>(content.program.base().program.instructions.size());
  report.dynamic_axes = recorded_sizes(recordings);
  return report;
}

std::string header_of() {
  return nlohmann::json{
      {"bellows", BELLOWS_VERSION}, {"libtorch", TORCH_VERSION}, {"processor", compile_detail::processor_digest()}}
      .dump();
}

RecordingOptions recording_options(const ProgramOptions& options) {
  return {options.input_names, options.output_names, options.dynamic_axes, options.sizes, "export_program"};
}

ProgramReport export_recorded(const Forward& function, const Inputs& inputs, std::span<const Named> named,
                              const std::string& path, const ProgramOptions& options, RecordingOptions recording) {
  for (const at::Tensor& input : inputs)
    TORCH_CHECK_VALUE(input.defined() && input.device().is_cpu(), "export_program: expected CPU tensors as inputs.");
  const Recordings recordings = record_named(function, inputs, named, std::move(recording));
  const ProgramContent content = content_of(recordings, options.autocast);
  const auto kernels = std::make_shared<RememberedKernels>(std::make_shared<KernelCache>());
  const auto constants = std::make_shared<graph::ConstantStore>();
  ProgramSession session(content, kernels, constants, {}, {});
  export_detail::Comparison comparison(recordings, function, "export_program", "program",
                                       options.autocast.has_value() || export_detail::is_quantized(recordings));
  const auto run = [&](const Inputs& x) { return session.run(x); };
  comparison.check_recorded(run, 0);
  const auto packed = constants->used();  // of the first sizes only: other sizes may need other orders
  for (size_t i = 1; i < recordings.calls.size(); ++i) comparison.check_recorded(run, i);
  comparison.check_small(run);

  Stored stored;
  const ProgramContent::Json json = content.to_json();
  stored.sections = {{.kind = "program", .name = "operators", .bytes = io::as_bytes(json.operators)},
                     {.kind = "program", .name = "rest", .bytes = io::as_bytes(json.rest)}};
  add_weights(content, stored);
  add_packed(packed, stored);
  add_kernels(*kernels, options.portable, stored);
  export_detail::write_artifact(path, header_of(), stored.sections);
  ProgramReport report = report_of(content, recordings);
  report.file = path;
  report.weight_bytes = stored.weights;
  report.packed_bytes = stored.packed;
  report.kernels = static_cast<int64_t>(kernels->libraries().size());
  report.bytes = std::filesystem::file_size(path);
  return report;
}

}  // namespace

ProgramReport export_program(const Model& model, const std::vector<at::Tensor>& inputs, const std::string& path,
                             const ProgramOptions& options) {
  RecordingOptions recording = with_names_of(model, inputs.size(), recording_options(options));
  const EvalMode evaluation(model);
  const NamedTensors tensors = model.state_dict();
  const Forward forward = [&model](const Inputs& x) { return model.forward_all(x); };
  return export_recorded(forward, inputs, tensors, path, options, std::move(recording));
}

ProgramReport export_program(const std::function<Inputs(const Inputs&)>& function, const Inputs& inputs,
                             const std::string& path, const ProgramOptions& options) {
  return export_recorded(function, inputs, options.weights, path, options, recording_options(options));
}

}  // namespace bellows
