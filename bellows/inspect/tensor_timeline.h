#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "bellows/report/trace_writer.h"

namespace bellows::inspect {

/// The purpose of a block of memory.
enum class TensorKind {
  weight,
  master,       ///< fp32 copies of low-precision weights
  gradient,     ///< gradients of parameters
  optimizer,    ///< optimizer state that is kept between steps
  activation,   ///< saved in forward for backward
  weight_copy,  ///< computed in forward from weights only, such as the casts of autocast
  temporary,    ///< all other tensors that are created and freed in a step, such as gradients of activations
  buffer,
  input,  ///< created in a TraceScope named "load"
  other,  ///< existed before the step and was not registered, such as averaged weights
};
inline constexpr size_t tensor_kinds = 10;

/// Returns the plural of the kind, such as "weights" or "activations".
std::string_view to_string(TensorKind kind);

/// One block of memory in a step, from its allocation until it is freed.
struct TensorLife {
  int64_t bytes = 0;
  TensorKind kind = TensorKind::temporary;
  /// Bytes per element, if autograd saved the tensor and it is floating-point. 0 for masks, indices, and tensors that
  /// were not saved.
  int64_t element_bytes = 0;
  /// Name of the parameter or buffer, or the name passed to add(). A gradient has the name of its parameter.
  std::string name;
  /// Operator that created the block, such as "aten::addmm". Empty if there is none, or if the block is older than the
  /// step.
  std::string op;
  std::string node;    ///< autograd node in which the operator ran, such as "AddmmBackward0"
  std::string module;  ///< module of the operator, such as "encoder.layer.3.output"; empty for the model itself
  /// Enclosing TraceScope, such as "forward", "backward" or "optimizer". Empty if there is none.
  std::string phase;
  int64_t born = -1;  ///< number of the event that allocated it; -1 if it existed before the step
  /// Number of the event that freed it, or TensorTimeline::events if it outlives the step.
  int64_t died = 0;
  double born_us = 0, died_us = 0;

  bool alive_after(int64_t event) const { return born <= event && event < died; }
};

/// The lifetimes of the tensors in a step. Events are the allocations and frees, in the order in which they occurred.
struct TensorTimeline {
  std::vector<TensorLife> tensors;  ///< in the order of creation
  int64_t events = 0;
  double begin_us = 0, end_us = 0;

  struct Moment {
    int64_t event = -1;  ///< the moment after this event; -1 for the start of the step
    int64_t bytes = 0;
    std::array<int64_t, tensor_kinds> by_kind{};
    int64_t of(TensorKind kind) const { return by_kind[static_cast<size_t>(kind)]; }
  };
  /// Returns the moment with the most bytes. If there are several, returns the first one.
  Moment peak() const;
  /// Returns the live bytes after each event, starting with event -1. The result has events + 1 values.
  std::vector<int64_t> bytes_over_time() const;

  /// Returns the peak as text: bytes by kind, and the largest tensors.
  std::string to_string(size_t largest = 10) const;
  /// Returns a self-contained HTML page with the bytes by kind during the step, the lifetimes of the largest tensors,
  /// and the peak.
  std::string to_html(const std::string& title) const;
  /// Returns the sections of this page without its frame, for pages that show more than the timeline. They need
  /// html_style().
  std::string html_sections() const;
  static std::string html_style();
  /// Writes the bytes by kind to a trace as graphs, and the lifetimes of the largest tensors as bars.
  void draw(TraceWriter& writer, size_t largest = 200) const;
};

}  // namespace bellows::inspect
