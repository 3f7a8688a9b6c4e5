#pragma once

#include <memory>
#include <oneapi/dnnl/dnnl.hpp>
#include <span>
#include <string>
#include <vector>

#include "bellows/graph/program/program.h"

namespace bellows::compile_detail::onednn {

using Desc = dnnl::memory::desc;
using dnnl::memory;

const dnnl::engine& engine();
/// Scratch memory comes from the program's arena.
dnnl::primitive_attr attributes();
/// f32 or bf16; undef: none that we use
memory::data_type data_type(const graph::Geometry& geometry);
/// As the geometry has it, but for its offset.
Desc desc_of(const graph::Geometry& geometry);
/// Channels last, of an image's sizes. Params: dims – N, C, H, W
Desc channels_last(const memory::dims& dims, memory::data_type type);
Desc vector_of(memory::dim size);
inline memory::dims dims_of(at::IntArrayRef sizes) {
  return {sizes.begin(), sizes.end()};
}

/// A primitive, and where each of its arguments comes from in a call.
class PrimitiveKernel : public graph::Kernel {
 public:
  enum class Place : uint8_t { operand, result, scratch };
  struct Slot {
    int arg = 0;  ///< DNNL_ARG_…
    Desc desc{};
    Place place = Place::operand;
    int index = 0;      ///< which operand or result
    size_t offset = 0;  ///< in bytes
  };

  /// Params: scratchpad – what the primitive needs of its own; it comes last in the scratch memory
  PrimitiveKernel(std::string name, dnnl::primitive primitive, std::vector<Slot> slots, const Desc& scratchpad);

  std::string name() const override { return name_; }
  void run(std::span<void* const> operands, std::span<void* const> results, std::span<const c10::IValue> numbers,
           void* scratch) const override;
  size_t scratch_bytes() const override { return scratch_bytes_; }

 private:
  std::string name_;
  dnnl::primitive primitive_;
  std::vector<Slot> slots_;
  std::vector<memory> memories_;  ///< one a slot; where they point changes with each call
  dnnl::stream stream_;
  size_t scratch_bytes_ = 0;
};

using KernelPointer = std::shared_ptr<const graph::Kernel>;

/// A copy from one order of memory into another. Params: offset – of the source, in bytes
///         scaled – mask of dims by whose index the elements are multiplied with factors, the second operand; 0: none
KernelPointer make_reorder(const Desc& from, const Desc& to, const char* what, size_t offset = 0, int scaled = 0);

/// "brgconv:avx512_core" and the like; reference code is slower than libtorch's own.
template <class PrimitiveDesc>
bool is_fast(const PrimitiveDesc& desc) {
  if (!desc) return false;
  const std::string how = desc.impl_info_str();
  return how.find("ref") == std::string::npos;
}

}  // namespace bellows::compile_detail::onednn
