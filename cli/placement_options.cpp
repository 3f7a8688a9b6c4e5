#include "cli/placement_options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

#include "bellows/core/stats.h"
#include "bellows/plan/inference_plan.h"
#include "bellows/system/machine.h"
#include "bellows/train/recipe/recipe.h"
#include "cli/json_text.h"
#include "cli/option_checks.h"
#include "cli/size_option.h"
#include "cli/terminal.h"

namespace bellows::cli {

namespace {

using parallel::WeightPlace;

std::string bytes_of(int64_t bytes) {
  return format_bytes(static_cast<double>(bytes));
}

std::string device_map_text(const train::InferencePlan& plan, const parallel::DeviceMap& map,
                            const train::Recipe& recipe, int64_t budget) {
  std::string text = c10::str("Device map of ", recipe.model, " for inference with batches of ", plan.size.batch, " × ",
                              plan.size.length, "\n\n");
  const int64_t other = plan.activation_bytes + plan.buffer_bytes;
  const auto row = [&](const char* name, int64_t bytes, const std::string& comment) {
    text += pad_right(name, 10) + pad_right(bytes_of(bytes), 12) + comment + "\n";
  };
  row("device", map.device_bytes, "weights that stay in memory");
  if (!map.all_on_device()) row("", map.working_bytes, "working memory, into which other weights are loaded");
  row("", other, plan.fits_law ? "activations and buffers" : "activations and buffers (estimate)");
  row("", budget, "budget");
  if (map.host_bytes > 0) row("host", map.host_bytes, "weights, copied to the device in each batch");
  if (map.disk_bytes > 0) row("disk", map.disk_bytes, "weights, read from the file in each batch");
  size_t width = 6;
  for (const parallel::MappedModule& module : map.modules) width = std::max(width, display_width(module.name));
  text += "\n" + pad_right("module", width + 2) + "place   size\n";
  for (const parallel::MappedModule& module : map.modules) {
    text += pad_right(module.name.empty() ? "(model)" : module.name, width + 2) +
            pad_right(parallel::to_string(module.place), 8) + bytes_of(module.bytes) + "\n";
  }
  return text;
}

std::string device_map_json(const train::InferencePlan& plan, const parallel::DeviceMap& map,
                            const train::Recipe& recipe, int64_t budget) {
  nlohmann::ordered_json json = {{"model", recipe.model},
                                 {"batch", plan.size.batch},
                                 {"length", plan.size.length},
                                 {"weight_bytes", plan.weight_bytes},
                                 {"buffer_bytes", plan.buffer_bytes},
                                 {"activation_bytes", plan.activation_bytes},
                                 {"memory_bytes", budget},
                                 {"device_bytes", map.device_bytes},
                                 {"working_bytes", map.working_bytes},
                                 {"host_bytes", map.host_bytes},
                                 {"disk_bytes", map.disk_bytes}};
  json["modules"] = nlohmann::ordered_json::array();
  for (const parallel::MappedModule& module : map.modules) {
    json["modules"].push_back(
        {{"module", module.name}, {"place", parallel::to_string(module.place)}, {"bytes", module.bytes}});
  }
  return json_text(json);
}

}  // namespace

void add_weight_memory(CLI::App* verb, TrainedArguments& arguments) {
  begin_group(verb, "Memory");
  add_size(verb, "--weight-memory", arguments.weight_memory,
           "Memory for the weights, such as 4GB. Weights that do not fit are read from the file of --weights in each "
           "batch [default: all weights are in memory]");
  verb->add_option(
          "--offload-folder", arguments.offload_folder,
          "Folder for weights that are not in a safetensors file. They are written there once, and used again. "
          "Needs --weight-memory")
      ->type_name("DIR");
}

void add_device_map(CLI::App* verb, PlanArguments& arguments) {
  begin_group(verb, "Inference");
  verb->add_flag("--device-map", arguments.device_map,
                 "Show which weights fit into --memory in inference, and which are read from host memory or disk, "
                 "instead of predicting a training step");
  add_size(verb, "--host-memory", arguments.host_memory,
           "Host memory for weights that do not fit on an accelerator, such as 64GB. Needs --device-map and an "
           "accelerator as device [default: 0]");
}

int run_device_map(const PlanArguments& arguments, const train::Recipe& recipe, int64_t length) {
  if (arguments.ranks > 1 || arguments.fit > 0 || !arguments.html.empty() || !arguments.trace.empty())
    throw UsageError(
        "plan: --device-map is about inference on one device. It cannot be combined with --ranks, --fit, "
        "--html and --trace.");
  if (arguments.host_memory > 0 && recipe.device.starts_with("cpu"))
    throw UsageError(
        "plan: --host-memory is only used for models on an accelerator, but the device is cpu. For models on the CPU, "
        "--memory is the budget. Leave out --host-memory, or pass --set device=cuda.");
  check_output_file(arguments.json);
  const int64_t budget = arguments.memory > 0 ? static_cast<int64_t>(arguments.memory) : this_machine().memory_bytes;
  const train::InferencePlan plan = train::plan_inference(recipe, {recipe.batch_size, length});
  const parallel::DeviceMap map = plan.device_map(budget, static_cast<int64_t>(arguments.host_memory));
  if (arguments.json != "-") Terminal().print(device_map_text(plan, map, recipe, budget));
  write_json(arguments.json, device_map_json(plan, map, recipe, budget));
  return exit_done;
}

}  // namespace bellows::cli
