#pragma once

#include <ATen/core/ivalue.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "bellows/graph/execution/program_runner.h"
#include "bellows/graph/recording/dispatch_state.h"
#include "bellows/graph/recording/geometry.h"
#include "bellows/graph/replay/call_frame.h"
#include "bellows/graph/replay/call_notes.h"
#include "bellows/tap/pending_storage.h"

namespace bellows::graph::detail {

/// The state of the calling thread when a call begins.
struct ThreadState {
  DispatchState dispatch_state{};
  int float32_precision = 0;

  static ThreadState capture() { return {DispatchState::capture(), graph::float32_precision()}; }
  bool operator==(const ThreadState& other) const = default;
};

/// The tensor arguments of a call, their versions and the state of the thread when it began.
struct CallStart {
  explicit CallStart(std::span<const at::Tensor* const> the_arguments);

  std::span<const at::Tensor* const> arguments;
  std::vector<uint32_t> versions;
  ThreadState state;
};

/// A reason why a call cannot be replayed: the operator, or "" if there is none, and the reason.
struct Refusal {
  std::string op{}, why{};
};

/// A followed call in a form that can be repeated without its function: the program, its inputs by origin, the operators
/// that run immediately, and the tensors that receive the results.
///
/// Tensors that the function returned are new in each replay. Other tensors that are still referenced after the call,
/// such as gradients, keep their objects, and a replay replaces their content.
/// Threads: one thread at a time
class ReplayedCall {
 public:
  /// Converts a call that has just been followed completely.
  /// Params: refusal – receives the reason if the result is null
  static std::unique_ptr<ReplayedCall> of(const CallNotes& notes, const CallStart& start, const CallFrame& frame,
                                          Refusal& refusal);

  /// Compares the call with the previous one.
  /// Returns: a refusal with an empty reason if both calls did the same
  Refusal difference_from(const ReplayedCall& earlier) const;
  /// Adds the content of the tensors that the function uses and that are no arguments, up to 1 MiB each, to the notes of
  /// the next call.
  void note_contents(CallNotes& notes) const;
  /// Returns the reason why a call differs from this one before its function runs; empty if it does not.
  std::string mismatch(const CallStart& start, const CallFrame& frame) const;
  /// Runs the call. Requires that mismatch() returned no reason, and sets `frame.returned` and `frame.lengths`.
  /// Throws: exceptions of operators. Results that were not computed then have no value
  void run(const CallStart& start, CallFrame& frame);

 private:
  /// The origin of a buffer.
  struct Place {
    enum class Kind : uint8_t { none, argument, captured, ran_now, constant, output };
    Kind kind = Kind::none;
    int index = 0;
    bool operator==(const Place& other) const = default;
  };
  struct Argument {
    bool defined = false;
    Geometry geometry{};
    int first = 0;          ///< the first argument with the same storage
    uint32_t versions = 0;  ///< by how much the call increases the version
  };
  /// A storage that existed before the call and is no argument.
  struct Captured {
    WeakStorage storage;
    const c10::StorageImpl* address = nullptr;
    bool written = false;
    bool lacks_content = false;  ///< each call has a new storage, which is too large to compare
    std::string content{};
    c10::Storage constant{};  ///< set if each call has a new storage with the same content
  };
  /// A tensor over such a storage that exists also after the call.
  struct Watched {
    WeakTensor tensor;
    const c10::StorageImpl* storage = nullptr;
    Geometry geometry{};
    bool requires_grad = false;
    const c10::TensorImpl* gradient = nullptr;  ///< may be the undefined tensor
    WeakTensor gradient_reference;              ///< so that its address is not reused
    uint32_t versions = 0;
  };
  /// A new buffer whose content host code wrote. The content is the same in each call.
  struct Constant {
    std::string content{};
    c10::Storage storage{};
    bool written = false;  ///< or returned, so that each call needs a copy
  };
  /// The operators that run immediately, as a program. They run before the program of the deferred operators, because
  /// they need no results of it.
  struct Immediate {
    Program program{};
    std::vector<Place> inputs{};              ///< the kind is `none` if the operators read only the sizes of the input
    std::vector<Place> outputs{};             ///< the kind is `ran_now` for new buffers, and otherwise `none`
    std::unique_ptr<ProgramRunner> runner{};  ///< created at the first run
  };
  struct Kept {
    int output = 0;
    WeakStorage storage;
    std::vector<WeakTensor> tensors{};
  };
  struct Returned {
    Place place{};
    bool defined = false, counted = true;
    int same = -1;      ///< the first returned tensor that is the same object; -1 if this is the first one
    int argument = -1;  ///< the argument that is the same object
    Geometry geometry{};
  };

  ReplayedCall() = default;
  Refusal add_arguments(const CallStart& start);
  Place place_of(BufferId buffer, const CallNotes& notes);
  Place new_place(BufferId buffer, const CallNotes& notes);
  void add_immediate(const CallNotes& notes);
  void add_program(const CallNotes& notes);
  Refusal add_returned(const CallNotes& notes, const CallStart& start, const CallFrame& frame);
  Place place_of_result(const at::Tensor& result, const CallNotes& notes);
  Refusal add_kept(const CallNotes& notes);
  void add_watched(const CallNotes& notes);
  void mark_written(const Place& place);
  Refusal large_input() const;
  Refusal difference_of_inputs(const ReplayedCall& earlier) const;
  Refusal difference_of_operators(const ReplayedCall& earlier) const;

  std::string argument_mismatch(const CallStart& start) const;
  bool overlaps(const CallStart& start) const;
  std::string captured_mismatch() const;
  void run_immediate();
  const c10::Storage& storage_at(const Place& place) const;
  /// Params: holds – receives the inputs; null if they need no hold
  void take_inputs(const CallStart& start, tap::StorageHolds* holds);
  void release_kept();
  void increase_versions(const CallStart& start);
  void hand_out(const std::string& error);
  void set_returned(const CallStart& start, CallFrame& frame) const;

  ThreadState state_{};
  std::string values_;
  std::vector<Argument> arguments_;
  std::vector<Captured> captured_;
  std::vector<Constant> constants_;
  ska::flat_hash_map<BufferId, Place> places_;         ///< used during construction
  std::vector<const c10::StorageImpl*> own_storages_;  ///< captured and kept storages, sorted
  std::vector<Watched> watched_;
  Immediate immediate_;
  std::shared_ptr<Executable> executable_;
  std::vector<c10::IValue> numbers_;
  std::vector<const OperatorFacts*> number_ops_;
  std::vector<Place> inputs_;
  std::vector<bool> written_;
  std::vector<Kept> kept_;
  std::vector<Returned> returned_;
  std::vector<size_t> lengths_;
  size_t outputs_ = 0;  ///< of the program
  size_t made_ = 0;     ///< number of buffers that operators make that run immediately

  // Set during a call, and empty otherwise. Members, so that their memory is reused.
  std::vector<c10::Storage> now_arguments_, now_captured_, now_constants_, now_made_, now_inputs_, now_outputs_;
};

}  // namespace bellows::graph::detail
