#include <ATen/core/Tensor.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "bellows/core/error.h"
#include "bellows/export/program_session.h"
#include "bellows/graph/program/program_file.h"

namespace bellows::export_detail {

namespace {

using Json = nlohmann::json;
using Form = SizeExpression::Form;

Json json_of(const SizeExpression& expression) {
  Json terms = Json::array();
  for (const auto& term : expression.terms) terms.push_back({term.symbol, term.factor});
  return {static_cast<int>(expression.form), expression.constant, expression.divisor, terms};
}

/// Params: symbols – number of symbols
SizeExpression expression_of(const Json& json, size_t symbols) {
  const int form = json.at(0);
  SizeExpression expression{.form = static_cast<Form>(form), .constant = json.at(1), .divisor = json.at(2)};
  TORCH_CHECK_VALUE(form >= 0 && form <= 2 && expression.divisor > 0, "an expression of sizes is invalid");
  for (const Json& term : json.at(3)) {
    expression.terms.push_back({.symbol = term.at(0), .factor = term.at(1)});
    TORCH_CHECK_VALUE(expression.terms.back().symbol < symbols, "an expression of sizes has an unknown symbol");
  }
  return expression;
}

Json json_of(const ProgramTemplate::Slot& slot) {
  Json parts = Json::array();
  for (const SizeExpression& part : slot.formula.parts) parts.push_back(json_of(part));
  return {slot.number, slot.formula.factor, parts};
}

ProgramTemplate::Slot slot_of(const Json& json, size_t symbols) {
  ProgramTemplate::Slot slot{.number = json.at(0), .formula = {.factor = json.at(1)}};
  for (const Json& part : json.at(2)) slot.formula.parts.push_back(expression_of(part, symbols));
  return slot;
}

Json json_of(const std::vector<ProgramTensor>& tensors) {
  Json all = Json::array();
  for (const ProgramTensor& one : tensors)
    all.push_back({{"name", one.name}, {"dtype", c10::toString(one.dtype)}, {"sizes", one.sizes}});
  return all;
}

std::vector<ProgramTensor> tensors_of(const Json& json) {
  std::vector<ProgramTensor> tensors;
  for (const Json& one : json)
    tensors.push_back({.name = one.at("name"), .dtype = graph::dtype_named(one.at("dtype")), .sizes = one.at("sizes")});
  return tensors;
}

/// The program with its results as additional values, because these also consist of a number and a geometry.
graph::Program with_results(const ProgramTemplate::Instance& base) {
  graph::Program program = base.program;
  for (const graph::Operand& result : base.results)
    program.values.push_back({.geometry = result.geometry, .nbytes = static_cast<size_t>(result.value)});
  return program;
}

}  // namespace

ProgramContent::Json ProgramContent::to_json() const {
  auto sources_json = nlohmann::json::array(), slots = nlohmann::json::array();
  for (const Source& source : sources)
    sources_json.push_back(source.argument >= 0 ? nlohmann::json(source.argument) : nlohmann::json(source.weight));
  for (const ProgramTemplate::Slot& slot : program.slots()) slots.push_back(json_of(slot));
  const nlohmann::json rest{{"results", program.base().results.size()},
                            {"symbols", program.symbols()},
                            {"slots", slots},
                            {"sources", sources_json},
                            {"inputs", json_of(inputs)},
                            {"outputs", json_of(outputs)},
                            {"places", places},
                            {"autocast", autocast ? nlohmann::json(c10::toString(*autocast)) : nlohmann::json()}};
  return {.operators = graph::program_to_json(with_results(program.base())), .rest = rest.dump()};
}

ProgramContent ProgramContent::from_json(const Json& texts,
                                         const std::function<c10::Storage(const std::string& weight)>& storage_of) {
  const auto json = nlohmann::json::parse(texts.rest);
  ProgramContent content;
  ProgramTemplate::Instance base{.program = graph::program_from_json(texts.operators)};
  const auto results = json.at("results").get<size_t>();
  auto& values = base.program.values;
  TORCH_CHECK_VALUE(results <= values.size(), "results are missing");
  for (size_t i = values.size() - results; i < values.size(); ++i)
    base.results.push_back({.value = static_cast<graph::ValueId>(values[i].nbytes), .geometry = values[i].geometry});
  values.resize(values.size() - results);
  const auto symbols = json.at("symbols").get<std::vector<std::string>>();
  std::vector<ProgramTemplate::Slot> slots;
  for (const nlohmann::json& slot : json.at("slots")) slots.push_back(slot_of(slot, symbols.size()));
  content.inputs = tensors_of(json.at("inputs"));
  content.outputs = tensors_of(json.at("outputs"));
  content.places = json.at("places").get<decltype(content.places)>();
  TORCH_CHECK_VALUE(content.places.size() == symbols.size() && content.outputs.size() == base.results.size() &&
                        json.at("sources").size() == base.program.inputs.size(),
                    "the numbers of inputs, outputs or axes differ");
  for (const auto& [input, axis] : content.places)
    TORCH_CHECK_VALUE(input < content.inputs.size() && axis < content.inputs[input].sizes.size(),
                      "a dynamic axis does not exist");
  for (const nlohmann::json& source : json.at("sources")) {
    if (source.is_number()) {
      content.sources.push_back({.argument = source});
      TORCH_CHECK_VALUE(content.sources.back().argument >= 0 &&
                            static_cast<size_t>(content.sources.back().argument) < content.inputs.size(),
                        "an input does not exist");
    } else {
      const auto name = source.get<std::string>();
      content.sources.push_back({.weight = name, .storage = storage_of(name)});
    }
  }
  if (!json.at("autocast").is_null()) content.autocast = graph::dtype_named(json.at("autocast"));
  content.program = ProgramTemplate(std::move(base), symbols, std::move(slots));
  return content;
}

}  // namespace bellows::export_detail
