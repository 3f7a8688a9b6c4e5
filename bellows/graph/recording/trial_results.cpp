#include "bellows/graph/recording/trial_results.h"

#include <c10/util/hash.h>

#include <algorithm>

#include "bellows/graph/recording/match.h"

namespace bellows::graph::detail {
namespace {

/// The buffers of a node's arguments, in the order of their first use.
std::vector<BufferId> buffers_of(const Node& node) {
  std::vector<BufferId> buffers;
  for (const Argument& argument : node.arguments) {
    for (const Value& value : argument.tensors) {
      if (value.buffer >= 0 && std::find(buffers.begin(), buffers.end(), value.buffer) == buffers.end())
        buffers.push_back(value.buffer);
    }
  }
  return buffers;
}

BufferId place_of(BufferId buffer, const std::vector<BufferId>& buffers) {
  if (buffer < 0) return buffer;
  return static_cast<BufferId>(std::find(buffers.begin(), buffers.end(), buffer) - buffers.begin());
}

size_t hash_of(const Node& node) {
  size_t hash = std::hash<const void*>()(node.op);
  for (const Argument& argument : node.arguments) {
    for (const Value& value : argument.tensors) {
      for (const int64_t size : value.geometry.sizes) hash = c10::hash_combine(hash, static_cast<size_t>(size));
    }
  }
  return hash;
}

/// Compares a node with a known one, whose buffers are numbered by their places.
bool same_arguments(const Node& known, const Node& node, const std::vector<BufferId>& buffers) {
  if (known.op != node.op || known.dispatch_state != node.dispatch_state ||
      known.float32_precision != node.float32_precision || known.arguments.size() != node.arguments.size())
    return false;
  return std::equal(known.arguments.begin(), known.arguments.end(), node.arguments.begin(),
                    [&](const Argument& a, const Argument& b) {
                      const auto same_value = [&](const Value& x, const Value& y) {
                        return x.buffer == place_of(y.buffer, buffers) && x.geometry == y.geometry;
                      };
                      return a.kind == b.kind && same_constant(a.constant, b.constant) &&
                             std::equal(a.tensors.begin(), a.tensors.end(), b.tensors.begin(), b.tensors.end(),
                                        same_value);
                    });
}

}  // namespace

std::optional<Node> TrialResults::find(const Node& begun, BufferId next) const {
  const auto [first, last] = known_.equal_range(hash_of(begun));
  if (first == last) return {};
  const std::vector<BufferId> buffers = buffers_of(begun);
  const auto found =
      std::find_if(first, last, [&](const auto& one) { return same_arguments(one.second, begun, buffers); });
  if (found == last) return {};
  const Node& known = found->second;
  Node node = begun;
  node.when = known.when;
  node.view = known.view;
  node.results = known.results;
  node.buffers_after = next;
  const auto count = static_cast<BufferId>(buffers.size());
  for (Result& result : node.results) {
    for (Output& output : result.outputs) {
      BufferId& buffer = output.value.buffer;
      if (buffer >= 0) buffer = buffer < count ? buffers[buffer] : next + buffer - count;
      node.buffers_after = std::max(node.buffers_after, buffer + 1);
    }
  }
  return node;
}

void TrialResults::add(const Node& node) {
  if (known_.size() == most_kept) known_.clear();
  const std::vector<BufferId> buffers = buffers_of(node);
  std::vector<BufferId> made;
  Node known = node;
  for (Argument& argument : known.arguments) {
    for (Value& value : argument.tensors) value.buffer = place_of(value.buffer, buffers);
  }
  for (Result& result : known.results) {
    for (Output& output : result.outputs) {
      BufferId& buffer = output.value.buffer;
      if (output.made) made.push_back(buffer);
      const BufferId place = place_of(buffer, buffers);
      const auto count = static_cast<BufferId>(buffers.size());
      buffer = place < count ? place : count + place_of(buffer, made);
    }
  }
  known_.emplace(hash_of(node), std::move(known));
}

}  // namespace bellows::graph::detail
