#include "bellows/export/onnx/call.h"
#include "bellows/export/onnx/operators.h"
#include "bellows/export/onnx/shapes.h"

namespace bellows::onnx_export {

namespace {

void embedding(Call& call) {
  call.result(call.node("Gather", {call.tensor(0), call.tensor(1)}, {{"axis", int64_t{0}}}));
}

void index_select(Call& call) {
  call.result(call.node("Gather", {call.tensor(0), call.tensor(2)}, {{"axis", call.dim(1, call.rank(0))}}));
}

void gather(Call& call) {
  call.result(call.node("GatherElements", {call.tensor(0), call.tensor(2)}, {{"axis", call.dim(1, call.rank(0))}}));
}

/// x[i, j, …]: one index anywhere, or several indices of the first dims.
void index(Call& call) {
  std::vector<size_t> used;
  for (size_t i = 0; i < call.list_size(1); ++i) {
    if (call.operand(1, i).defined()) used.push_back(i);
  }
  Translation& translation = call.translation();
  if (used.size() == 1) {
    const std::string at = translation.read(call.operand(1, used[0]));
    call.result(call.node("Gather", {call.tensor(0), at}, {{"axis", static_cast<int64_t>(used[0])}}));
    return;
  }
  if (used.empty() || used.back() + 1 != used.size())
    call.fail("an index of several dims that are not the first ones has no mapping",
              "Move the indexed dims to the front with permute().");
  const VariedSizes all = call.result_sizes();
  const size_t rest = call.sizes(0).size() - used.size();
  const VariedSizes common(all.begin(), all.end() - static_cast<int64_t>(rest));
  std::vector<std::string> parts;
  for (const size_t i : used) {
    const VariedOperand one = call.operand(1, i);
    const std::string at = expanded(call, translation.read(one), one.sizes(), common);
    parts.push_back(call.node("Unsqueeze", {at, call.integers_tensor({-1})}));
  }
  const std::string indices = call.node("Concat", parts, {{"axis", int64_t{-1}}});
  call.result(call.node("GatherND", {call.tensor(0), indices}));
}

void scatter(Call& call) {
  std::vector<Attribute> attributes{{"axis", call.dim(1, call.rank(0))}};
  if (call.name().starts_with("aten::scatter_add")) attributes.push_back({"reduction", std::string("add")});
  std::string source;
  if (call.name().ends_with(".value"))
    source = expanded(call, call.constant(call.number(3), call.dtype(0)), {}, call.sizes(2));
  else if (call.sizes(3) == call.sizes(2))
    source = call.tensor(3);
  else
    call.fail("scatter with a source of other sizes than the index has no mapping", "Slice the source first.");
  call.result(call.node("ScatterElements", {call.tensor(0), call.tensor(2), source}, attributes));
}

constexpr OperatorMapping indexing_operators[] = {
    {"aten::embedding", "Gather", embedding},
    {"aten::gather", "GatherElements", gather},
    {"aten::index.Tensor", "Gather or GatherND", index},
    {"aten::index_select", "Gather", index_select},
    {"aten::scatter.src", "ScatterElements", scatter},
    {"aten::scatter.value", "ScatterElements", scatter},
    {"aten::scatter_add", "ScatterElements", scatter},
};

}  // namespace

std::span<const OperatorMapping> indexing_mappings() {
  return indexing_operators;
}

}  // namespace bellows::onnx_export
