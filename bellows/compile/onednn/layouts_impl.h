#pragma once

#include <functional>
#include <string>
#include <unordered_map>
#include <vector>

#include "bellows/compile/onednn/onednn.h"
#include "bellows/compile/onednn/packed_memory.h"
#include "bellows/compile/onednn/primitives_impl.h"

namespace bellows::compile_detail::onednn {

using graph::Geometry;
using graph::Instruction;
using graph::Operand;
using graph::Program;
using graph::ValueId;

/// Rewrites a program in one pass. An image that a primitive computes gets a second value in channels-last order, its
/// twin. If an instruction does not support the twin, the original value is computed from the twin before the first
/// such instruction.
class Layouts {
 public:
  Layouts(Program& program, bool batch_invariant);
  OnednnReport run();

 private:
  struct Twin {
    Operand operand;
    Geometry plain;
  };

  // Each function returns whether it has replaced the instruction `at`.
  bool replace(int at);
  bool convolution(int at);
  bool convolution_backward(int at);
  bool batch_norm(int at);
  bool batch_norm_backward(int at);
  bool relu_backward(int at);
  bool max_pool(int at);
  bool max_pool_backward(int at);
  bool average_pool(int at);
  bool average_pool_backward(int at);
  bool concatenate(int at);
  bool linear(int at);
  bool batched_product(int at);
  using TakesImage = std::function<bool(const Operand& operand)>;
  void read_images(Instruction& changed, const Instruction& before, const TakesImage& takes);
  bool follow(int at);
  bool reduce_twins(int at);
  bool sample_norm(int at);
  void keep(int at);
  void drop_unread_constants();

  // Operations on a convolution's result that can become part of the convolution. No other instruction may read the
  // intermediate results.
  struct Epilogue;
  Epilogue epilogue_of(int at, bool fold_norm);
  bool take_addition(Epilogue& epilogue, const Instruction& one, int at, int reader);
  bool take_norm(Epilogue& epilogue, const Instruction& one);
  bool norm_training(int at, BatchNorm shape, std::vector<Operand> operands);
  bool norm_inference(int at, const BatchNorm& shape, std::vector<Operand> operands);
  int relu_behind(int at) const;
  bool norm_backward(const Instruction& one, const Operand& gradient, const Operand* kept);
  Epilogue linear_epilogue_of(int at) const;
  bool take_row_addition(Epilogue& epilogue, const Instruction& one, int at) const;
  struct LinearCall;
  std::optional<LinearCall> linear_call(int at) const;
  bool linear_with(const LinearCall& call, const Epilogue& epilogue);
  bool blas_linear_with(const LinearCall& call, const Epilogue& epilogue);
  void row_linear_with(const LinearCall& call, const Epilogue& epilogue);
  struct QuantizedCall;
  bool quantized_linear(int at);
  bool quantized_convolution(int at);
  std::optional<QuantizedCall> quantized_call(int at) const;
  bool take_bias(QuantizedCall& call, const Instruction& one, int at) const;
  bool take_quantization(QuantizedCall& call, const Instruction& one) const;
  void extend(QuantizedCall& call, int at);
  using MakesPass = std::function<std::optional<LayerPass>(const QuantizedCall& call)>;
  bool put_with_epilogue(const QuantizedCall& call, int at, const Desc& plain, const MakesPass& pass_of);
  void put_quantized(const QuantizedCall& call, const KernelPointer& kernel, const Operand& weight);
  bool take_float_addition(QuantizedCall& call, const Instruction& one, int at, int reader);
  bool take_integer_addition(QuantizedCall& call, const Instruction& one, int at) const;
  bool take_pooling(QuantizedCall& call, int reader) const;
  Operand put_before_pooling(const QuantizedCall& call);
  bool integer_pool(int at);
  bool integer_linear_with(const QuantizedCall& call, int at, Linear shape);
  /// Whether an int32 scalar is known to be 0.
  bool is_zero(const Operand& scalar) const;
  void put_linear(const LinearCall& call, const KernelPointer& kernel, const Operand& weight, const Epilogue& epilogue);
  bool convolve(int at, Epilogue& epilogue);
  struct Part;
  std::vector<Part> parts_of(const Instruction& one, const Convolution& shape, const Epilogue& epilogue) const;
  bool convolve_parts(const Instruction& one, const Convolution& shape, const Operand& bias, const Epilogue& epilogue);
  void take(const Epilogue& epilogue);
  int widening_of(const Operand& gradient) const;
  bool weight_gradient(const Instruction& one, Convolution shape);
  Operand fold(const Epilogue& epilogue, const Convolution& shape, const Operand& bias, Operand& factor);
  bool keeps_image_order(const Instruction& one) const;
  bool waits(const Operand& operand) const;
  bool may_wait(int at) const;
  void join(ValueId value);

  bool is_image(const Operand& operand) const;
  /// Returns the same part of the twin if the operand is a part of an image that has a twin.
  std::optional<Operand> part_of_twin(const Operand& operand) const;
  bool whole(const Operand& operand) const;
  bool owned(const Instruction& one) const;
  /// Returns the operand as a dense channels-last image. The image is copied if necessary.
  Operand channels_last_of(const Operand& operand);
  /// Returns the channels-last operand that a primitive computes instead of this result.
  Operand made_channels_last(const Operand& result);
  void need_plain(ValueId value);
  Operand packed(const Operand& weight, const Desc& plain, const Desc& wanted, const Operand* factor = nullptr);
  /// Returns the weight as a kernel packs it.
  /// Params: nbytes – of the packed weight; determines its layout
  Operand packed_by(const KernelPointer& pack, const Operand& weight, size_t nbytes);
  Operand opaque(size_t nbytes, const Geometry& like);
  /// Returns a new, separate value with this geometry.
  Operand temporary(const Geometry& geometry);
  std::optional<Convolution> shape_of(const Instruction& one, int first, const Operand& input, const Operand& weight,
                                      const Operand& output) const;
  std::optional<Pooling> pooling_of(const Instruction& one, int first, const Operand& input,
                                    const Operand& output) const;

  int sole_reader(ValueId value) const;
  bool is_unread(ValueId value) const { return value < 0 || (!is_output_[value] && readers_[value].empty()); }
  void emit(const char* kind, KernelPointer kernel, const std::vector<Operand>& operands,
            const std::vector<Operand>& results, std::vector<Instruction::Update> updates = {});
  bool compute_now(const graph::Kernel& kernel, const std::vector<Operand>& operands,
                   const std::vector<Operand>& results);
  const Operand& operand(const Instruction& one, size_t argument) const;
  bool defined(const Instruction& one, size_t argument) const { return operand(one, argument).value >= 0; }

  Program& program_;
  const bool batch_invariant_;  ///< see graph::PassOptions
  OnednnReport report_;
  std::vector<Instruction> made_;
  int state_ = 0;
  bool late_ = false;                      ///< see Instruction::late
  std::vector<std::vector<int>> readers_;  ///< for each value
  std::vector<int> maker_;                 ///< for each value; -1 if it exists before the program runs
  std::vector<bool> is_output_, of_caller_, there_, taken_;
  std::unordered_map<ValueId, Twin> twins_;
  struct Packed {
    Operand weight, made;
    Desc plain, wanted;  ///< a convolution and a transposed convolution read the same weight with different dims
  };
  std::unordered_map<ValueId, std::vector<Packed>> packed_;
  std::unordered_map<ValueId, Operand> workspaces_;  ///< by the value of the indices that the workspace replaces
  struct NormWithRelu {
    Operand kept;  ///< for the gradient
    ValueId mean;
  };
  std::unordered_map<ValueId, NormWithRelu> norms_with_relu_;  ///< by the ReLU's result
  std::unordered_map<ValueId, int> cats_;           ///< postponed concatenations of channels: their instructions
  std::vector<std::pair<Operand, Operand>> parts_;  ///< parts of images, and their copies
  std::unordered_map<ValueId, at::Tensor> constants_;
  PackedMemory packed_memory_;
  /// Max pooling of integers, by the instruction of the pooling: the quantization that moved in front of it.
  struct IntegerPool {
    Operand input;
    int quantization = -1;
    KernelPointer kernel;
  };
  std::unordered_map<int, IntegerPool> integer_pools_;
};

/// Operations that become part of a convolution or linear.
struct Layouts::Epilogue {
  std::vector<PostOp> post{};
  std::vector<Operand> added{};
  const Instruction* norm = nullptr;
  Operand result{};
  std::vector<int> taken{};

  bool adds_only() const { return post.size() == 1 && post[0].is_add(); }
};

int64_t count_of(const Geometry& geometry);
/// Whether the operand is a dense fp32 vector of this size.
bool is_fp32_vector(const Operand& operand, int64_t size);
/// Whether rows of adjacent elements follow each other without gaps, in at least two dims.
bool is_dense_rows(const Geometry& geometry);
/// True if `seen` covers all elements of `made` as dense rows in the same order, whatever its dims are.
bool sees_all(const Operand& seen, const Operand& made);
/// Returns the geometry of the same image in channels-last order.
Geometry channels_last_geometry(const Geometry& geometry);
bool is_channels_last(const Geometry& geometry);
bool is_plain_order(const Geometry& geometry);
memory::dims pair_of(const Instruction::Argument& argument, int64_t otherwise = 1);
bool all_constant(const Instruction& one);
bool is_evaluation(const Instruction& one);
/// Returns an activation as a post operation of a primitive, or nothing if oneDNN does not support it.
std::optional<PostOp> post_op_of(const Instruction& one);

}  // namespace bellows::compile_detail::onednn
