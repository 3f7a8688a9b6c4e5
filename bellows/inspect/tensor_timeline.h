#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "bellows/report/trace_writer.h"

namespace bellows::inspect {

/// Purpose of a block of memory.
enum class TensorKind {
  weight,
  master,       ///< fp32 copies of low-precision weights
  gradient,     ///< gradients of parameters
  optimizer,    ///< optimizer state that persists between steps
  activation,   ///< saved by the forward pass for backward
  weight_copy,  ///< computed from weights only in the forward pass: autocast's casts
  temporary,    ///< all other tensors that are created and freed in a step, including gradients of activations
  buffer,
  input,  ///< created in a scope named "load"
  other,  ///< existed before the step and was not registered, for example averaged weights
};
inline constexpr size_t tensor_kinds = 10;

/// "weights", "activations", …
std::string_view to_string(TensorKind kind);

/// One block of memory in a step, from its allocation to its release.
struct TensorLife {
  int64_t bytes = 0;
  TensorKind kind = TensorKind::temporary;
  int64_t element_bytes = 0;  ///< if autograd saved it in floating point; 0: masks, indices, and tensors not saved
  std::string name;           ///< of a parameter or buffer, or as given to add(); a gradient has its parameter's name
  std::string op;             ///< operator that created it: "aten::addmm"; "" if none, or before the step
  std::string node;           ///< autograd node that contained the operator: "AddmmBackward0"
  std::string module;         ///< module of the operator: "encoder.layer.3.output"; "" for the model itself
  std::string phase;          ///< enclosing TraceScope: "forward", "backward", "optimizer" or another one; "" if none
  int64_t born = -1;          ///< number of the event that created it; -1: existed before the step
  int64_t died = 0;           ///< number of the event that freed it; TensorTimeline::events: lives on
  double born_us = 0, died_us = 0;

  bool alive_after(int64_t event) const { return born <= event && event < died; }
};

/// Lifetimes of the tensors in a step. Events are the allocations and frees in order.
struct TensorTimeline {
  std::vector<TensorLife> tensors;  ///< in the order of creation
  int64_t events = 0;
  double begin_us = 0, end_us = 0;

  struct Moment {
    int64_t event = -1;  ///< the moment after this event; -1: the start of the step
    int64_t bytes = 0;
    std::array<int64_t, tensor_kinds> by_kind{};
    int64_t of(TensorKind kind) const { return by_kind[static_cast<size_t>(kind)]; }
  };
  /// The moment with the most bytes; the first one if there are several.
  Moment peak() const;
  /// The live bytes after each event, starting with -1: events + 1 values.
  std::vector<int64_t> bytes_over_time() const;

  /// The peak as text: bytes by kind, and the largest tensors.
  std::string to_string(size_t largest = 10) const;
  /// A self-contained page: bytes by kind over the step, lifetimes of the largest tensors, and the peak.
  std::string to_html(const std::string& title) const;
  /// Writes bytes by kind as graphs, and the lifetimes of the largest tensors as bars.
  void draw(TraceWriter& writer, size_t largest = 200) const;
};

}  // namespace bellows::inspect
