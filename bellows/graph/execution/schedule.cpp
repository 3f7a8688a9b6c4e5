#include "bellows/graph/execution/schedule.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <unordered_map>
#include <unordered_set>

namespace bellows::graph::detail {
namespace {

bool keeps_order(const Instruction& one) {
  return one.op && !one.kernel && (!one.op->known || one.op->random || one.op->host_value);
}

/// True if the operator may throw because of values in its tensors, such as an index that is too large or a singular
/// matrix.
bool may_fail(const Instruction& one) {
  if (!one.op || one.kernel) return false;
  bool fails = !one.op->known || one.op->name.find("linalg") != std::string::npos;
  for_each_operand(one, [&](const Operand& operand) {
    const auto type = operand.geometry.dtype.toScalarType();
    fails = fails || type == c10::kLong || type == c10::kInt;
  });
  return fails;
}

/// Keeps the order between operators that may fail and writes to buffers that outlive the program. After an error,
/// these buffers then have the same content as in eager code.
class FailureOrder {
 public:
  explicit FailureOrder(const Program& program) : outer_(program.inputs.begin(), program.inputs.end()) {}

  template <class Edge>
  void add(const Instruction& one, int at, const Edge& edge) {
    for (const auto& update : one.updates) {
      if (!outer_.contains(update.before)) continue;
      outer_.insert(update.after);
      edge(failing_, at);
      written_.push_back(at);
    }
    if (!may_fail(one)) return;
    edge(failing_, at);
    for (const int write : written_) edge(write, at);
    written_.clear();
    failing_ = at;
  }

 private:
  std::unordered_set<ValueId> outer_;
  std::vector<int> written_;
  int failing_ = -1;
};

bool contains(const std::vector<int>& sorted, int item) {
  return std::binary_search(sorted.begin(), sorted.end(), item);
}

}  // namespace

Schedule::Schedule(const Program& program)
    : uses_(program),
      needs_(program.instructions.size()),
      needed_by_(program.instructions.size()),
      unit_(program.instructions.size()),
      members_(program.instructions.size()),
      place_(program.instructions.size()) {
  const auto edge = [&](int from, int to) {
    if (from < 0 || from == to) return;
    needed_by_[from].push_back(to);
    needs_[to].push_back(from);
  };
  FailureOrder failures(program);
  int last = -1;
  for (size_t i = 0; i < program.instructions.size(); ++i) {
    const Instruction& one = program.instructions[i];
    const int at = static_cast<int>(i);
    for_each_operand(one, [&](const Operand& operand) { edge(uses_.maker[operand.value], at); });
    for (const auto& update : one.updates) {
      edge(uses_.maker[update.before], at);
      for (const int reader : uses_.readers[update.before]) edge(reader, at);
    }
    if (one.late) edge(at - 1, at);
    failures.add(one, at, edge);
    if (keeps_order(one)) {
      edge(last, at);
      last = at;
    }
    unit_[i] = at;
    members_[i] = {at};
    place_[i] = static_cast<double>(i);
  }
}

std::pair<double, bool> Schedule::place_for(int a, int b) const {
  double low = -1, high = std::numeric_limits<double>::infinity();
  for (const int unit : {a, b}) {
    for (const int member : members_[unit]) {
      for (const int need : needs_[member]) {
        if (unit_[need] != a && unit_[need] != b) low = std::max(low, place_[unit_[need]]);
      }
      for (const int user : needed_by_[member]) {
        if (unit_[user] != a && unit_[user] != b) high = std::min(high, place_[unit_[user]]);
      }
    }
  }
  if (!(low < high)) return {0, false};
  for (const double place : {std::max(place_[a], place_[b]), std::min(place_[a], place_[b])}) {
    if (low < place && place < high) return {place, true};
  }
  const double between = high == std::numeric_limits<double>::infinity() ? low + 0.5 : (low + high) / 2;
  return {between, low < between && between < high};
}

int Schedule::merge(int a, int b) {
  place_[a] = place_for(a, b).first;
  for (const int member : members_[b]) unit_[member] = a;
  std::vector<int> both;
  both.reserve(members_[a].size() + members_[b].size());
  std::merge(members_[a].begin(), members_[a].end(), members_[b].begin(), members_[b].end(), std::back_inserter(both));
  members_[a] = std::move(both);
  members_[b].clear();
  return a;
}

Program Schedule::with_groups(const Program& program, const std::vector<std::string>& kinds) const {
  std::vector<int> order(members_.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return place_[a] < place_[b]; });
  Program result = program;
  result.instructions.clear();
  for (const int unit : order) {
    if (members_[unit].size() > 1 && !kinds[unit].empty()) {
      result.instructions.push_back(group_of(program, uses_, members_[unit], kinds[unit]));
    } else {
      for (const int member : members_[unit]) result.instructions.push_back(program.instructions[member]);
    }
  }
  return result;
}

namespace {

/// Makes a group of instructions.
class Grouper {
 public:
  Grouper(const Program& program, const Uses& uses, const std::vector<int>& members)
      : program_(program), uses_(uses), members_(members), body_(std::make_shared<Program>()) {
    body_->states = program.states;
  }

  Instruction run(std::string kind) {
    made_.kind = std::move(kind);
    made_.state = program_.instructions[members_[0]].state;
    for (const int member : members_) add(program_.instructions[member]);
    for (const int member : members_) {
      const Instruction& one = program_.instructions[member];
      for (const auto& update : one.updates) note_output(update.after);
      for_each_result(one, [&](const Operand& operand) { note_output(operand.value); });
    }
    made_.arguments.insert(made_.arguments.end(), numbers_.begin(), numbers_.end());
    made_.group = std::move(body_);
    return std::move(made_);
  }

 private:
  bool makes(ValueId value) const { return uses_.maker[value] >= 0 && contains(members_, uses_.maker[value]); }

  ValueId inside(ValueId value) {
    const auto [known, fresh] = inside_.emplace(value, static_cast<ValueId>(body_->values.size()));
    if (!fresh) return known->second;
    body_->values.push_back(program_.values[value]);
    if (!makes(value)) {
      inputs_.emplace(value, static_cast<int>(body_->inputs.size()));
      body_->inputs.push_back(known->second);
      made_.arguments.push_back({.kind = OperatorFacts::Kind::tensor,
                                 .operands = {{.value = value, .geometry = program_.values[value].geometry}}});
    }
    return known->second;
  }

  void add(Instruction one) {
    made_.late = made_.late || one.late;
    one.late = false;
    for_each_operand(one, [&](Operand& operand) { operand.value = inside(operand.value); });
    for (auto& update : one.updates) {
      const ValueId before = update.before;
      const auto root = roots_.find(before);
      if (!makes(before)) {
        roots_[update.after] = before;
      } else if (root != roots_.end()) {
        roots_[update.after] = root->second;
      }
      update = {.before = inside(update.before), .after = inside(update.after)};
    }
    for_each_result(one, [&](Operand& operand) { operand.value = inside(operand.value); });
    for (auto& argument : one.arguments) {
      if (argument.number >= 0) argument.number = number(argument);
    }
    body_->instructions.push_back(std::move(one));
  }

  int number(const Instruction::Argument& argument) {
    const auto [known, fresh] = number_of_.emplace(argument.number, static_cast<int>(body_->numbers.size()));
    if (fresh) {
      body_->numbers.push_back(program_.numbers[argument.number]);
      numbers_.push_back(argument);
    }
    return known->second;
  }

  bool is_needed(ValueId value) const {
    const auto& readers = uses_.readers[value];
    const bool read =
        std::any_of(readers.begin(), readers.end(), [&](int reader) { return !contains(members_, reader); });
    const int end = uses_.overwriter[value];
    return read || uses_.outputs[value] || (end >= 0 && !contains(members_, end));
  }

  void note_output(ValueId value) {
    if (!makes(value) || !noted_.emplace(value, true).second) return;
    const int end = uses_.overwriter[value];
    const auto root = roots_.find(value);
    if (root != roots_.end() && !(end >= 0 && contains(members_, end))) {
      body_->outputs.push_back({.value = inside_.at(value), .input = inputs_.at(root->second)});
      made_.updates.push_back({.before = root->second, .after = value});
    } else if (root == roots_.end() && is_needed(value)) {
      body_->outputs.push_back({.value = inside_.at(value)});
      made_.results.push_back({.operands = {{.value = value, .geometry = program_.values[value].geometry}}});
    }
  }

  const Program& program_;
  const Uses& uses_;
  const std::vector<int>& members_;
  std::shared_ptr<Program> body_;
  Instruction made_;
  std::vector<Instruction::Argument> numbers_;
  std::unordered_map<ValueId, ValueId> inside_, roots_;
  std::unordered_map<ValueId, int> inputs_;
  std::unordered_map<ValueId, bool> noted_;
  std::unordered_map<int, int> number_of_;
};

}  // namespace

Instruction group_of(const Program& program, const Uses& uses, const std::vector<int>& members, std::string kind) {
  return Grouper(program, uses, members).run(std::move(kind));
}

}  // namespace bellows::graph::detail
