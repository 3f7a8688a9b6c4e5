#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "bellows/report/trace_writer.h"

namespace bellows::inspect {

/// What a block of memory is there for.
enum class TensorKind {
  weight,
  master,       ///< fp32 copies of low-precision weights
  gradient,     ///< of a parameter
  optimizer,    ///< state that an optimizer keeps from step to step
  activation,   ///< saved by the forward pass for backward
  weight_copy,  ///< made of weights alone in the forward pass: autocast's casts
  temporary,    ///< all that a step makes and drops again, gradients of activations among it
  buffer,
  input,  ///< made in a scope called "load"
  other,  ///< was there before the step, and nobody said what it is: averaged weights
};
inline constexpr size_t tensor_kinds = 10;

/// "weights", "activations", …
std::string_view to_string(TensorKind kind);

/// One block of memory in a step, from its allocation to its end.
struct TensorLife {
  int64_t bytes = 0;
  TensorKind kind = TensorKind::temporary;
  int64_t element_bytes = 0;  ///< of what autograd saved in floating point; 0: masks, indices, and what it did not save
  std::string name;           ///< of a parameter, a buffer, or what add() said; of a gradient its parameter's
  std::string op;             ///< that made it: "aten::addmm"; "": none, or before the step
  std::string node;           ///< the autograd node around that operator: "AddmmBackward0"
  std::string module;         ///< whose operator it was: "encoder.layer.3.output"; "": the model's own
  std::string phase;          ///< "forward", "backward", "optimizer" or another TraceScope that it was made in; ""
  int64_t born = -1;          ///< number of the event that made it; -1: was there before the step
  int64_t died = 0;           ///< number of the event that ended it; TensorTimeline::events: lives on
  double born_us = 0, died_us = 0;

  bool alive_after(int64_t event) const { return born <= event && event < died; }
};

/// Which tensors live from when to when in a step. Events are the allocations and frees, in their order.
struct TensorTimeline {
  std::vector<TensorLife> tensors;  ///< in the order in which they were made
  int64_t events = 0;
  double begin_us = 0, end_us = 0;

  struct Moment {
    int64_t event = -1;  ///< right behind this one; -1: the step's beginning
    int64_t bytes = 0;
    std::array<int64_t, tensor_kinds> by_kind{};
    int64_t of(TensorKind kind) const { return by_kind[static_cast<size_t>(kind)]; }
  };
  /// The moment with the most bytes, the first of several.
  Moment peak() const;
  /// What lives right behind each event, from -1 on: events + 1 values.
  std::vector<int64_t> bytes_over_time() const;

  /// The peak in words: its bytes by kind, and the largest tensors of it.
  std::string to_string(size_t largest = 10) const;
  /// A page that needs nothing beside itself: bytes by kind over the step, the largest tensors' lives, the peak.
  std::string to_html(const std::string& title) const;
  /// Bytes by kind as graphs, and the largest tensors as bars from their birth to their end.
  void draw(TraceWriter& writer, size_t largest = 200) const;
};

}  // namespace bellows::inspect
