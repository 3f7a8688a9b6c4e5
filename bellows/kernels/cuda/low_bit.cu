// A block of threads processes one block of state at a time, with one element per thread. Compiled, but not yet run on
// a device.
#include "bellows/kernels/cuda/low_bit.h"

#include "bellows/kernels/cuda/optimizer_batch_impl.h"
#include "bellows/kernels/dynamic_map.h"
#include "bellows/kernels/ref/element.h"

namespace bellows::kernels::cuda {

namespace {

constexpr int64_t state_blocks = 16;  ///< state blocks that a block of threads processes, one after another

/// The tables of both moments, passed as a parameter, because the device cannot read constants of the host.
template <class Width>
struct Maps {
  std::remove_const_t<decltype(Width::first)> first = Width::first;
  std::remove_const_t<decltype(Width::second)> second = Width::second;
};

/// The largest magnitude of finite numbers.
struct Largest {
  float moment[2] = {};
  __device__ void add(const Largest& other) {
    for (int k = 0; k < 2; ++k) moment[k] = other.moment[k] > moment[k] ? other.moment[k] : moment[k];
  }
};

/// The code of this thread's element.
template <class Width>
__device__ int read_code(const void* codes, int64_t block) {
  const auto* bytes = static_cast<const uint8_t*>(codes) + block * Width::block_bytes;
  if constexpr (std::is_same_v<Width, State8>) return bytes[threadIdx.x];
  return bytes[threadIdx.x % Width::block_bytes] >> (threadIdx.x < Width::block_bytes ? 0 : 4) & 15;
}

/// Every thread of the block calls it.
/// Params: here – whether this thread's element is within the tensor
template <class Width>
__device__ void write_code(void* codes, int64_t block, int code, bool here) {
  auto* bytes = static_cast<uint8_t*>(codes) + block * Width::block_bytes;
  if constexpr (std::is_same_v<Width, State8>) {
    if (here) bytes[threadIdx.x] = static_cast<uint8_t>(code);
  } else {
    __shared__ uint8_t both[Width::block];
    __syncthreads();  // codes of the previous call may still be read
    both[threadIdx.x] = static_cast<uint8_t>(here ? code : 0);
    __syncthreads();
    if (threadIdx.x >= Width::block_bytes) return;
    bytes[threadIdx.x] = static_cast<uint8_t>(both[threadIdx.x] | both[threadIdx.x + Width::block_bytes] << 4);
  }
}

/// Leaves state and parameter unchanged if the new state would not be finite.
/// Params: s – state of the element; replaced by the new state
template <class Rule>
__device__ void step_or_keep(const StepTensor<Rule>& t, StepTypes types, const Formula<float, Rule>& formula, int64_t i,
                             float (&s)[3]) {
  const float old = t.master ? ref::load<float>(t.master, Type::f32, i) : ref::load<float>(t.param, types.param, i);
  float p = old, fresh[3] = {s[0], s[1], 0};
  formula(p, ref::load<float>(t.grad, types.grad, i), fresh);
  const bool finite = std::isfinite(fresh[0] + fresh[1]);
  ref::store_param(t, types, i, finite ? p : old);
  if (!finite) return;
  s[0] = fresh[0];
  s[1] = fresh[1];
}

template <class Width, class Rule>
__device__ void step_block(const StepTensor<Rule>& t, StepTypes types, const Formula<float, Rule>& formula,
                           const Maps<Width>& maps, int64_t block) {
  const int64_t i = block * Width::block + threadIdx.x;
  const bool here = i < t.size, second = t.state[1] != nullptr;
  float s[3] = {};
  if (here) {
    s[0] = maps.first.decode(read_code<Width>(t.state[0], block), t.scale[0][block]);
    if (second) s[1] = maps.second.decode(read_code<Width>(t.state[1], block), t.scale[1][block]);
    step_or_keep(t, types, formula, i, s);
  }
  // After the sum, all threads have read their codes and scales.
  const Largest largest = sum_of_block(Largest{{std::abs(s[0]), std::abs(s[1])}});
  const auto encoded = [&](const auto& map, int k) {
    const float scale = usable_scale(largest.moment[k]);
    if (threadIdx.x == 0) t.scale[k][block] = scale;
    return map.encode(s[k] * (scale > 0 ? 1 / scale : 0));
  };
  write_code<Width>(t.state[0], block, encoded(maps.first, 0), here);
  if (second) write_code<Width>(t.state[1], block, encoded(maps.second, 1), here);
}

/// `value`, once per block of threads. Declared as bytes, because shared memory has no initializers.
template <class T>
__device__ void copy_by_block(const T& value, unsigned char* to) {
  for (unsigned i = threadIdx.x; i < sizeof(T); i += blockDim.x)
    to[i] = reinterpret_cast<const unsigned char*>(&value)[i];
}

template <class Rule, class Width>
__global__ void low_bit_kernel(__grid_constant__ const Batch<Rule> batch, StepTypes types, DeviceScalars scalars,
                               __grid_constant__ const Maps<Width> host_maps) {
  if (scalars.found_inf && *scalars.found_inf > 0) return;
  const int index = batch.tensor_of_block();
  const StepTensor<Rule>& t = batch.tensors[index];
  alignas(Maps<Width>) __shared__ unsigned char map_bytes[sizeof(Maps<Width>)];
  copy_by_block(host_maps, map_bytes);
  const Formula<float, Rule> formula = formula_of_block<float>(t, scalars);  // this also waits for the maps
  const auto& maps = *reinterpret_cast<const Maps<Width>*>(map_bytes);
  const int64_t first = (blockIdx.x - batch.first_block[index]) * state_blocks;
  for (int64_t block = first; block < first + state_blocks && block * Width::block < t.size; ++block) {
    step_block<Width>(t, types, formula, maps, block);
  }
}

template <class Width, class Rule>
void step_width(std::span<const StepTensor<Rule>> tensors, StepTypes types, const DeviceScalars& scalars,
                void* stream) {
  for_batches(tensors, state_blocks * Width::block, [&](const Batch<Rule>& batch, unsigned blocks) {
    launch("step_low_bit", low_bit_kernel<Rule, Width>, blocks, static_cast<unsigned>(Width::block), stream, batch,
           types, scalars, Maps<Width>());
  });
}

template <class Rule>
void step_tensors(std::span<const StepTensor<Rule>> tensors, StepTypes types, const DeviceScalars& scalars,
                  void* stream) {
  if (types.low_bit == LowBit::int8) {
    step_width<State8>(tensors, types, scalars, stream);
  } else {
    step_width<State4>(tensors, types, scalars, stream);
  }
}

}  // namespace

void step_low_bit(std::span<const StepTensor<SgdRule>> tensors, StepTypes types, const DeviceScalars& scalars,
                  void* stream) {
  step_tensors(tensors, types, scalars, stream);
}
void step_low_bit(std::span<const StepTensor<AdamRule>> tensors, StepTypes types, const DeviceScalars& scalars,
                  void* stream) {
  step_tensors(tensors, types, scalars, stream);
}
void step_low_bit(std::span<const StepTensor<LionRule>> tensors, StepTypes types, const DeviceScalars& scalars,
                  void* stream) {
  step_tensors(tensors, types, scalars, stream);
}

}  // namespace bellows::kernels::cuda
