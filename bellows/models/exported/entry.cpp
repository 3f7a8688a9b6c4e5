#include "bellows/models/exported/entry.h"

#include <algorithm>

#include "bellows/models/exported/class_count.h"
#include "bellows/models/exported/exported_model.h"

namespace bellows::models::exported {

namespace {

/// A fixed size; 0 if it is dynamic.
int64_t entry_size(const ExportedInput& input, size_t dimension) {
  return dimension < input.sizes.size() ? std::max<int64_t>(input.sizes[dimension].fixed, 0) : 0;
}

/// The sizes of a sample; empty if one of them is dynamic.
std::vector<int64_t> sample_shape(const ExportedInput& input) {
  std::vector<int64_t> shape;
  for (size_t i = 1; i < input.sizes.size(); ++i) shape.push_back(entry_size(input, i));
  return std::find(shape.begin(), shape.end(), 0) == shape.end() ? shape : std::vector<int64_t>();
}

/// The number of rows of the first matrix, which is the embedding of the tokens; 0 if there is none.
int64_t vocabulary_of(const Model& model) {
  for (const auto& [name, parameter] : model.named_parameters()) {
    if (parameter.dim() == 2) return parameter.size(0);
  }
  return 0;
}

void describe_single_input(ModelEntry& entry, const ExportedInput& input, const Model& model,
                           int64_t output_dimensions) {
  const size_t dimensions = input.sizes.size();
  if (!at::isFloatingType(input.dtype) && dimensions == 2) {
    entry.input = InputKind::tokens;
    entry.input_shape = {vocabulary_of(model), entry_size(input, 1), 0};
    if (output_dimensions == 3) entry.output = OutputKind::token;
  } else if (dimensions == 4) {
    entry.input_shape = {entry_size(input, 1), entry_size(input, 2), entry_size(input, 3)};
    if (output_dimensions == 4) entry.output = OutputKind::pixel;
  } else if (dimensions == 3) {
    entry.input = InputKind::series;
    entry.input_shape = {entry_size(input, 2), entry_size(input, 1), 0};
  } else {
    entry.input = InputKind::arrays;
    entry.input_shape = {entry_size(input, 1), 0, 0};
  }
}

Model trainable_export(const std::string& path, int64_t classes, OutputKind output) {
  const Model model = load_exported(path);
  if (output == OutputKind::token) return model;  // its logits are [batch, tokens, vocabulary]
  return with_class_count(model, classes, "exported program", "Did the export freeze them?");
}

}  // namespace

ModelEntry entry_of(const std::string& path, const Model& model, const ExportedProgram& program) {
  ModelEntry entry{path, "program of torch.export", {0, 0, 0}, {}};
  std::vector<const ExportedInput*> needed;
  for (const ExportedInput& input : program.checks().inputs()) {
    if (!input.is_constant) needed.push_back(&input);
  }
  if (needed.size() == 1) {
    describe_single_input(entry, *needed[0], model, program.output_dimensions());
  } else {
    entry.input = InputKind::arrays;
    for (const ExportedInput* input : needed) entry.inputs.push_back({input->name, sample_shape(*input)});
  }
  entry.make = [path, output = entry.output](int64_t classes, int64_t) {
    return trainable_export(path, classes, output);
  };
  return entry;
}

}  // namespace bellows::models::exported
