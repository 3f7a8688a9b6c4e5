#include "bellows/models/summary.h"

#include <torch/torch.h>

#include <algorithm>
#include <map>
#include <set>
#include <sstream>

#include "bellows/core/grad_mode.h"
#include "bellows/core/stats.h"
#include "bellows/tap/observer.h"

namespace bellows {

namespace {

struct SummaryRow {
  std::string name, type, output;
  int64_t parameters = 0, bytes = 0;
};

constexpr int name_width = 27, type_width = 15, output_width = 18, count_width = 11, bytes_width = 9;

std::string parent_of(const std::string& name) {
  const size_t dot = name.rfind('.');
  return dot == std::string::npos ? "" : name.substr(0, dot);
}

// Modules in order, without the root. For models without a torch module, the modules are derived from tensor names.
std::vector<SummaryRow> modules_of(const Model& model) {
  std::vector<SummaryRow> rows;
  for (const auto& [name, type] : model.module_types()) {
    if (!name.empty()) rows.push_back({.name = name, .type = type, .output = {}});
  }
  if (!rows.empty()) return rows;
  std::set<std::string> seen;
  for (const auto& [name, tensor] : model.state_dict()) {
    for (size_t dot = name.find('.'); dot != std::string::npos; dot = name.find('.', dot + 1)) {
      if (seen.insert(name.substr(0, dot)).second)
        rows.push_back({.name = name.substr(0, dot), .type = {}, .output = {}});
    }
  }
  return rows;
}

// Each tensor counts for its module and all enclosing modules.
void count_tensors(const NamedTensors& tensors, bool parameters, std::map<std::string, SummaryRow*>& by_name) {
  for (const auto& [name, tensor] : tensors) {
    for (std::string owner = parent_of(name); !owner.empty(); owner = parent_of(owner)) {
      const auto row = by_name.find(owner);
      if (row == by_name.end()) continue;
      row->second->parameters += parameters ? tensor.numel() : 0;
      row->second->bytes += static_cast<int64_t>(tensor.nbytes());
    }
  }
}

// Records the result of the last operator that read each parameter. For convolutions, norms and linear layers, this is
// the module's output.
class ShapeFinder final : public tap::Observer {
 public:
  explicit ShapeFinder(const NamedTensors& parameters) {
    for (const auto& [name, tensor] : parameters) {
      if (tensor.numel() > 0) owner_.emplace(start_of(tensor), parent_of(name));
    }
  }

  tap::ObserverNeeds needs() const override { return {.inputs = true, .outputs = true}; }

  void before(const tap::OpEvent& event) override {
    const std::string* found = nullptr;
    for (const c10::IValue& input : event.inputs) {
      if (!found && input.isTensor()) found = owner_of(input.toTensor());
    }
    running_.push_back(found);
  }

  void after(const tap::OpEvent& event) override {
    if (running_.empty()) return;
    const std::string* owner = running_.back();
    running_.pop_back();
    if (!owner || event.outputs.empty() || !event.outputs[0].isTensor()) return;
    const at::Tensor& output = event.outputs[0].toTensor();
    if (output.defined() && !owner_of(output))
      shape[*owner] = c10::str(output.sizes());  // a view of a weight is not an output
  }

  std::map<std::string, std::string> shape;

 private:
  static const void* start_of(const at::Tensor& tensor) {
    return static_cast<const char*>(tensor.storage().data()) + tensor.storage_offset() * tensor.element_size();
  }

  const std::string* owner_of(const at::Tensor& tensor) const {
    if (!tensor.defined() || !tensor.has_storage()) return nullptr;
    const auto found = owner_.find(start_of(tensor));
    return found == owner_.end() ? nullptr : &found->second;
  }

  std::map<const void*, std::string> owner_;
  std::vector<const std::string*> running_;
};

std::map<std::string, std::string> output_shapes(const Model& model, const NamedTensors& inputs) {
  const auto finder = std::make_shared<ShapeFinder>(model.named_parameters());
  const EvalMode eval_mode(model);
  const no_grad guard;
  tap::ObserverGuard observing(finder);
  model.forward(inputs);
  observing.check();
  return finder->shape;
}

std::string thousands(int64_t n) {
  std::string digits = std::to_string(n);
  for (int at = static_cast<int>(digits.size()) - 3; at > 0; at -= 3) digits.insert(static_cast<size_t>(at), 1, ',');
  return digits;
}

std::string cell(std::string text, int width, bool right = false) {
  const auto room = static_cast<size_t>(width) - 1;
  if (text.size() > room) text = text.substr(0, room - 1) + "~";
  const std::string fill(static_cast<size_t>(width) - text.size(), ' ');
  return right ? fill + text : text + fill;
}

std::string line(const std::string& name, const SummaryRow& row) {
  std::string text = cell(name, name_width) + cell(row.type, type_width) + cell(row.output, output_width);
  if (row.parameters > 0) text += cell(thousands(row.parameters), count_width, true);
  if (row.bytes > 0) {
    text.resize(name_width + type_width + output_width + count_width, ' ');
    text += cell(format_bytes(static_cast<double>(row.bytes)), bytes_width, true);
  }
  return text.substr(0, text.find_last_not_of(' ') + 1) + "\n";
}

struct Totals {
  int64_t parameters = 0, trainable = 0, parameter_bytes = 0, buffer_bytes = 0;
};

// A tensor that two modules share is counted once.
Totals totals_of(const Model& model) {
  Totals totals;
  std::set<const void*> seen;
  for (const auto& [name, tensor] : model.named_parameters()) {
    if (!seen.insert(tensor.unsafeGetTensorImpl()).second) continue;
    totals.parameters += tensor.numel();
    totals.trainable += tensor.requires_grad() ? tensor.numel() : 0;
    totals.parameter_bytes += static_cast<int64_t>(tensor.nbytes());
  }
  for (const auto& [name, tensor] : model.named_buffers()) {
    if (seen.insert(tensor.unsafeGetTensorImpl()).second) totals.buffer_bytes += static_cast<int64_t>(tensor.nbytes());
  }
  return totals;
}

}  // namespace

std::string summary(const Model& model, c10::IntArrayRef input_sizes) {
  if (input_sizes.empty()) return summary(model, NamedTensors());
  const NamedTensors parameters = model.named_parameters();
  const auto options =
      parameters.empty() ? at::TensorOptions() : parameters.front().second.options().requires_grad(false);
  return summary(model, {{model.inputs().front().name, torch::zeros(input_sizes, options)}});
}

std::string summary(const Model& model, const NamedTensors& inputs) {
  std::vector<SummaryRow> rows = modules_of(model);
  std::map<std::string, SummaryRow*> by_name;
  for (SummaryRow& row : rows) by_name[row.name] = &row;
  count_tensors(model.named_parameters(), true, by_name);
  count_tensors(model.named_buffers(), false, by_name);
  if (!inputs.empty()) {
    for (const auto& [name, shape] : output_shapes(model, inputs)) {
      if (by_name.count(name)) by_name[name]->output = shape;
    }
  }
  const std::string rule(80, '-');
  std::ostringstream out;
  out << model.name();
  for (const auto& [name, tensor] : inputs) out << ", " << name << " " << tensor.sizes();
  out << "\n" << rule << "\n";
  out << cell("module", name_width) << cell("type", type_width) << cell("output", output_width)
      << cell("parameters", count_width, true) << cell("bytes", bytes_width, true) << "\n"
      << rule << "\n";
  for (const SummaryRow& row : rows) {
    const auto depth = static_cast<size_t>(std::count(row.name.begin(), row.name.end(), '.'));
    const size_t dot = row.name.rfind('.');
    out << line(std::string(2 * depth, ' ') + (dot == std::string::npos ? row.name : row.name.substr(dot + 1)), row);
  }
  const Totals totals = totals_of(model);
  out << rule << "\n"
      << "parameters: " << thousands(totals.parameters) << ", trainable: " << thousands(totals.trainable) << "\n"
      << "bytes: parameters " << format_bytes(static_cast<double>(totals.parameter_bytes)) << ", buffers "
      << format_bytes(static_cast<double>(totals.buffer_bytes)) << "\n";
  return out.str();
}

}  // namespace bellows
