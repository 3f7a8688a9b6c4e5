#include "bellows/graph/recording/interpreter.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty_strided.h>

#include <optional>

#include "bellows/graph/recording/node_value.h"
#include "bellows/tap/op_tap.h"
#include "bellows/tap/pending_storage.h"

namespace bellows::graph::detail {
namespace {

class Interpreter {
 public:
  Interpreter(const Segment& segment, BufferTable& buffers, Explanation& counts)
      : pending_(segment.nodes),
        numbers_(segment.numbers),
        buffers_(buffers),
        counts_(counts),
        last_use_(buffers.size(), -1) {
    for (size_t i = 0; i < pending_.size(); ++i) {
      for_each_buffer(*pending_[i], [&](BufferId buffer) { last_use_[buffer] = static_cast<int>(i); });
    }
  }

  void run() {
    for (at_ = 0; at_ < pending_.size(); ++at_) {
      try {
        run_node(*pending_[at_]);
      } catch (c10::Error& error) {
        error.add_context("Running " + pending_[at_]->op->name +
                          ", which was called earlier in its region. This trace does not show its caller.");
        give_up(error.what_without_backtrace());
        throw;
      } catch (const std::exception& error) {
        give_up(error.what());
        throw;
      }
    }
  }

 private:
  template <class Visit>
  static void for_each_buffer(const Node& node, const Visit& visit) {
    for (const Argument& argument : node.arguments) {
      for (const Value& value : argument.tensors) {
        if (value.buffer >= 0) visit(value.buffer);
      }
    }
    for (const Result& result : node.results) {
      for (const Output& output : result.outputs) {
        if (output.value.buffer >= 0) visit(output.value.buffer);
      }
    }
  }

  void run_node(const Node& node) {
    if (!dispatch_scope_ || !(*dispatch_state_of_ == node.dispatch_state) || node.float32_precision != precision_of_)
      enter(node);
    for (const Argument& argument : node.arguments)
      stack_.push_back(argument.lifted ? numbers_[number_++]
                                       : value_of(argument, [&](const Value& value) { return tensor_of(value); }));
    // Kernels of out= operators use their arguments after the stack has dropped them.
    const std::vector<c10::IValue> owners(node.op->writes.size() > 1 ? stack_.begin() : stack_.end(), stack_.end());
    tap::OpCall(*node.op->handle).next(stack_);
    for (size_t i = 0; i < node.results.size(); ++i) take(node.results[i], stack_[i]);
    stack_.clear();
    for_each_buffer(node, [&](BufferId buffer) {
      if (last_use_[buffer] == static_cast<int>(at_)) buffers_[buffer].real = {};
    });
  }

  void enter(const Node& node) {
    dispatch_scope_.reset();
    dispatch_scope_.emplace(node.dispatch_state, node.float32_precision);
    dispatch_state_of_ = &node.dispatch_state;
    precision_of_ = node.float32_precision;
  }

  at::Tensor tensor_of(const Value& value) {
    return value.buffer == no_buffer ? at::Tensor() : value.geometry.over(buffers_[value.buffer].real);
  }

  void take(const Result& result, const c10::IValue& value) {
    size_t at = 0;
    for_each_tensor(value, [&](const at::Tensor& tensor) { take(result.outputs.at(at++), tensor); });
  }

  void take(const Output& output, const at::Tensor& tensor) {
    if (!output.made) return;
    ++counts_.results;
    const at::Tensor fitting = as_recorded(output.value.geometry, tensor);
    Buffer& buffer = buffers_[output.value.buffer];
    buffer.pending = false;
    if (auto storage = buffer.weak.lock()) {
      tap::fulfil(*storage, *fitting.storage().unsafeGetStorageImpl());
      buffer.real = c10::Storage(std::move(storage));
    } else {
      ++counts_.never_seen;
      buffer.real = fitting.storage();
    }
  }

  /// Tensors with the recorded strides have been returned already. If a kernel now returns others, the result is
  /// copied.
  at::Tensor as_recorded(const Geometry& geometry, const at::Tensor& tensor) const {
    if (geometry.fits(tensor)) return tensor;
    TORCH_CHECK(
        tensor.sizes() == at::IntArrayRef(geometry.sizes) && tensor.dtype() == geometry.dtype && geometry.offset == 0,
        "region: ", pending_[at_]->op->name, " returned ", Geometry::of(tensor).text(), ", expected ", geometry.text(),
        " as in the recording. If its sizes depend on data, add the tag ", "at::Tag::dynamic_output_shape.");
    at::Tensor copy = at::empty_strided(geometry.sizes, geometry.strides, tensor.options());
    copy.copy_(tensor);
    return copy;
  }

  void give_up(const std::string& why) {
    dispatch_scope_.reset();
    const std::string message =
        "this tensor has no value, because an operator of its region failed before it was computed: " + why;
    for (; at_ < pending_.size(); ++at_) {
      for (const Result& result : pending_[at_]->results) {
        for (const Output& output : result.outputs) {
          if (!output.made || !buffers_[output.value.buffer].pending) continue;
          if (auto storage = buffers_[output.value.buffer].weak.lock()) tap::abandon(*storage, message);
        }
      }
    }
  }

  const std::vector<const Node*>& pending_;
  const std::vector<c10::IValue>& numbers_;
  BufferTable& buffers_;
  Explanation& counts_;
  std::vector<int> last_use_;
  size_t at_ = 0, number_ = 0;
  std::optional<DispatchStateScope> dispatch_scope_;
  const DispatchState* dispatch_state_of_ = nullptr;
  int precision_of_ = -1;
  tap::Stack stack_;  // reused by all operators
};

}  // namespace

void run_in_order(const Segment& segment, BufferTable& buffers, Explanation& counts) {
  ++counts.flushes;
  Interpreter(segment, buffers, counts).run();
}

}  // namespace bellows::graph::detail
