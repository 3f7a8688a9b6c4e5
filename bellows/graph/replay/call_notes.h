#pragma once

#include <c10/util/flat_hash_map.h>

#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "bellows/graph/program/program.h"
#include "bellows/graph/recording/buffer_table.h"
#include "bellows/graph/recording/match.h"
#include "bellows/graph/recording/segment.h"

namespace bellows::graph::detail {

using WeakStorage = c10::weak_intrusive_ptr<c10::StorageImpl>;
using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;

/// Returns a copy of a storage's bytes. Works also while the storage is guarded.
std::string bytes_of(const c10::StorageImpl& storage);

/// The properties of one followed call that its recording does not contain: the tensors that it used, the operators that
/// ran immediately with their actual arguments, and the program that ran. A replay of the call needs them.
/// Memory:  weak references only, and copies of inputs of at most 4 KiB each. After the call, the references keep no
///          data alive
/// Threads: one thread at a time
class CallNotes {
 public:
  /// A buffer that existed before the call.
  struct Input {
    BufferId buffer = no_buffer;
    int argument = -1;  ///< the first argument with this storage; -1 if there is none
    const c10::StorageImpl* address = nullptr;
    WeakStorage storage;
    bool copied = false;  ///< `content` is set
    std::string content{};
  };
  /// A tensor of such a buffer that is not an argument.
  struct Seen {
    const c10::TensorImpl* address = nullptr;
    WeakTensor tensor;
    uint32_t version = 0;  ///< when the call first used it
  };
  /// A tensor whose buffer a deferred operator created.
  struct Pending {
    BufferId buffer = no_buffer;
    WeakTensor tensor;
  };
  /// A buffer that an operator created that ran immediately.
  struct MadeNow {
    std::string op{};
    WeakStorage storage;
    uint64_t hash = 0;
    bool host_wrote = false;  ///< host code wrote `content` into the buffer
    std::string content{};
  };

  /// Params: arguments – of the call; valid during the call
  ///         poison    – differs between consecutive calls
  CallNotes(std::span<const at::Tensor* const> arguments, bool poison);

  /// Notes the content of a tensor before the function runs. If the content differs when an operator first uses the
  /// tensor, the call is refused, because the function itself wrote it.
  void note_before(const c10::StorageImpl& storage);

  /// Notes a reason why the call cannot be replayed. Only the first reason counts.
  void refuse(const std::string& op, const std::string& why);
  /// Notes the tensors of an operator that is followed.
  void note_arguments(const Instruction& instruction, const Arrival& arrival);
  /// Notes a result of a deferred operator.
  void note_pending(BufferId buffer, const at::Tensor& tensor);
  /// Notes another tensor with the buffer of an earlier one.
  void note_view(BufferId buffer, const at::Tensor& tensor);
  /// Notes an operator that has run immediately.
  void note_ran_now(const RecordedOperator& recorded, std::span<const c10::IValue> arguments,
                    std::span<const c10::IValue> results);
  /// Notes the program that is about to run. A replay needs a program of a back end.
  /// Params: plan – null if the operators run one by one
  void note_run(const Plan* plan, const Segment& segment, BufferTable& buffers);

  const Input* input(BufferId buffer) const;

  std::string refused_op{}, refused{};  ///< set by refuse()
  std::vector<Seen> seen{};
  std::vector<Pending> pending{};
  std::vector<RecordedOperator> ran_now{};  ///< with the constants and numbers of this call
  std::unordered_map<BufferId, MadeNow> made_now{};
  std::shared_ptr<Executable> executable{};
  std::vector<c10::IValue> numbers{};
  std::vector<const OperatorFacts*> number_ops{};  ///< for each number: the operator that receives it
  std::vector<BufferId> inputs{}, outputs{};       ///< of the program, as in Plan
  std::vector<bool> written{};                     ///< for each input of the program
  std::vector<WeakStorage> output_storages{};      ///< invalid for outputs that are written back

 private:
  enum class Origin : uint8_t { unknown, input, pending, now };

  Origin origin(BufferId buffer) const {
    return static_cast<size_t>(buffer) < origins_.size() ? origins_[buffer] : Origin::unknown;
  }
  void set_origin(BufferId buffer, Origin origin);
  void note_input(BufferId buffer, const at::Tensor& tensor);
  void find_earlier_write(const c10::StorageImpl& storage);
  void note_content(BufferId buffer, const at::Tensor& tensor, const OperatorFacts& op);
  void find_host_writes();

  std::span<const at::Tensor* const> arguments_;
  const bool poison_;
  std::vector<Origin> origins_;
  std::vector<Input> inputs_;
  std::unordered_map<const c10::StorageImpl*, uint64_t> before_;  ///< hashes of contents
  ska::flat_hash_map<BufferId, size_t> input_of_;
  ska::flat_hash_map<const c10::TensorImpl*, size_t> seen_of_;
};

}  // namespace bellows::graph::detail
