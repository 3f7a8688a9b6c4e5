#include "bellows/recompute/region_trace.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/irange.h>

#include <algorithm>
#include <array>
#include <string_view>

namespace bellows::recompute::detail {

namespace {

bool is_view(const c10::FunctionSchema& schema) {
  const auto alias = [](const c10::Argument& result) { return result.alias_info() && !result.alias_info()->isWrite(); };
  return !schema.returns().empty() && std::all_of(schema.returns().begin(), schema.returns().end(), alias);
}

bool makes_tensors(const c10::FunctionSchema& schema) {
  const auto is_new = [](const c10::Argument& result) {
    return !result.alias_info() && result.type()->kind() == c10::TypeKind::TensorType;
  };
  return !schema.returns().empty() && schema.returns().size() <= 32 &&
         std::all_of(schema.returns().begin(), schema.returns().end(), is_new);
}

bool is_constant(std::string_view name) {
  constexpr std::array<std::string_view, 11> ends{"zeros",     "ones",      "full",         "zeros_like",
                                                  "ones_like", "full_like", "linspace",     "logspace",
                                                  "range",     "::eye",     "scalar_tensor"};
  return std::any_of(ends.begin(), ends.end(), [&](std::string_view end) { return name.ends_with(end); });
}

/// True if the call writes its whole target without reading it.
bool overwrites(const TracedCall& call) {
  const std::string_view name = call.schema->name();
  return call.kind.random || name == "aten::copy_" || name == "aten::fill_" || name == "aten::zero_";
}

bool is_collective(std::string_view name) {
  return name.find("c10d") != std::string_view::npos;
}

bool is_foreign(const c10::OperatorHandle& handle) {
  const std::string_view name = handle.schema().name();
  if (name.starts_with("aten::") || name.starts_with("bellows::")) return false;
  return is_collective(name) || !handle.hasTag(at::Tag::pt2_compliant_tag);
}

OperatorKind kind_of_schema(const c10::OperatorHandle& handle) {
  const auto& schema = handle.schema();
  const bool foreign = is_foreign(handle);
  OperatorKind kind{.random = handle.hasTag(at::Tag::nondeterministic_seeded),
                    .uninitialized = schema.name().find("empty") != std::string::npos,
                    .constant = is_constant(schema.name()),
                    .foreign = foreign};
  const auto& arguments = schema.arguments();
  const auto writes = [](const c10::Argument& a) { return a.alias_info() && a.alias_info()->isWrite(); };
  const auto written = std::count_if(arguments.begin(), arguments.end(), writes);
  kind.writes_some = written > 0;
  if (written == 0) {
    kind.kind = is_view(schema) ? CallKind::view : makes_tensors(schema) ? CallKind::makes : CallKind::other;
  } else if (written == 1 && writes(arguments[0]) && arguments[0].type()->kind() == c10::TypeKind::TensorType &&
             schema.returns().size() == 1 && writes(schema.returns()[0]) && !handle.hasTag(at::Tag::inplace_view)) {
    kind.kind = CallKind::writes;
  }
  if (is_collective(schema.name())) kind.kind = CallKind::other;  // other processes wait for it
  kind.random = kind.random || (foreign && kind.kind == CallKind::makes);
  return kind;
}

template <class Visit>
void for_storages(std::span<const c10::IValue> values, const Visit& visit) {
  const auto one = [&](const at::Tensor& tensor) {
    if (tensor.defined() && tensor.has_storage()) visit(tensor);
  };
  for (const c10::IValue& value : values) {
    if (value.isTensor()) {
      one(value.toTensor());
    } else if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorVector()) one(tensor);
    } else if (value.isList()) {  // of optional tensors
      for (const c10::IValue& element : value.toListRef()) {
        if (element.isTensor()) one(element.toTensor());
      }
    }
  }
}

}  // namespace

OperatorKind operator_kind(const c10::OperatorHandle& handle) {
  static thread_local std::unordered_map<const c10::FunctionSchema*, OperatorKind> known;
  const auto [found, is_new] = known.try_emplace(&handle.schema());
  if (is_new) found->second = kind_of_schema(handle);
  return found->second;
}

int32_t RegionTrace::number(const at::Tensor& tensor) {
  auto* const storage = tensor.storage().unsafeGetStorageImpl();
  const auto [found, is_new] = numbers_.try_emplace(
      storage, Number{static_cast<int32_t>(storages_.size()), tensor.storage().getWeakStorageImpl()});
  if (is_new) storages_.emplace_back();
  return found->second.id;
}

StorageIds RegionTrace::read(std::span<const c10::IValue> arguments) {
  StorageIds ids;
  for_storages(arguments, [&](const at::Tensor& tensor) { ids.push_back(number(tensor)); });
  return ids;
}

TracedCall& RegionTrace::add(TracedCall call, const std::vector<at::Tensor>& outputs) {
  const auto caller = static_cast<int32_t>(calls_.size());
  for (const at::Tensor& output : outputs) {
    if (!output.defined()) {
      call.makes.push_back(-1);
      continue;
    }
    // The operator returned an argument, the same storage twice, or a tensor without storage.
    const bool is_new = output.has_storage() && !numbers_.contains(output.storage().unsafeGetStorageImpl());
    if (!is_new || output.is_inference()) call.kind.kind = CallKind::other;
    if (!is_new) continue;
    const int32_t made = number(output);
    call.makes.push_back(made);
    storages_[static_cast<size_t>(made)] = {.bytes = static_cast<int64_t>(output.storage().nbytes()), .maker = caller};
  }
  if (call.kind.kind == CallKind::writes) call.target = call.reads.empty() ? -1 : call.reads[0];
  if (call.kind.kind == CallKind::writes && call.target < 0) call.kind.kind = CallKind::other;
  const bool may_write = call.kind.kind == CallKind::other && (call.kind.writes_some || call.kind.foreign);
  for (const int32_t id : call.reads) {
    if (id == call.target) continue;
    StorageFacts& facts = storages_[static_cast<size_t>(id)];
    facts.looked_at = true;
    facts.changed = facts.changed || may_write;  // which argument it writes is unknown
    facts.unseen = facts.unseen || (may_write && call.kind.foreign);
  }
  if (call.kind.foreign && call.kind.kind == CallKind::other) may_skip_ = false;
  if (call.kind.kind == CallKind::writes) {
    StorageFacts& facts = storages_[static_cast<size_t>(call.target)];
    facts.changed = facts.changed || facts.looked_at;
    // An uninitialized tensor that is updated before any operator has filled it was filled without operators. Repeating
    // the update would undo later changes.
    const bool filled = facts.maker < 0 || facts.writes > 0 || overwrites(call) ||
                        !calls_[static_cast<size_t>(facts.maker)].kind.uninitialized;
    if (!filled) facts.changed = true, may_skip_ = false;
    ++facts.writes;
  }
  return calls_.emplace_back(std::move(call));
}

void RegionTrace::saved(const at::Tensor& tensor) {
  const int32_t id = number(tensor);
  storages_[static_cast<size_t>(id)].saved = storages_[static_cast<size_t>(id)].looked_at = true;
  saved_.push_back({id, calls_.size()});
}

void RegionTrace::finish() {
  // Memory that no operator fills is filled by other code, which may read any tensor.
  const auto filled = [this](int32_t id) {
    const StorageFacts& facts = storages_[static_cast<size_t>(std::max(id, 0))];
    return id < 0 || facts.bytes == 0 || facts.writes > 0 || facts.changed;
  };
  for (const TracedCall& call : calls_) {
    if (call.kind.uninitialized) may_skip_ = may_skip_ && std::all_of(call.makes.begin(), call.makes.end(), filled);
  }
}

int32_t RegionTrace::made(const c10::StorageImpl* storage) const {
  const auto found = numbers_.find(storage);
  if (found == numbers_.end()) return -1;
  return storages_[static_cast<size_t>(found->second.id)].maker < 0 ? -1 : found->second.id;
}

bool RegionTrace::written_unseen(size_t call) const {
  const StorageIds& made = calls_[call].makes;
  return std::any_of(made.begin(), made.end(),
                     [this](int32_t id) { return id >= 0 && storages_[static_cast<size_t>(id)].unseen; });
}

uint32_t RegionTrace::writes_to(size_t call) const {
  const StorageIds& made = calls_[call].makes;
  return made.empty() || made[0] < 0 ? 0 : storages_[static_cast<size_t>(made[0])].writes;
}

bool RegionTrace::keepable(size_t storage) const {
  const StorageFacts& facts = storages_[storage];
  if (facts.maker < 0 || facts.changed) return false;
  const TracedCall& maker = calls_[static_cast<size_t>(facts.maker)];
  if (maker.kind.kind != CallKind::makes || maker.kind.constant || maker.barred) return false;
  return facts.writes == 0 || (may_skip_ && maker.makes[0] == static_cast<int32_t>(storage));
}

std::vector<char> RegionTrace::wanted() const {
  std::vector<char> result(storages_.size());
  for (const size_t i : c10::irange(result.size())) result[i] = (storages_[i].saved || !may_skip_) && keepable(i);
  return result;
}

double RegionTrace::seconds() const {
  double sum = 0;
  for (const TracedCall& call : calls_) sum += call.seconds;
  return sum;
}

bool RegionTrace::same_calls(const RegionTrace& other) const {
  const auto same = [](const TracedCall& a, const TracedCall& b) {
    return a.schema == b.schema && a.kind.kind == b.kind.kind && a.reads == b.reads && a.makes == b.makes;
  };
  const auto same_place = [](const Saved& a, const Saved& b) { return a.storage == b.storage && a.behind == b.behind; };
  return storages_.size() == other.storages_.size() &&
         std::equal(calls_.begin(), calls_.end(), other.calls_.begin(), other.calls_.end(), same) &&
         std::equal(saved_.begin(), saved_.end(), other.saved_.begin(), other.saved_.end(), same_place);
}

void RegionTrace::take_shorter_times(const RegionTrace& other) {
  for (const size_t i : c10::irange(calls_.size()))
    calls_[i].seconds = std::min(calls_[i].seconds, other.calls_[i].seconds);
}

/// Goes from the last call to the first. A call is repeated if one of its values is needed but not kept.
class RegionTrace::Scan {
 public:
  Scan(const RegionTrace& trace, const std::vector<char>& kept)
      : trace_(trace), kept_(kept), steps_(trace.calls_.size()), forced_(trace.calls_.size()) {
    for (bool again = true; again;) {
      run();
      again = force_writers();
    }
  }
  std::vector<Step> steps() && { return std::move(steps_); }
  double seconds() const { return seconds_; }

 private:
  void run() {
    needed_.assign(trace_.storages_.size(), 0);
    seconds_ = 0;
    size_t saved = trace_.saved_.size();
    for (size_t i = trace_.calls_.size(); i-- > 0;) {
      for (; saved > 0 && trace_.saved_[saved - 1].behind > i; --saved) need(trace_.saved_[saved - 1].storage);
      visit(i);
    }
  }

  void need(int32_t storage) { needed_[static_cast<size_t>(storage)] = 1; }

  void visit(size_t i) {
    const TracedCall& call = trace_.calls_[i];
    Step& step = steps_[i];
    step = {.schema = call.schema, .action = action_of(call, i)};
    for (const size_t output : c10::irange(call.makes.size())) {
      const int32_t made = call.makes[output];
      if (made < 0) continue;
      auto& wanted = needed_[static_cast<size_t>(made)];
      if (step.action == Action::give && (wanted || call.kept || !trace_.may_skip_)) step.given |= 1U << output;
      if (output == 0 && (step.given & 1U)) step.writes = trace_.writes_to(i);
      wanted = 0;
    }
    if (step.action == Action::run) {
      seconds_ += call.seconds;
      for (const int32_t storage : call.reads) need(storage);
    }
  }

  Action action_of(const TracedCall& call, size_t i) const {
    const auto wanted = [&](int32_t id) { return id >= 0 && (!trace_.may_skip_ || needed_[static_cast<size_t>(id)]); };
    const auto missing = [&](int32_t id) { return wanted(id) && !kept_[static_cast<size_t>(id)]; };
    switch (call.kind.kind) {
      case CallKind::makes:
        if (call.kept) return Action::give;
        if (std::any_of(call.makes.begin(), call.makes.end(), missing)) return Action::run;
        return std::any_of(call.makes.begin(), call.makes.end(), wanted) ? Action::give : Action::skip;
      case CallKind::writes: {
        const bool from_outside = trace_.storages_[static_cast<size_t>(call.target)].maker < 0;
        const bool done = kept_[static_cast<size_t>(call.target)];
        return from_outside || forced_[i] || (wanted(call.target) && !done) ? Action::run : Action::skip;
      }
      default:
        return Action::run;
    }
  }

  /// In-place writes to memory that exists in the second run are repeated, whether needed or not.
  bool force_writers() {
    bool again = false;
    for (const size_t i : c10::irange(steps_.size())) {
      const TracedCall& call = trace_.calls_[i];
      if (call.kind.kind != CallKind::writes || steps_[i].action == Action::run) continue;
      const auto maker = static_cast<size_t>(trace_.storages_[static_cast<size_t>(call.target)].maker);
      const auto& outputs = trace_.calls_[maker].makes;
      const auto output = std::find(outputs.begin(), outputs.end(), call.target) - outputs.begin();
      const bool there = steps_[maker].action == Action::run ||
                         (steps_[maker].action == Action::give && (steps_[maker].given >> output & 1) &&
                          !kept_[static_cast<size_t>(call.target)]);
      if (there) forced_[i] = again = true;
    }
    return again;
  }

  const RegionTrace& trace_;
  const std::vector<char>& kept_;
  std::vector<Step> steps_;
  std::vector<char> needed_, forced_;
  double seconds_ = 0;
};

std::vector<Step> RegionTrace::steps(const std::vector<char>& kept) const {
  return Scan(*this, kept).steps();
}

double RegionTrace::seconds_again(const std::vector<char>& kept) const {
  return Scan(*this, kept).seconds();
}

}  // namespace bellows::recompute::detail
