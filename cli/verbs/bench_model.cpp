#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "bellows/core/stats.h"
#include "bellows/io/tensors/npy.h"
#include "bellows/runtime/comparison.h"
#include "bellows/runtime/example_inputs.h"
#include "bellows/system/file.h"
#include "cli/interrupt.h"
#include "cli/json_text.h"
#include "cli/option_values.h"
#include "cli/options.h"
#include "cli/terminal.h"

namespace bellows::cli {

namespace {

using nlohmann::ordered_json;
using runtime::ComparedModel;
using runtime::TensorInfo;

at::Tensor read_npy(const std::string& path) {
  const MappedFile file(path);
  const io::NpyArray array = io::parse_npy(file.bytes(), path);
  at::Tensor tensor = at::empty(array.shape, array.dtype);
  if (!array.bytes.empty()) std::memcpy(tensor.mutable_data_ptr(), array.bytes.data(), array.bytes.size());
  return tensor;
}

c10::ScalarType dtype_of(const std::string& name) {
  static constexpr std::pair<const char*, c10::ScalarType> known[] = {
      {"float32", c10::kFloat},  {"float16", c10::kHalf}, {"bfloat16", c10::kBFloat16},
      {"float64", c10::kDouble}, {"int64", c10::kLong},   {"int32", c10::kInt},
      {"int8", c10::kChar},      {"uint8", c10::kByte},   {"bool", c10::kBool}};
  std::string list;
  for (const auto& [one, dtype] : known) {
    if (one == name) return dtype;
    list += (list.empty() ? "" : ", ") + std::string(one);
  }
  throw UsageError("--input: unknown dtype \"" + name + "\". Dtypes: " + list + ".");
}

/// "1x3x224x224" or "1x128:int64".
TensorInfo described_input(const std::string& name, const std::string& text) {
  const size_t colon = text.find(':');
  TensorInfo info{.name = name};
  if (colon != std::string::npos) info.dtype = dtype_of(text.substr(colon + 1));
  std::string sizes = text.substr(0, colon);
  for (size_t at = 0; at != std::string::npos; sizes.erase(0, at + 1)) {
    at = sizes.find('x');
    info.sizes.push_back(integer_value(sizes.substr(0, at), 1, "--input"));
    if (at == std::string::npos) break;
  }
  return info;
}

/// Creates the inputs from the options and from the description in the files.
class InputMaker {
 public:
  explicit InputMaker(const BenchModelArguments& arguments) {
    sizes_ = {.batch_size = arguments.batch_size, .length = arguments.length, .vocabulary = arguments.vocabulary};
    for (const std::string& text : arguments.sizes) {
      const auto [name, value] = named_value(text, "--size", "NAME=N");
      sizes_.sizes[name] = integer_value(value, 1, "--size");
    }
    for (const std::string& text : arguments.inputs) {
      const auto [name, value] = named_value(text, "--input", "NAME=FILE.npy or NAME=SIZES[:DTYPE]");
      if (value.ends_with(".npy"))
        arrays_.emplace(name, read_npy(value));
      else
        described_.emplace(name, described_input(name, value));
    }
  }

  std::vector<at::Tensor> operator()(std::vector<TensorInfo> infos) const {
    check_names(infos);
    std::vector<TensorInfo> random;
    for (TensorInfo& info : infos) {
      const auto found = described_.find(info.name);
      if (found != described_.end()) info = found->second;
      if (arrays_.contains(info.name)) continue;
      if (info.dtype == c10::ScalarType::Undefined)
        throw UsageError("the files do not state the sizes of input \"" + info.name +
                         "\". Pass them, such as --input " + info.name +
                         "=1x3x224x224, or add another file of the model.");
      random.push_back(info);
    }
    std::vector<at::Tensor> made = runtime::example_inputs(random, sizes_), inputs;
    size_t next = 0;
    for (const TensorInfo& info : infos) {
      const auto found = arrays_.find(info.name);
      inputs.push_back(found != arrays_.end() ? found->second : made[next++]);
    }
    return inputs;
  }

 private:
  void check_names(const std::vector<TensorInfo>& infos) const {
    std::string list;
    for (const TensorInfo& info : infos) list += (list.empty() ? "" : ", ") + info.name;
    const auto check = [&](const std::string& name) {
      if (std::ranges::none_of(infos, [&](const TensorInfo& info) { return info.name == name; }))
        throw UsageError("--input: the model has no input \"" + name + "\". Inputs: " + list + ".");
    };
    for (const auto& [name, array] : arrays_) check(name);
    for (const auto& [name, info] : described_) check(name);
  }

  runtime::ExampleSizes sizes_{};
  std::map<std::string, at::Tensor> arrays_{};
  std::map<std::string, TensorInfo> described_{};
};

runtime::ComparisonOptions options_of(const BenchModelArguments& arguments, Terminal& terminal,
                                      std::vector<at::Tensor>& inputs) {
  constexpr double tolerance_fp32 = 1e-3, tolerance_lower = 5e-2;
  runtime::ComparisonOptions options{.backends = split_list(arguments.backends), .seconds = arguments.seconds};
  options.load = {.threads = arguments.threads, .providers = split_list(arguments.providers)};
  if (arguments.dtype == "bf16") options.load.autocast = at::kBFloat16;
  options.tolerance = arguments.tolerance >= 0 ? arguments.tolerance
                      : options.load.autocast  ? tolerance_lower
                                               : tolerance_fp32;
  options.stop = [] { return Interrupt::requested(); };
  options.progress = [&terminal](const std::string& text) {
    const size_t comma = text.find(", round ");
    terminal.status(text.substr(0, comma), comma == std::string::npos ? "" : text.substr(comma + 2));
  };
  options.inputs = [make = InputMaker(arguments), &inputs](const std::vector<TensorInfo>& infos) {
    inputs = make(infos);
    return inputs;
  };
  return options;
}

std::string milliseconds(double seconds) {
  return number("%.3f", 1e3 * seconds);
}

std::string agreement(const ComparedModel& row) {
  if (row.reference) return "expected";
  if (!row.difference) return "-";
  return number("%.1e", row.difference->relative) + (row.agrees ? "" : " *");
}

std::string table_line(const ComparedModel& row) {
  return pad_right(row.backend, 12) + pad_left(milliseconds(row.median_s), 10) + pad_left(milliseconds(row.p90_s), 10) +
         pad_left(number("%.1f %%", 100 * row.spread), 8) + pad_left(std::to_string(row.calls.size()), 8) +
         pad_left(number("%.1f", row.throughput), 11) +
         pad_left(row.reference || !(row.speedup.ratio > 0) ? "" : number("%.2f×", row.speedup.ratio), 8) +
         pad_left(agreement(row), 12) + "\n";
}

std::string inputs_text(const std::vector<at::Tensor>& inputs) {
  std::string text = "Inputs:";
  for (const at::Tensor& input : inputs) {
    std::string sizes;
    for (const int64_t size : input.sizes()) sizes += (sizes.empty() ? "" : ", ") + std::to_string(size);
    text += std::string(" ") + c10::getDtypeNames(input.scalar_type()).first + " [" + sizes + "],";
  }
  text.back() = '.';
  return text;
}

std::string table(const std::vector<ComparedModel>& rows, const std::vector<at::Tensor>& inputs) {
  std::string text = pad_right("", 12) + pad_left("median", 10) + pad_left("p90", 10) + pad_left("spread", 8) +
                     pad_left("calls", 8) + pad_left("samples/s", 11) + pad_left("speedup", 8) +
                     pad_left("difference", 12) + "\n";
  std::string file;
  for (const ComparedModel& row : rows) {
    if (row.file != file) text += row.file + ":\n";
    file = row.file;
    if (!row.calls.empty()) text += table_line(row);
  }
  text += "\n";
  if (!inputs.empty()) text += wrapped(inputs_text(inputs));
  text += wrapped(
      "Times in ms. Speedup: over the back end with the expected results, measured in turns. Difference: "
      "largest difference of an output, divided by its largest magnitude.");
  for (const ComparedModel& row : rows) {
    if (!row.agrees)
      text += wrapped("* " + row.backend + " of " + row.file + " disagrees: " + row.difference->text + ".");
    if (!row.problem.empty()) text += wrapped(row.backend + " of " + row.file + ": " + one_line(row.problem));
  }
  return text;
}

ordered_json row_json(const ComparedModel& row) {
  ordered_json json = {{"file", row.file},
                       {"backend", row.backend},
                       {"version", row.version},
                       {"problem", row.problem},
                       {"absent", row.absent}};
  if (row.calls.empty()) return json;
  json.update({{"load_s", row.load_s},
               {"first_call_s", row.first_s},
               {"calls", row.calls.size()},
               {"median_s", row.median_s},
               {"p90_s", row.p90_s},
               {"spread", row.spread},
               {"samples_per_s", row.throughput},
               {"speedup", number_or_null<ordered_json>(row.speedup.ratio)},
               {"speedup_low", number_or_null<ordered_json>(row.speedup.low)},
               {"speedup_high", number_or_null<ordered_json>(row.speedup.high)},
               {"expected", row.reference},
               {"agrees", row.agrees}});
  if (!row.difference) return json;
  json["difference"] = {{"relative", number_or_null<ordered_json>(row.difference->relative)},
                        {"output", row.difference->output},
                        {"place", row.difference->place},
                        {"text", row.difference->text}};
  return json;
}

ordered_json result_json(const std::vector<ComparedModel>& rows, const std::vector<at::Tensor>& inputs,
                         double tolerance) {
  ordered_json json = {{"inputs", ordered_json::array()}, {"tolerance", tolerance}, {"models", ordered_json::array()}};
  for (const at::Tensor& input : inputs)
    json["inputs"].push_back(
        {{"dtype", c10::getDtypeNames(input.scalar_type()).first}, {"sizes", input.sizes().vec()}});
  for (const ComparedModel& row : rows) json["models"].push_back(row_json(row));
  return json;
}

}  // namespace

int run_bench_model(const BenchModelArguments& arguments) {
  check_output_file(arguments.json);
  std::vector<at::Tensor> inputs;
  Terminal terminal;
  const runtime::ComparisonOptions options = options_of(arguments, terminal, inputs);
  std::vector<ComparedModel> rows;
  {
    const Interrupt interrupt("printing the results so far");
    rows = runtime::compare_models(arguments.files, options);
  }
  if (arguments.json != "-") terminal.print(table(rows, inputs));
  write_json(arguments.json, json_text(result_json(rows, inputs, options.tolerance)));
  if (Interrupt::requested()) return Interrupt::exit_code();
  const bool failed = std::ranges::any_of(
      rows, [](const ComparedModel& row) { return !row.agrees || (!row.problem.empty() && !row.absent); });
  const bool measured = std::ranges::any_of(rows, [](const ComparedModel& row) { return !row.calls.empty(); });
  return failed || !measured ? exit_failed : exit_done;
}

}  // namespace bellows::cli
