#include "bellows/report/tensorboard_trace.h"

#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>

#include "bellows/report/json_text.h"
#include "bellows/system/file.h"

namespace bellows {

namespace {

using nlohmann::json;

/// Replaces the category and the name of an event by those of torch.profiler. Other events stay unchanged.
void rename_event(json& event) {
  const std::string category = event.value("cat", ""), name = event.value("name", "");
  if (category == "op" || category == "torchscript") {
    event["cat"] = "cpu_op";
  } else if (category == "backward") {
    event["cat"] = "cpu_op";
    event["name"] = "autograd::engine::evaluate_function: " + name;
  } else if (category == "step") {
    event["cat"] = "user_annotation";
    event["name"] = "ProfilerStep#1";
  } else if (category == "scope" && name == "load") {
    event["cat"] = "cpu_op";  // the plugin counts no annotations as time of the DataLoader
    event["name"] = "enumerate(DataLoader)#Loader.__next__";
  } else if (category == "scope") {
    event["cat"] = "user_annotation";
    if (name == "optimizer") event["name"] = "Optimizer.step#Optimizer.step";
  } else if (category == "communication") {
    event["cat"] = "cpu_op";
    event["name"] = "gloo:" + name;
  }
}

/// Replaces the arguments of an event. The plugin computes the bytes of a collective from sizes and types.
void rename_arguments(json& event, int64_t number) {
  json arguments = {{"External id", number}};
  const json own = event.value("args", json::object());
  if (own.contains("sizes")) arguments["Input Dims"] = own["sizes"];
  if (own.contains("sequence")) arguments["Sequence number"] = own["sequence"];
  if (own.contains("bytes")) {
    arguments["Input Dims"] = json::array({json::array({own["bytes"]})});
    arguments["Input type"] = json::array({"unsigned char"});
  }
  event["args"] = std::move(arguments);
}

}  // namespace

std::string tensorboard_trace(const TraceWriter& trace, const TensorboardRank& rank) {
  json document = json::parse(trace.to_json());
  int64_t number = 0;
  for (json& event : document["traceEvents"]) {
    if (event["ph"] != "X") continue;
    rename_event(event);
    rename_arguments(event, ++number);
  }
  document["schemaVersion"] = 1;
  document["deviceProperties"] = json::array();
  if (rank.ranks > 1)
    document["distributedInfo"] = {{"backend", "gloo"}, {"rank", rank.rank}, {"world_size", rank.ranks}};
  return json_text(document);
}

std::string write_tensorboard_trace(const std::string& folder, const TraceWriter& trace, const TensorboardRank& rank) {
  std::error_code ignored;  // write_text_file() reports the error
  std::filesystem::create_directories(folder, ignored);
  const std::string name = "rank_" + std::to_string(rank.rank) + "." + std::to_string(rank.time_ms) + ".pt.trace.json";
  const std::string path = std::filesystem::path(folder) / name;
  write_text_file(path, tensorboard_trace(trace, rank));
  return path;
}

}  // namespace bellows
