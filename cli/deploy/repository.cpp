#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "bellows/core/error.h"
#include "bellows/serve/load/load.h"
#include "bellows/serve/server.h"
#include "bellows/system/file.h"
#include "cli/deploy/deployment.h"

namespace bellows::cli {

namespace {

namespace fs = std::filesystem;
using runtime::TensorInfo;

/// Triton's name of a back end, if it has the back end, and otherwise ours.
std::string backend_name(const std::string& backend) {
  return backend == "libtorch" ? "pytorch" : backend;
}

bool may_vary(const TensorInfo& info) {
  return !info.sizes.empty() && info.sizes[0] < 0;
}

bool is_described(const std::vector<TensorInfo>& infos) {
  return std::ranges::none_of(infos, [](const TensorInfo& info) { return info.dtype == c10::ScalarType::Undefined; });
}

/// Inputs and outputs of the chosen file, or of another file of the same model if the format does not state them.
struct Signature {
  std::vector<TensorInfo> inputs{}, outputs{};
};

Signature signature_of(const Deployment& deployment) {
  std::vector<const DeployRow*> rows{&deployment.rows[deployment.chosen]};
  for (const DeployRow& row : deployment.rows)
    if (!row.file.path.empty() && !row.measured.calls.empty()) rows.push_back(&row);
  for (const DeployRow* row : rows) {
    const auto model = runtime::backend(row->measured.backend).load(row->file.path);
    if (is_described(model->inputs()) && is_described(model->outputs())) return {model->inputs(), model->outputs()};
  }
  if (!deployment.described_outputs.empty()) return {deployment.described_inputs, deployment.described_outputs};
  TORCH_CHECK_VALUE(false,
                    "no format of the model states the dtypes and sizes of its inputs, which config.pbtxt needs.");
}

}  // namespace

void write_repository(const Deployment& deployment, const DeployArguments& arguments, const std::string& folder) {
  const DeployRow& row = deployment.rows[deployment.chosen];
  const std::string version = folder + "/" + deployment.name + "/1";
  fs::create_directories(version);
  for (const auto& entry : fs::directory_iterator(fs::path(row.file.path).parent_path()))
    fs::copy_file(entry.path(), version + "/" + entry.path().filename().string());
  const Signature signature = signature_of(deployment);
  const bool batched =
      std::ranges::all_of(signature.inputs, may_vary) && std::ranges::all_of(signature.outputs, may_vary);
  const bool positional = fs::path(row.file.path).extension() == ".pt";
  write_text_file(
      folder + "/" + deployment.name + "/config.pbtxt",
      triton_config(deployment.name, backend_name(row.measured.backend), batched ? arguments.max_batch_size : 0,
                    positional, signature.inputs, signature.outputs));
}

double try_repository(const Deployment& deployment, const std::vector<at::Tensor>& inputs, const std::string& folder) {
  serve::ServerOptions server_options{.repository = folder};
  server_options.http.port = 0;
  serve::Server server(server_options);
  server.wait_until_loaded();
  serve::LoadOptions load{.url = "127.0.0.1:" + std::to_string(server.port()), .model = deployment.name};
  load.warmup_s = 0.2;
  load.window_s = 0.5;
  load.max_windows = 1;
  const Signature signature = signature_of(deployment);
  const bool positional = fs::path(deployment.rows[deployment.chosen].file.path).extension() == ".pt";
  for (size_t i = 0; i < signature.inputs.size(); ++i) {
    std::vector<int64_t> sizes = signature.inputs[i].sizes;
    for (size_t axis = 0; axis < sizes.size(); ++axis) {
      const bool given =
          i < inputs.size() && inputs[i].defined() && static_cast<size_t>(inputs[i].dim()) == sizes.size();
      if (sizes[axis] < 0) sizes[axis] = axis == 0 ? 1 : given ? inputs[i].size(static_cast<int64_t>(axis)) : 16;
    }
    load.shapes[positional ? "INPUT__" + std::to_string(i) : signature.inputs[i].name] = sizes;
  }
  load.vocabulary = 2;  // a class or token that every model has
  const serve::LoadReport report = serve::measure_load(load);
  const serve::LevelResult& level = report.levels.at(0);
  TORCH_CHECK(level.failed == 0 && level.requests > 0, "the deployed model fails in the server: ", level.first_error);
  return level.latency.p50_s;
}

}  // namespace bellows::cli
