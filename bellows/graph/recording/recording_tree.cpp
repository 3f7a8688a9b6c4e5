#include "bellows/graph/recording/recording_tree.h"

#include <algorithm>

#include "bellows/graph/program/program_builder.h"

namespace bellows::graph::detail {

Step* RecordingTree::append(Step* parent, RecordedOperator recorded) {
  auto made = std::make_unique<Step>();
  made->recorded = std::move(recorded);
  made->parent = parent;
  made->depth = parent->depth + 1;
  renew(*made);
  return parent->next.insert(parent->next.begin(), std::move(made))->get();
}

void RecordingTree::end_call(Step* last) {
  ++calls_;
  ++last->ended;
  most_buffers_ = std::max(most_buffers_, static_cast<size_t>(last->recorded.buffers_after));
  last->last_used = calls_;
}

std::vector<const Step*> RecordingTree::leaves() const {
  std::vector<const Step*> found, open{&root_};
  while (!open.empty()) {
    const Step* const step = open.back();
    open.pop_back();
    if (step->next.empty() && step != &root_) found.push_back(step);
    for (const auto& next : step->next) open.push_back(next.get());
  }
  return found;
}

int RecordingTree::prune(size_t most) {
  auto all = leaves();
  if (all.size() <= most) return 0;
  std::sort(all.begin(), all.end(), [](const Step* a, const Step* b) { return a->last_used < b->last_used; });
  const auto count = static_cast<int>(all.size() - most);
  for (int i = 0; i < count; ++i) {
    const Step* cut = all[i];  // up to where another recording branches off
    while (cut->parent != &root_ && cut->parent->next.size() == 1) cut = cut->parent;
    std::erase_if(cut->parent->next, [&](const auto& step) { return step.get() == cut; });
  }
  renew_pool();
  return count;
}

/// Removes the values of dropped recordings when they may be half of the pool.
void RecordingTree::renew_pool() {
  constexpr size_t small = 1024;
  if (pool_.size() < 2 * renewed_pool_ + small) return;
  pool_.clear();
  std::vector<Step*> open{&root_};
  while (!open.empty()) {
    Step* const step = open.back();
    open.pop_back();
    if (step != &root_) renew(*step);
    for (const auto& next : step->next) open.push_back(next.get());
  }
  renewed_pool_ = pool_.size();
}

std::vector<Recording> RecordingTree::all() const {
  std::vector<Recording> result;
  for (const Step* leaf : leaves()) {
    std::vector<const RecordedOperator*> operators(leaf->depth);
    for (const Step* step = leaf; step != &root_; step = step->parent) operators[step->depth - 1] = &step->recorded;
    Recording one{.calls = leaf->ended};
    for (const RecordedOperator* recorded : operators) one.when.push_back(recorded->when);
    one.program = build_program(operators, [](BufferId) { return false; }).program;
    result.push_back(std::move(one));
  }
  return result;
}

}  // namespace bellows::graph::detail
