#include <link.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <set>
#include <utility>

#include "bellows/core/error.h"
#include "bellows/core/model.h"
#include "bellows/runtime/example_inputs.h"
#include "bellows/train/inference/model_evaluation.h"
#include "cli/deploy/deployment.h"
#include "cli/interrupt.h"
#include "cli/option_values.h"
#include "cli/terminal.h"

namespace bellows::cli {

namespace {

namespace fs = std::filesystem;
using runtime::ComparedModel;

constexpr double tolerance_fp32 = 1e-3;

/// A loaded file as a model, for evaluate().
class FileModel final : public Model::Impl {
 public:
  explicit FileModel(std::shared_ptr<runtime::InferenceModel> model) : model_(std::move(model)) {}
  std::vector<at::Tensor> forward_all(const std::vector<at::Tensor>& inputs) override {
    std::vector<at::Tensor> given;
    for (const at::Tensor& input : inputs)
      if (input.defined() && given.size() < model_->inputs().size()) given.push_back(input);
    return model_->run(given);
  }
  at::Tensor forward(const at::Tensor& input) override { return forward_all({input}).at(0); }
  NamedTensors named_parameters() const override { return {}; }
  NamedTensors named_buffers() const override { return {}; }
  void set_training(bool) override {}
  bool training() const override { return false; }
  using Model::Impl::to;
  void to(c10::Device) override {}

 private:
  std::shared_ptr<runtime::InferenceModel> model_;
};

std::set<std::string> loaded_libraries() {
  std::set<std::string> names;
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* context) {
        if (info->dlpi_name && *info->dlpi_name) static_cast<std::set<std::string>*>(context)->insert(info->dlpi_name);
        return 0;
      },
      &names);
  return names;
}

uint64_t file_bytes(const std::string& path) {
  std::error_code error;
  const auto size = fs::file_size(path, error);
  return error ? 0 : size;
}

uint64_t model_bytes(const std::string& path) {
  uint64_t sum = 0;
  for (const auto& entry : fs::directory_iterator(fs::path(path).parent_path()))
    if (entry.is_regular_file()) sum += entry.file_size();
  return sum;
}

bool is_of(const std::string& library, const std::string& backend) {
  const std::string name = fs::path(library).filename().string();
  if (backend == "onnxruntime") return name.find("onnxruntime") != std::string::npos;
  return backend == "openvino" && (name.find("openvino") != std::string::npos || name.find("tbb") != std::string::npos);
}

ImageSize image_of(const DeployRow& row) {
  ImageSize size{.dtype = row.file.dtype,
                 .backend = row.measured.backend,
                 .format = row.file.format,
                 .command = file_bytes("/proc/self/exe"),
                 .model = row.model_bytes};
  for (const std::string& library : loaded_libraries()) {
    if (is_of(library, row.measured.backend))
      size.backend_libraries += file_bytes(library);
    else if (!is_of(library, "onnxruntime") && !is_of(library, "openvino") &&
             library.find("/model.") == std::string::npos)
      size.libraries += file_bytes(library);
  }
  return size;
}

class Measurement {
 public:
  Measurement(const Candidates& candidates, const DeployArguments& arguments,
              const std::function<void(const std::string&)>& progress)
      : candidates_(candidates), arguments_(arguments), progress_(progress) {}

  Deployment run() {
    result_.name = candidates_.name;
    result_.target = arguments_.target;
    result_.described_inputs = candidates_.described_inputs;
    result_.described_outputs = candidates_.described_outputs;
    compare();
    if (candidates_.has_data) measure_accuracy();
    for (DeployRow& row : result_.rows) judge(row);
    choose();
    for (const char* dtype : {"fp32", "int8"}) add_image(dtype);
    if (!candidates_.trained) result_.images.push_back(image_of(result_.rows[result_.chosen]));
    return std::move(result_);
  }

 private:
  void compare() {
    wanted_ = split_list(arguments_.triton ? "libtorch,onnxruntime" : arguments_.backends);
    for (const std::string& name : wanted_) runtime::backend(name);  // throws if there is none
    std::vector<std::string> files;
    for (const CandidateFile& file : candidates_.files)
      if (!file.path.empty() && is_read(file.path)) files.push_back(file.path);
    std::vector<ComparedModel> measured;
    if (!files.empty()) measured = runtime::compare_models(files, comparison_options());
    for (const CandidateFile& file : candidates_.files) {
      if (file.path.empty()) result_.rows.push_back({.file = file, .reason = file.problem});
      for (const ComparedModel& one : measured) {
        if (one.file != file.path || one.absent) continue;
        result_.rows.push_back({.file = file, .measured = one, .model_bytes = model_bytes(file.path)});
      }
    }
  }

  bool is_wanted(const std::string& backend) const {
    return wanted_.empty() || std::ranges::find(wanted_, backend) != wanted_.end();
  }
  /// Whether one of the back ends reads the file. libtorch computes the expected results.
  bool is_read(const std::string& path) const {
    return std::ranges::any_of(runtime::backends(), [&](const runtime::InferenceBackend* one) {
      return one->accepts(path) && (is_wanted(one->name()) || one->name() == "libtorch");
    });
  }

  runtime::ComparisonOptions comparison_options() const {
    runtime::ComparisonOptions options{.seconds = arguments_.seconds};
    options.backends = wanted_;
    if (!wanted_.empty() && !is_wanted("libtorch")) options.backends.emplace_back("libtorch");  // the expected results
    options.load.threads = arguments_.threads;
    options.tolerance = arguments_.tolerance;
    options.stop = [] { return Interrupt::requested(); };
    options.progress = progress_;
    options.inputs = [this](const std::vector<runtime::TensorInfo>& infos) {
      if (!candidates_.inputs.empty()) return candidates_.inputs;
      for (const runtime::TensorInfo& info : infos)
        TORCH_CHECK_VALUE(info.dtype != c10::ScalarType::Undefined, "the file does not state the sizes of input \"",
                          info.name, "\". Deploy the run folder instead, or a file in another format.");
      return runtime::example_inputs(infos, {.batch_size = arguments_.batch_size, .length = arguments_.length});
    };
    return options;
  }

  double accuracy_of(const train::TrainedModel& model) const {
    return train::evaluate(model, {.data = arguments_.data, .split = arguments_.split}).evaluation.accuracy;
  }

  void measure_accuracy() {
    result_.accuracy = accuracy_of(*candidates_.trained);
    if (!std::isfinite(result_.accuracy)) return;
    for (DeployRow& row : result_.rows) {
      if (Interrupt::requested()) return;
      if (row.measured.calls.empty()) continue;
      if (progress_) progress_("Accuracy of " + row.file.dtype + " " + row.file.format + " in " + row.measured.backend);
      try {
        train::TrainedModel model = *candidates_.trained;
        model.model =
            Model(candidates_.name,
                  std::make_shared<FileModel>(
                      runtime::backend(row.measured.backend).load(row.file.path, {.threads = arguments_.threads})));
        model.quantized = false;
        row.accuracy = accuracy_of(model);
      } catch (const std::exception& error) {
        row.measured.problem = user_message(error);
      }
    }
  }

  void judge(DeployRow& row) const {
    const ComparedModel& one = row.measured;
    if (!row.reason.empty()) return;
    if (!one.problem.empty() || one.calls.empty()) {
      row.reason = one.problem.empty() ? "it was not measured" : one.problem;
      return;
    }
    if (!is_wanted(one.backend)) {
      row.reason = "it computes the expected results only, because --backends does not name it";
      return;
    }
    const double relative = one.difference ? one.difference->relative : 0;
    const bool exact = row.file.dtype == "fp32" || row.file.dtype.empty();
    if (std::isfinite(row.accuracy)) {
      const double drop = 100 * (result_.accuracy - row.accuracy);
      if (drop > arguments_.max_drop)
        row.reason = "the accuracy falls by " + number("%.2f", drop) + " points, and at most " +
                     number("%g", arguments_.max_drop) + " are accepted";
    } else if (relative > (exact ? std::min(tolerance_fp32, arguments_.tolerance) : arguments_.tolerance)) {
      row.reason = "the results differ by " + number("%.2g", relative) + ", and at most " +
                   number("%g", exact ? std::min(tolerance_fp32, arguments_.tolerance) : arguments_.tolerance) +
                   " is accepted";
    }
    row.accepted = row.reason.empty();
  }

  const DeployRow* fastest(const std::string& dtype) const {
    const DeployRow* best = nullptr;
    for (const DeployRow& row : result_.rows) {
      if (!row.accepted || (!dtype.empty() && row.file.dtype != dtype)) continue;
      if (!best || row.measured.median_s < best->measured.median_s) best = &row;
    }
    return best;
  }

  void choose() {
    const DeployRow* best = fastest("");
    std::string reasons;
    for (const DeployRow& row : result_.rows)
      reasons += "\n  " + row.file.dtype + " " + row.file.format +
                 (row.measured.backend.empty() ? "" : " in " + row.measured.backend) + ": " + row.reason;
    TORCH_CHECK_VALUE(best || Interrupt::requested(), "no back end is within the limits. Nothing was written.",
                      reasons);
    result_.chosen = best ? static_cast<size_t>(best - result_.rows.data()) : 0;
  }

  void add_image(const std::string& dtype) {
    if (const DeployRow* row = fastest(dtype)) result_.images.push_back(image_of(*row));
  }

  const Candidates& candidates_;
  const DeployArguments& arguments_;
  const std::function<void(const std::string&)>& progress_;
  std::vector<std::string> wanted_{};  ///< names of back ends; empty: all
  Deployment result_{};
};

}  // namespace

Deployment measure_candidates(const Candidates& candidates, const DeployArguments& arguments,
                              const std::function<void(const std::string&)>& progress) {
  return Measurement(candidates, arguments, progress).run();
}

}  // namespace bellows::cli
