#include "bellows/graph/program/operator_facts.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/enum_tag.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "bellows/core/mutex.h"

namespace bellows::graph {
namespace {

using Kind = OperatorFacts::Kind;

template <size_t count>
bool is_one_of(std::string_view name, const std::array<std::string_view, count>& names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

/// Operators whose result sizes depend on data although no tag states this. The last two are composites
/// (DataDependence), but read memory themselves.
constexpr std::array<std::string_view, 8> untagged_dynamic = {"aten::_unique",
                                                              "aten::_padded_dense_to_jagged_forward",
                                                              "aten::_pack_padded_sequence",
                                                              "aten::_ctc_loss.Tensor",
                                                              "aten::linalg_lstsq",
                                                              "aten::segment_reduce",
                                                              "aten::tensor_split.tensor_indices_or_sections",
                                                              "aten::_pad_packed_sequence"};
constexpr std::array<std::string_view, 6> metadata_readers = {"aten::empty_like",        "aten::new_empty",
                                                              "aten::new_empty_strided", "aten::rand_like",
                                                              "aten::randn_like",        "aten::randint_like"};
/// In-place operators that only turn or reshape their tensor. They do not change its storage.
constexpr std::array<std::string_view, 6> metadata_writers = {
    "aten::transpose_", "aten::t_", "aten::unsqueeze_", "aten::squeeze_", "aten::squeeze_.dim", "aten::squeeze_.dims"};
/// Operators that write the running mean and variance in training, although their schemas do not declare it, and the
/// index of the mean. The variance is the next argument.
constexpr std::array<std::pair<std::string_view, int>, 7> running_statistics = {{{"aten::native_batch_norm", 3},
                                                                                 {"aten::cudnn_batch_norm", 3},
                                                                                 {"aten::miopen_batch_norm", 3},
                                                                                 {"aten::batch_norm", 3},
                                                                                 {"aten::_batch_norm_impl_index", 3},
                                                                                 {"aten::instance_norm", 3},
                                                                                 {"aten::batch_norm_update_stats", 1}}};
/// Parts of the names of matrix multiplications, convolutions and recurrent layers, whose fp32 precision is a setting.
constexpr std::array<std::string_view, 8> precise_parts = {"mm",    "matmul", "linear", "conv",
                                                           "addmv", "einsum", "rnn",    "lstm"};

Kind kind_of(c10::TypePtr type, bool known) {
  if (const auto optional = type->cast<c10::OptionalType>()) type = optional->getElementType();
  if (type->kind() == c10::TypeKind::TensorType) return Kind::tensor;
  if (known && (type->kind() == c10::TypeKind::NumberType || type->kind() == c10::TypeKind::FloatType))
    return Kind::number;
  const auto list = type->cast<c10::ListType>();
  if (!list) return Kind::constant;
  const c10::TypePtr& element = list->getElementType();
  if (element->kind() == c10::TypeKind::TensorType) return Kind::tensor_list;
  if (known && element->kind() == c10::TypeKind::NumberType) return Kind::number;  // for foreach operators
  const auto optional = element->cast<c10::OptionalType>();
  const bool tensors = optional && optional->getElementType()->kind() == c10::TypeKind::TensorType;
  return tensors ? Kind::optional_tensor_list : Kind::constant;
}

bool is_tensor_kind(Kind kind) {
  return kind == Kind::tensor || kind == Kind::tensor_list || kind == Kind::optional_tensor_list;
}

bool returns_tensors_only(const c10::FunctionSchema& schema) {
  return std::all_of(schema.returns().begin(), schema.returns().end(), [](const c10::Argument& result) {
    const Kind kind = kind_of(result.type(), false);
    return kind == Kind::tensor || kind == Kind::tensor_list;
  });
}

/// A number after a tensor may become an input. Numbers of factories determine sizes.
void read_arguments(OperatorFacts& facts, const c10::FunctionSchema& schema) {
  bool tensors = false;
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    const c10::Argument& argument = schema.arguments()[i];
    Kind kind = kind_of(argument.type(), facts.known);
    tensors = tensors || is_tensor_kind(kind);
    if (kind == Kind::number && !tensors) kind = Kind::constant;
    // A seed argument may change: it affects only values, not shapes.
    if (facts.known && argument.name() == "seed" && argument.type()->kind() == c10::TypeKind::IntType)
      kind = Kind::number;
    if (argument.name() == "dropout_p" || argument.name() == "dropout") {
      facts.dropout_argument = static_cast<int>(i);
      kind = Kind::constant;
    }
    if (argument.name() == "train") facts.train_argument = static_cast<int>(i);
    if (argument.alias_info() && argument.alias_info()->isWrite()) facts.writes.push_back(static_cast<int>(i));
    facts.arguments.push_back(kind);
  }
  facts.factory = !tensors;
  const std::string_view base = std::string_view(facts.name).substr(0, facts.name.find('.'));
  for (const auto& [name, mean] : running_statistics) {
    if (base == name) facts.writes.insert(facts.writes.end(), {mean, mean + 1});
  }
}

bool is_safe_on_zeros(std::string_view name) {
  constexpr std::array<std::string_view, 6> index_by_pivots = {"aten::linalg_", "aten::_linalg",  "aten::lu_",
                                                               "aten::ormqr",   "aten::cholesky", "aten::triangular"};
  const auto begins = [&](std::string_view part) { return name.starts_with(part); };
  return (begins("aten::") || begins("bellows::")) &&
         std::none_of(index_by_pivots.begin(), index_by_pivots.end(), begins);
}

OperatorFacts look_up(const c10::OperatorHandle& handle) {
  const c10::FunctionSchema& schema = handle.schema();
  OperatorFacts facts;
  facts.name = schema.name() + (schema.overload_name().empty() ? "" : "." + schema.overload_name());
  facts.handle = std::make_shared<const c10::OperatorHandle>(handle);
  facts.known = schema.name().rfind("aten::", 0) == 0 || handle.hasTag(at::Tag::pt2_compliant_tag);
  read_arguments(facts, schema);
  facts.results = schema.returns().size();
  facts.reads_no_data = is_one_of(facts.name, metadata_readers) || is_one_of(facts.name, metadata_writers);
  facts.runs_on_zeros = is_safe_on_zeros(facts.name);
  facts.random = handle.hasTag(at::Tag::nondeterministic_seeded);
  facts.host_value = handle.hasTag(at::Tag::dynamic_output_shape) || handle.hasTag(at::Tag::data_dependent_output) ||
                     is_one_of(facts.name, untagged_dynamic) || !returns_tensors_only(schema);
  facts.masks_only = facts.name == "aten::index.Tensor";
  facts.changes_metadata = handle.hasTag(at::Tag::inplace_view);
  facts.reads_float32_precision = std::any_of(precise_parts.begin(), precise_parts.end(), [&](std::string_view part) {
    return facts.name.find(part) != std::string::npos;
  });
  return facts;
}

}  // namespace

const OperatorFacts& operator_facts(const c10::OperatorHandle& handle) {
  static Mutex mutex;
  static auto* const known BELLOWS_PT_GUARDED_BY(mutex) =
      new std::unordered_map<const c10::FunctionSchema*, OperatorFacts>;  // never destroyed
  const MutexLock lock(mutex);
  const auto found = known->find(&handle.schema());
  return found != known->end() ? found->second : known->emplace(&handle.schema(), look_up(handle)).first->second;
}

}  // namespace bellows::graph
