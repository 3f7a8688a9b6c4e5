#include "bellows/graph/execution/runner_memory.h"

#include <ATen/ops/empty.h>
#include <c10/core/Allocator.h>

#include <algorithm>
#include <atomic>
#include <cstring>

#include "bellows/graph/program/program_edit.h"
#include "bellows/tap/pending_storage.h"

namespace bellows::graph::detail {
namespace {

using Home = MemoryPlan::Home;

/// Outputs up to this size keep their memory between runs. Keeping larger ones would withhold too much memory.
constexpr size_t small_bytes = 16 * 1024;

std::atomic<bool> poisons = false;

/// All bytes 0xFF are NaN in all floating-point types.
void poison(void* data, size_t nbytes, c10::Device device) {
  if (device.is_cpu()) std::memset(data, 0xFF, nbytes);
}

c10::Storage storage_over(void* data, size_t nbytes, c10::Device device) {
  return {c10::Storage::use_byte_size_t(), nbytes, c10::DataPtr(data, device)};
}

c10::Storage new_storage(size_t nbytes, c10::Device device) {
  return {c10::Storage::use_byte_size_t(), static_cast<int64_t>(nbytes), c10::GetAllocator(device.type()), true};
}

at::Tensor bytes_of(const c10::Storage& storage, size_t nbytes) {
  at::Tensor made = at::empty({0}, at::TensorOptions().dtype(at::kByte).device(storage.device()));
  made.unsafeGetTensorImpl()->set_storage_keep_dtype(storage);
  made.unsafeGetTensorImpl()->set_sizes_contiguous({static_cast<int64_t>(nbytes)});
  return made;
}

void copy_bytes(const c10::Storage& to, const c10::Storage& from, size_t nbytes) {
  bytes_of(to, nbytes).copy_(bytes_of(from, nbytes));
}

c10::Storage copied(const c10::Storage& from, size_t nbytes) {
  c10::Storage made = new_storage(nbytes, from.device());
  copy_bytes(made, from, nbytes);
  return made;
}

/// The owner of a storage that was handed out.
struct Hold {
  std::shared_ptr<ArenaPool> pool;
  std::shared_ptr<void> owner;
  std::shared_ptr<std::atomic<uint64_t>> returned;

  ~Hold() { *returned = pool->runs(); }
};

}  // namespace

c10::Storage OutputBuffer::over(void* data, size_t nbytes, c10::Device device, std::shared_ptr<void> owner,
                                const std::shared_ptr<ArenaPool>& pool) {
  returned_ = std::make_shared<std::atomic<uint64_t>>(0);
  auto* const hold = new Hold{pool, std::move(owner), returned_};
  c10::DataPtr held(
      data, hold, [](void* one) { delete static_cast<Hold*>(one); }, device);
  return {c10::Storage::use_byte_size_t(), nbytes, std::move(held), c10::GetAllocator(device.type()), true};
}

c10::Storage OutputBuffer::fresh(size_t nbytes, c10::Device device, bool keeps,
                                 const std::shared_ptr<ArenaPool>& pool) {
  std::shared_ptr<c10::DataPtr> memory = std::move(kept_);
  if (!memory || memory.use_count() > 1)
    memory = std::make_shared<c10::DataPtr>(c10::GetAllocator(device.type())->allocate(nbytes));
  std::atomic_thread_fence(std::memory_order_acquire);  // all accesses before its release are complete
  if (keeps) kept_ = memory;
  void* const data = memory->get();
  return over(data, nbytes, device, std::move(memory), pool);
}

RunnerMemory::RunnerMemory(const Program& program, const MemoryPlan& plan, bool in_order)
    : program_(program), plan_(plan), poisoned_(poisons), blocks_(plan.blocks.size()) {
  for (size_t value = 0; value < plan.block_of.size(); ++value) {
    if (plan.block_of[value] < 0) continue;
    Block& block = blocks_[plan.block_of[value]];
    if (!block.nothing) block.nothing = nothing_on(program.values[value].geometry.device);
  }
  for (const Instruction& one : program.instructions) {
    for (const auto& update : one.updates) blocks_[plan.block_of[update.after]].written = true;
  }
  decide_hand_outs(in_order);
  if (plan.arena_bytes > 0) pool_ = ArenaPool::shared();
  sort_blocks();
}

/// All blocks of a device share one placeholder.
c10::Storage RunnerMemory::nothing_on(c10::Device device) const {
  const auto found = std::find_if(blocks_.begin(), blocks_.end(), [&](const Block& block) {
    return block.nothing && block.nothing.device() == device;
  });
  return found == blocks_.end() ? storage_over(nullptr, 0, device) : found->nothing;
}

void RunnerMemory::sort_blocks() {
  for (size_t i = 0; i < plan_.blocks.size(); ++i) {
    const MemoryPlan::Block& block = plan_.blocks[i];
    const int number = static_cast<int>(i);
    if (block.home == Home::output) pool_ = ArenaPool::shared();
    if (block.home == Home::constant) blocks_[i].storage = program_.constants[block.index].tensor.storage();
    const bool stays = block.home == Home::arena && !poisoned_;
    if ((block.home >= Home::output && !stays) || block.copied >= 0) begins_.all.emplace_back(block.first, number);
    const bool kept = block.home == Home::constant || stays || block.last == MemoryPlan::end ||
                      (block.home == Home::input && is_written_back(block.index));
    if (!kept && block.last >= 0) ends_.all.emplace_back(block.last, number);
  }
  begins_.sort(program_.instructions.size());
  ends_.sort(program_.instructions.size());
}

void RunnerMemory::Events::sort(size_t instructions) {
  std::sort(all.begin(), all.end());
  first.assign(instructions + 1, 0);
  for (const auto& [instruction, block] : all) ++first[instruction + 1];
  for (size_t i = 0; i < instructions; ++i) first[i + 1] += first[i];
}

bool RunnerMemory::is_written_back(int input) const {
  return std::any_of(program_.outputs.begin(), program_.outputs.end(),
                     [&](const Program::Output& output) { return output.input == input; });
}

at::Tensor RunnerMemory::seen(ValueId value, const Geometry& geometry) {
  if (value == no_value) return {};
  Block& block = blocks_[plan_.block_of[value]];
  const auto found =
      std::find_if(block.seen.begin(), block.seen.end(), [&](const Seen& one) { return *one.geometry == geometry; });
  if (found != block.seen.end()) return found->tensor;
  block.seen.push_back({&geometry, geometry.over(block.storage ? block.storage : block.nothing)});
  return block.seen.back().tensor;
}

void RunnerMemory::bind(Block& block, const c10::Storage& storage) {
  block.storage = storage;
  for (const Seen& one : block.seen) one.tensor.unsafeGetTensorImpl()->set_storage_keep_dtype(storage);
}

void RunnerMemory::let_go(Block& block) {
  if (!block.storage) return;
  for (const Seen& one : block.seen) one.tensor.unsafeGetTensorImpl()->set_storage_keep_dtype(block.nothing);
  block.storage = {};
}

void RunnerMemory::take_arena() {
  if (!pool_) return;
  pool_->begin_run();
  if (plan_.arena_bytes == 0) return;
  const auto in_arena = std::find_if(plan_.blocks.begin(), plan_.blocks.end(), [](const auto& block) {
    return block.home == Home::arena || block.home == Home::lent;
  });
  const c10::Device device = in_arena == plan_.blocks.end() ? c10::Device(c10::kCPU)
                                                            : blocks_[in_arena - plan_.blocks.begin()].nothing.device();
  leased_ = std::make_shared<ArenaLease>(pool_, pool_->take(plan_.arena_bytes, device));
  auto* const arena = static_cast<char*>(leased_->arena.data.get());
  if (arena == arena_) return;
  arena_ = nullptr;  // until all blocks are in the new arena
  for (size_t i = 0; i < blocks_.size(); ++i) {
    const MemoryPlan::Block& block = plan_.blocks[i];
    if (block.home == Home::arena) bind(blocks_[i], storage_over(arena + block.offset, block.nbytes, device));
  }
  arena_ = arena;
}

void RunnerMemory::begin(std::span<c10::Storage> inputs) {
  take_arena();
  inputs_ = inputs;
  for (size_t i = 0; i < blocks_.size(); ++i) {
    if (plan_.blocks[i].home == Home::input) bind(blocks_[i], inputs[plan_.blocks[i].index]);
  }
}

c10::Storage RunnerMemory::fresh_output(int block) {
  const MemoryPlan::Block& planned = plan_.blocks[block];
  OutputBuffer& output_buffer = blocks_[block].output_buffer;
  const c10::Device device = blocks_[block].nothing.device();
  if (planned.home == Home::lent)
    return output_buffer.over(arena_ + planned.offset, planned.nbytes, device, leased_, pool_);
  return output_buffer.fresh(planned.nbytes, device, planned.nbytes <= small_bytes, pool_);
}

void RunnerMemory::poison_block(int block) {
  if (plan_.blocks[block].nbytes == 0) return;  // it has no memory
  poison(blocks_[block].storage.mutable_data(), plan_.blocks[block].nbytes, blocks_[block].nothing.device());
}

void RunnerMemory::before(int instruction) {
  for (const auto& [at, i] : begins_.of(instruction)) {
    const MemoryPlan::Block& block = plan_.blocks[i];
    if (block.home == Home::output || block.home == Home::lent) bind(blocks_[i], fresh_output(i));
    if (poisoned_ && block.home >= Home::output) poison_block(i);
    if (block.copied >= 0) copy_bytes(blocks_[i].storage, blocks_[block.copied].storage, block.nbytes);
  }
  const auto& kernel = program_.instructions[instruction].kernel;
  if (poisoned_ && kernel && kernel->scratch_bytes() > 0)
    poison(scratch(instruction), kernel->scratch_bytes(), c10::kCPU);
}

void RunnerMemory::after(int instruction) {
  for (const auto& [at, i] : ends_.of(instruction)) {
    if (plan_.blocks[i].home == Home::arena)
      poison_block(i);
    else
      let_go(blocks_[i]);
    if (plan_.blocks[i].home == Home::input) inputs_[plan_.blocks[i].index] = {};
  }
}

void* RunnerMemory::data(ValueId value) const {
  const int i = plan_.block_of[value];
  if (plan_.blocks[i].home == Home::arena || plan_.blocks[i].home == Home::lent) return arena_ + plan_.blocks[i].offset;
  const Block& block = blocks_[i];
  return block.written ? block.storage.mutable_data() : const_cast<void*>(block.storage.data());
}

std::vector<bool> RunnerMemory::came_back() const {
  std::vector<bool> result;
  result.reserve(hand_outs_.size());
  for (size_t i = 0; i < hand_outs_.size(); ++i) {
    const int block = plan_.block_of[program_.outputs[i].value];
    const bool large = plan_.blocks[block].nbytes > small_bytes && plan_.blocks[block].home >= Home::output;
    result.push_back(large && hand_outs_[i] == HandOut::given &&
                     blocks_[block].output_buffer.came_back_after(last_run_));
  }
  return result;
}

/// Each block is handed out once. Further outputs with the same content get a copy.
/// Params: in_order – an output that later instructions were to update is complete as soon as it is made, because it has
///                    the content that eager code would have left
void RunnerMemory::decide_hand_outs(bool in_order) {
  std::vector<int> maker;
  if (!in_order) maker = Uses(program_).maker;
  std::vector<bool> given(blocks_.size());
  for (const Program::Output& output : program_.outputs) {
    const int i = plan_.block_of[output.value];
    const MemoryPlan::Block& block = plan_.blocks[i];
    made_by_.push_back(in_order ? block.first : maker[output.value]);
    if (output.input >= 0) {
      const bool there = block.home == Home::input && block.index == output.input;
      hand_outs_.push_back(there ? HandOut::stays : HandOut::written_back);
    } else {
      const bool own = block.home == Home::output || block.home == Home::lent || block.home == Home::allocated;
      hand_outs_.push_back(own && !given[i] ? HandOut::given : HandOut::copied);
      given[i] = true;
    }
  }
}

void RunnerMemory::hand_out(size_t output, std::span<c10::Storage> outputs) {
  const ValueId value = program_.outputs[output].value;
  if (hand_outs_[output] == HandOut::given) outputs[output] = storage(value);
  if (hand_outs_[output] == HandOut::copied) outputs[output] = copied(storage(value), program_.values[value].nbytes);
}

/// Copies are made before inputs are overwritten.
void RunnerMemory::finish(std::span<c10::Storage> outputs) {
  std::vector<std::pair<c10::Storage, const Program::Output*>> late;
  for (size_t i = 0; i < program_.outputs.size(); ++i) {
    const Program::Output& output = program_.outputs[i];
    hand_out(i, outputs);
    if (hand_outs_[i] == HandOut::written_back)
      late.emplace_back(copied(storage(output.value), program_.values[output.value].nbytes), &output);
  }
  for (const auto& [from, output] : late) copy_bytes(inputs_[output->input], from, from.nbytes());
}

void RunnerMemory::finish_before(int instruction, std::span<c10::Storage> outputs) {
  for (size_t i = 0; i < program_.outputs.size(); ++i) {
    if (made_by_[i] < instruction) hand_out(i, outputs);
  }
}

void RunnerMemory::clear() {
  for (size_t i = 0; i < blocks_.size(); ++i) {
    if (plan_.blocks[i].home != Home::arena && plan_.blocks[i].home != Home::constant) let_go(blocks_[i]);
  }
  inputs_ = {};
  leased_.reset();
  if (pool_) last_run_ = pool_->runs();
}

}  // namespace bellows::graph::detail

namespace bellows::graph {

void poison_arenas(bool on) {
  detail::poisons = on;
}

}  // namespace bellows::graph
