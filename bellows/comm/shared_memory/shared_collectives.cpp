#include "bellows/comm/shared_memory/shared_collectives_impl.h"

#include <ATen/ops/from_blob.h>
#include <ATen/ops/tensor.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "bellows/comm/reduction_impl.h"
#include "bellows/system/thread.h"

namespace bellows::comm {

namespace {

using Tensors = std::vector<at::Tensor>;
using Op = c10d::ReduceOp::RedOpType;

std::byte* bytes_at(const at::Tensor& tensor, int64_t element) {
  return static_cast<std::byte*>(tensor.data_ptr()) + element * static_cast<int64_t>(tensor.element_size());
}

constexpr std::chrono::hours longest_timeout{24 * 365};

/// Throws unless `whole` has the elements of `part` for each rank.
void check_parts(const char* name, const at::Tensor& part, const at::Tensor& whole, int ranks) {
  TORCH_CHECK_VALUE(part.scalar_type() == whole.scalar_type() && whole.numel() == part.numel() * ranks, name,
                    ": expected a tensor of ", ranks, " times ", part.numel(), " elements of ", part.scalar_type(),
                    ", got ", whole.numel(), " elements of ", whole.scalar_type(), ".");
}

at::Tensor elements(std::byte* memory, int64_t count, const at::Tensor& like) {
  return at::from_blob(memory, {count}, at::TensorOptions(like.scalar_type()));
}

class SharedWork final : public c10d::Work {
 public:
  explicit SharedWork(Tensors results)
      : results_(std::move(results)),
        future_(c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()))) {}

  void done(std::exception_ptr error) {
    try {
      error ? future_->setError(error) : future_->markCompleted(c10::IValue(results_));
    } catch (...) {
      error = std::current_exception();
    }
    finish(error);
  }
  Tensors result() override { return results_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }

 private:
  Tensors results_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

/// A part of a tensor that fits into a buffer.
struct Chunk {
  int64_t begin, count;
  size_t bytes;
};

/// Divides `numel` elements into chunks whose size, times `copies`, fits into a buffer.
class Chunks {
 public:
  Chunks(const at::Tensor& tensor, int64_t numel, int64_t copies = 1)
      : numel_(numel),
        element_size_(static_cast<int64_t>(tensor.element_size())),
        most_(SharedRegion::buffer_bytes / element_size_ / copies / alignment * alignment) {}

  int64_t size() const { return (numel_ + most_ - 1) / most_; }
  Chunk operator[](int64_t index) const {
    const int64_t begin = index * most_, count = std::min(most_, numel_ - begin);
    return {begin, count, static_cast<size_t>(count * element_size_)};
  }

 private:
  static constexpr int64_t alignment = 16;  // elements
  int64_t numel_, element_size_, most_;
};

/// Reduces in blocks that are too small for libtorch to start threads, which would take cores from the computation.
void reduce_on_this_thread(const at::Tensor& out, const Tensors& parts, Op op) {
  constexpr int64_t block = 16 << 10;
  for (int64_t begin = 0; begin < out.numel(); begin += block) {
    const int64_t count = std::min(block, out.numel() - begin);
    Tensors blocks;
    blocks.reserve(parts.size());
    for (const at::Tensor& part : parts) blocks.push_back(part.narrow(0, begin, count));
    reduce_in_pairs(out.narrow(0, begin, count), std::move(blocks), op);
  }
}

bool is_enabled() {
  const char* const setting = std::getenv("BELLOWS_SHARED_MEMORY");
  return !setting || std::string_view(setting) != "0";
}

/// Sends the address of the memory from the first rank to the others.
RegionAddress broadcast_address(const RegionAddress& own, c10d::Backend& connection) {
  Tensors address = {at::tensor({own.pid, own.file, own.token}, at::kLong)};
  connection.broadcast(address, {.rootRank = 0})->wait();
  const auto* numbers = address[0].const_data_ptr<int64_t>();
  return {numbers[0], numbers[1], numbers[2]};
}

bool on_all_ranks(bool value, c10d::Backend& connection) {
  Tensors all = {at::tensor({value ? 1 : 0}, at::kInt)};
  connection.allreduce(all, {.reduceOp = c10d::ReduceOp::MIN})->wait();
  return all[0].item<int>() == 1;
}

}  // namespace

std::shared_ptr<SharedCollectives> SharedCollectives::connect(c10d::Backend& connection) {
  const int rank = connection.getRank(), size = connection.getSize();
  std::unique_ptr<SharedRegion> region;
  if (rank == 0 && is_enabled()) region = SharedRegion::create(size);
  const RegionAddress address = broadcast_address(region ? region->address() : RegionAddress(), connection);
  if (rank != 0 && is_enabled()) region = SharedRegion::open(address, rank, size);
  if (!on_all_ranks(region != nullptr, connection)) return nullptr;
  region->all_opened();
  return std::shared_ptr<SharedCollectives>(new SharedCollectives(std::move(region)));
}

bool SharedCollectives::supports(const at::Tensor& tensor) {
  return tensor.is_cpu() && tensor.layout() == at::kStrided && tensor.is_contiguous();
}

bool SharedCollectives::supports(const at::Tensor& tensor, const c10d::ReduceOp& op) {
  constexpr Op ops[] = {Op::SUM, Op::PRODUCT, Op::MIN, Op::MAX};
  constexpr at::ScalarType types[] = {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kByte,
                                      at::kChar,  at::kShort,  at::kInt,  at::kLong};
  const auto among = [](const auto& list, auto value) {
    return std::find(std::begin(list), std::end(list), value) != std::end(list);
  };
  return supports(tensor) && among(types, tensor.scalar_type()) && among(ops, op.op_);
}

/// If a rank cannot start a call, for example for lack of memory, its next call has another number than those of the other
/// ranks, which then get an error. If no rank can start a call, all of them can continue.
SharedCollectives::WorkHandle SharedCollectives::start(RegionCall call, Tensors results, std::function<void()> run) {
  const MutexLock lock(mutex_);
  call.number = ++calls_;
  auto work = c10::make_intrusive<SharedWork>(std::move(results));
  TORCH_CHECK(!left_, "this rank has closed the connection to the other ranks.");
  if (!thread_.joinable()) {
    thread_ = start_thread("collectives", [self = shared_from_this()] { self->run_tasks(); });
  }
  const auto announced = [this, call, run = std::move(run)] {
    try {
      // Bounded, because the sum of a time and a very long timeout would be in the past.
      end_ = std::chrono::steady_clock::now() + std::min<std::chrono::milliseconds>(timeout_.load(), longest_timeout);
      region_->announce(call);
      run();
    } catch (...) {
      close();  // the other ranks may wait in the middle of the call
      throw;
    }
  };
  tasks_.push_back({announced, [work](const std::exception_ptr& error) { work->done(error); }});
  wake_.notify_one();
  return work;
}

std::optional<SharedCollectives::Task> SharedCollectives::next_task() {
  UniqueLock lock(mutex_);
  wake_.wait(lock, [this]() BELLOWS_REQUIRES(mutex_) { return left_ || !tasks_.empty(); });
  if (tasks_.empty()) return std::nullopt;
  Task task = std::move(tasks_.front());
  tasks_.pop_front();
  return task;
}

void SharedCollectives::run_tasks() {
  const c10::NoGradGuard no_grad;
  while (std::optional<Task> task = next_task()) {
    std::exception_ptr error;
    try {
      task->run();
    } catch (...) {
      error = std::current_exception();
    }
    task->run = nullptr;  // releases the tensors before another thread continues
    task->done(error);
  }
}

void SharedCollectives::leave() {
  std::thread thread;
  {
    const MutexLock lock(mutex_);
    left_ = true;
    thread = std::move(thread_);
  }
  region_->close();
  wake_.notify_all();
  if (!thread.joinable()) return;
  thread.get_id() == std::this_thread::get_id() ? thread.detach() : thread.join();
}

SharedCollectives::WorkHandle SharedCollectives::all_reduce(const at::Tensor& tensor, const c10d::ReduceOp& op) {
  RegionCall call{RegionCall::Kind::all_reduce, static_cast<int64_t>(tensor.scalar_type()),
                  static_cast<int64_t>(op.op_), tensor.numel()};
  return start(call, {tensor}, [this, tensor, op = op.op_] { all_reduce_now(tensor, op); });
}

SharedCollectives::WorkHandle SharedCollectives::broadcast(const at::Tensor& tensor, int root) {
  TORCH_CHECK_VALUE(root >= 0 && root < region_->size(), "broadcast: expected a root from 0 to ", region_->size() - 1,
                    ", got ", root, ".");
  RegionCall call{RegionCall::Kind::broadcast, static_cast<int64_t>(tensor.scalar_type()), root, tensor.numel()};
  return start(call, {tensor}, [this, tensor, root] { broadcast_now(tensor, root); });
}

SharedCollectives::WorkHandle SharedCollectives::all_gather(const at::Tensor& out, const at::Tensor& in) {
  check_parts("all_gather", in, out, region_->size());
  RegionCall call{RegionCall::Kind::all_gather, static_cast<int64_t>(in.scalar_type()), 0, in.numel()};
  return start(call, {out}, [this, out, in] { all_gather_now(out, in); });
}

SharedCollectives::WorkHandle SharedCollectives::reduce_scatter(const at::Tensor& out, const at::Tensor& in,
                                                                const c10d::ReduceOp& op) {
  check_parts("reduce_scatter", out, in, region_->size());
  RegionCall call{RegionCall::Kind::reduce_scatter, static_cast<int64_t>(in.scalar_type()),
                  static_cast<int64_t>(op.op_), out.numel()};
  return start(call, {out}, [this, out, in, op = op.op_] { reduce_scatter_now(out, in, op); });
}

// A buffer is written again two chunks later. There is at least one barrier in between, which a rank reaches only after it
// has read the buffer. This also holds from one call to the next.

/// In each round, a rank copies a chunk into its buffer, reduces its part of the chunk before, and copies the result of
/// the one before that. A single barrier then separates the rounds.
void SharedCollectives::all_reduce_now(const at::Tensor& tensor, Op op) {
  const Chunks chunks(tensor, tensor.numel());
  const int64_t first = buffers_used_, ranks = region_->size();
  const auto reduce = [&](int64_t number, const Chunk& chunk) {
    const int64_t part = (chunk.count + ranks - 1) / ranks;
    const int64_t begin = std::min(part * region_->rank(), chunk.count), count = std::min(part, chunk.count - begin);
    if (count == 0) return;
    const auto at = [&](std::byte* memory) { return elements(memory, count, tensor); };
    const int64_t offset = begin * static_cast<int64_t>(tensor.element_size());
    Tensors parts;
    for (int rank = 0; rank < ranks; ++rank) parts.push_back(at(region_->buffer(rank, number) + offset));
    reduce_on_this_thread(at(region_->result(number) + offset), parts, op);
  };
  for (int64_t i = 0; i < chunks.size() + 2; ++i) {
    if (i < chunks.size())
      std::memcpy(region_->buffer(region_->rank(), (first + i) % 2), bytes_at(tensor, chunks[i].begin),
                  chunks[i].bytes);
    if (i >= 1 && i <= chunks.size()) reduce((first + i - 1) % 2, chunks[i - 1]);
    if (i >= 2) {
      const Chunk done = chunks[i - 2];
      std::memcpy(bytes_at(tensor, done.begin), region_->result((first + i) % 2), done.bytes);
    }
    if (i <= chunks.size()) barrier();
  }
  buffers_used_ = first + chunks.size();
}

void SharedCollectives::broadcast_now(const at::Tensor& tensor, int root) {
  const Chunks chunks(tensor, tensor.numel());
  for (int64_t i = 0; i < std::max<int64_t>(chunks.size(), 1); ++i) {
    const Chunk chunk = chunks[i];
    std::byte* const memory = region_->buffer(root, buffers_used_++ % 2);
    if (region_->rank() == root) std::memcpy(memory, bytes_at(tensor, chunk.begin), chunk.bytes);
    barrier();
    if (region_->rank() != root) std::memcpy(bytes_at(tensor, chunk.begin), memory, chunk.bytes);
  }
}

void SharedCollectives::all_gather_now(const at::Tensor& out, const at::Tensor& in) {
  const Chunks chunks(in, in.numel());
  const auto copy = [&](int rank, const Chunk& chunk, const std::byte* from) {
    std::byte* const to = bytes_at(out, rank * in.numel() + chunk.begin);
    if (to != from) std::memcpy(to, from, chunk.bytes);
  };
  for (int64_t i = 0; i < std::max<int64_t>(chunks.size(), 1); ++i) {
    const Chunk chunk = chunks[i];
    const int64_t number = buffers_used_++ % 2;
    const std::byte* const own = bytes_at(in, chunk.begin);
    std::memcpy(region_->buffer(region_->rank(), number), own, chunk.bytes);
    barrier();
    for (int rank = 0; rank < region_->size(); ++rank)
      copy(rank, chunk, rank == region_->rank() ? own : region_->buffer(rank, number));
  }
}

void SharedCollectives::reduce_scatter_now(const at::Tensor& out, const at::Tensor& in, Op op) {
  const Chunks chunks(in, out.numel(), region_->size());
  for (int64_t i = 0; i < std::max<int64_t>(chunks.size(), 1); ++i) {
    const Chunk chunk = chunks[i];
    const int64_t number = buffers_used_++ % 2;
    const auto part = [&](int from, int to) {
      return region_->buffer(from, number) + static_cast<size_t>(to) * chunk.bytes;
    };
    for (int to = 0; to < region_->size(); ++to)
      std::memcpy(part(region_->rank(), to), bytes_at(in, to * out.numel() + chunk.begin), chunk.bytes);
    barrier();
    Tensors parts;
    for (int from = 0; from < region_->size(); ++from)
      parts.push_back(elements(part(from, region_->rank()), chunk.count, in));
    reduce_on_this_thread(elements(bytes_at(out, chunk.begin), chunk.count, out), parts, op);
  }
}

}  // namespace bellows::comm
