#include "bellows/export/aten/graph.h"

#include <ATen/ops/equal.h>

#include <algorithm>
#include <sstream>

namespace bellows::aten_export {

namespace {

void add_text(std::ostringstream& text, const SizeFormula& formula) {
  text << formula.factor;
  for (const export_detail::SizeExpression& part : formula.parts) {
    text << "*" << static_cast<int>(part.form) << ":" << part.constant << "/" << part.divisor;
    for (const auto& term : part.terms) text << "+" << term.factor << "s" << term.symbol;
  }
}

/// A text that is the same for equal calls.
std::string text_of(const c10::OperatorHandle& op, const std::vector<Argument>& arguments) {
  std::ostringstream text;
  text.precision(17);
  text << name_of(op);
  for (const Argument& argument : arguments) {
    text << "|" << static_cast<int>(argument.kind) << ":";
    if (argument.kind == Argument::Kind::constant) text << argument.constant.tagKind() << " " << argument.constant;
    for (const Value value : argument.values) text << static_cast<int32_t>(value) << ",";
    for (const SizeFormula& size : argument.sizes) {
      add_text(text, size);
      text << ",";
    }
  }
  return text.str();
}

}  // namespace

Argument::Argument(SizeFormula size) {
  if (size.constant()) {
    constant = size.factor;
    return;
  }
  kind = Kind::size;
  sizes.push_back(std::move(size));
}

Argument::Argument(std::vector<SizeFormula> list) {
  if (std::all_of(list.begin(), list.end(), [](const SizeFormula& one) { return one.constant(); })) {
    std::vector<int64_t> numbers;
    for (const SizeFormula& one : list) numbers.push_back(one.factor);
    constant = numbers;
    return;
  }
  kind = Kind::sizes;
  sizes = std::move(list);
}

std::string name_of(const c10::OperatorHandle& op) {
  const std::string& overload = op.operator_name().overload_name;
  return op.operator_name().name + (overload.empty() ? "" : "." + overload);
}

std::map<std::string, int64_t> AtenGraph::operators() const {
  std::map<std::string, int64_t> counts;
  for (const Call& call : calls) ++counts[name_of(call.op)];
  return counts;
}

void AtenGraph::remove_unused() {
  std::vector<bool> needed(values);
  for (const NamedValue& output : outputs) needed[index_of(output.value)] = true;
  std::vector<Call> kept;
  for (size_t i = calls.size(); i-- > 0;) {
    bool live = false;
    for (const auto& result : calls[i].results) {
      for (const Value value : result) live = live || (value != Value::none && needed[index_of(value)]);
    }
    if (!live) continue;
    for_each_read(calls[i], [&](Value value) { needed[index_of(value)] = true; });
    kept.push_back(std::move(calls[i]));
  }
  std::reverse(kept.begin(), kept.end());
  calls = std::move(kept);
  std::erase_if(constants, [&](const Weight& one) { return !needed[index_of(one.value)]; });
}

Value GraphBuilder::call(const std::string& name, std::vector<Argument> arguments) {
  const size_t dot = name.find('.');
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(
      name.substr(0, dot).c_str(), dot == std::string::npos ? "" : name.substr(dot + 1).c_str());
  return call_all(op, std::move(arguments), std::vector<int64_t>(op.schema().returns().size(), -1))[0][0];
}

std::vector<std::vector<Value>> GraphBuilder::call_all(const c10::OperatorHandle& op, std::vector<Argument> arguments,
                                                       const std::vector<int64_t>& lists) {
  const auto& formal = op.schema().arguments();
  for (size_t i = arguments.size(); i < formal.size(); ++i) arguments.emplace_back(formal[i].default_value().value());
  const std::string text = text_of(op, arguments);
  const auto known = known_.find(text);
  if (known != known_.end()) return known->second;
  std::vector<std::vector<Value>> results;
  for (const int64_t length : lists) {
    std::vector<Value>& one = results.emplace_back();
    for (int64_t i = 0; i < (length < 0 ? 1 : length); ++i) one.push_back(new_value());
  }
  graph_.calls.push_back({.op = op, .arguments = std::move(arguments), .results = results});
  known_.emplace(text, results);
  return results;
}

Value GraphBuilder::constant(const at::Tensor& tensor) {
  constexpr int64_t most_compared = 1 << 16;
  for (const Weight& one : graph_.constants) {
    if (one.tensor.scalar_type() == tensor.scalar_type() && one.tensor.sizes() == tensor.sizes() &&
        tensor.numel() <= most_compared && at::equal(one.tensor, tensor))
      return one.value;
  }
  const Value value = new_value();
  graph_.constants.push_back({.name = {}, .tensor = tensor.detach().clone(), .parameter = false, .value = value});
  return value;
}

}  // namespace bellows::aten_export
