#include "bellows/comm/shard.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include <map>
#include <set>
#include <sstream>

#include "bellows/comm/collectives.h"

namespace bellows::comm {

namespace {

void write_numbers(std::ostringstream& out, const std::vector<int64_t>& numbers) {
  out << ' ' << numbers.size();
  for (const int64_t number : numbers) out << ' ' << number;
}

std::vector<int64_t> read_numbers(std::istringstream& in) {
  size_t count = 0;
  in >> count;
  std::vector<int64_t> numbers(count);
  for (int64_t& number : numbers) in >> number;
  return numbers;
}

/// Two lines per part: its name, and its metadata.
std::string describe(const std::vector<Shard>& shards) {
  std::ostringstream out;
  for (const auto& [name, local, spec] : shards) {
    out << name << '\n' << static_cast<int>(local.scalar_type());
    for (const auto* numbers : {&spec.sizes, &spec.offset, &spec.length}) write_numbers(out, *numbers);
    out << '\n';
  }
  return out.str();
}

at::Tensor bytes_of(const std::vector<Shard>& shards) {
  std::vector<at::Tensor> bytes = {at::empty({0}, at::kByte)};
  bytes.reserve(shards.size() + 1);
  for (const Shard& shard : shards) bytes.push_back(shard.local.detach().cpu().contiguous().view({-1}).view(at::kByte));
  return at::cat(bytes);
}

/// The complete tensors during assembly.
class Assembly {
 public:
  /// Params: bytes – of the shards in `description`, concatenated
  void add(const std::string& description, const at::Tensor& bytes) {
    std::istringstream in(description);
    int64_t at = 0;
    for (std::string name; std::getline(in, name);) {
      int type = 0;
      in >> type;
      ShardSpec spec{read_numbers(in), {}, {}};
      spec.offset = read_numbers(in);
      spec.length = read_numbers(in);
      in.ignore();
      const auto dtype = static_cast<at::ScalarType>(type);
      const int64_t size = spec.numel() * static_cast<int64_t>(c10::elementSize(dtype));
      const at::Tensor part = part_of(whole(name, spec, dtype), spec);
      if (size > 0 && seen_.insert({name, spec.offset}).second) {
        part.copy_(
            bytes.narrow(0, at, size).clone().view(dtype).view(spec.length));  // the copy aligns the data for any dtype
        filled_[name] += spec.numel();
      }
      at += size;
    }
  }
  NamedTensors take() {
    for (const auto& [name, tensor] : tensors_) {
      TORCH_CHECK_VALUE(filled_[name] == tensor.numel(), "gather: the ranks hold ", filled_[name], " elements of \"",
                        name, "\", expected each of the ", tensor.numel(), " elements exactly once.");
    }
    return std::move(tensors_);
  }

 private:
  at::Tensor whole(const std::string& name, const ShardSpec& spec, at::ScalarType dtype) {
    const auto [place, fresh] = index_.try_emplace(name, tensors_.size());
    if (fresh) tensors_.emplace_back(name, at::empty(spec.sizes, dtype));
    const at::Tensor& tensor = tensors_[place->second].second;
    TORCH_CHECK_VALUE(tensor.sizes() == spec.sizes && tensor.scalar_type() == dtype, "gather: a part of \"", name,
                      "\" is ", dtype, " [", c10::Join(", ", spec.sizes), "], but another part is ",
                      tensor.scalar_type(), " ", tensor.sizes(), ". The ranks hold different models.");
    return tensor;
  }

  NamedTensors tensors_;
  std::map<std::string, size_t> index_;
  std::map<std::string, int64_t> filled_;
  std::set<std::pair<std::string, std::vector<int64_t>>> seen_;  ///< names and offsets of parts
};

}  // namespace

at::Tensor part_of(const at::Tensor& whole, const ShardSpec& spec) {
  TORCH_CHECK_VALUE(whole.sizes() == spec.sizes, "shard: expected a tensor of sizes [", c10::Join(", ", spec.sizes),
                    "], got ", whole.sizes(), ".");
  TORCH_CHECK_VALUE(spec.is_inside(), "shard: expected a box inside a tensor of sizes ", whole.sizes(),
                    ", got offset [", c10::Join(", ", spec.offset), "], length [", c10::Join(", ", spec.length), "].");
  if (spec.is_run()) {
    return whole.reshape({-1}).narrow(0, spec.offset[0], spec.length[0]);
  }
  at::Tensor part = whole;
  for (int64_t dim = 0; dim < whole.dim(); ++dim) {
    const auto d = static_cast<size_t>(dim);
    part = part.narrow(dim, spec.offset[d], spec.length[d]);
  }
  return part;
}

NamedTensors gather(const std::vector<Shard>& shards, const Group& group) {
  const at::Tensor own = bytes_of(shards);
  const std::vector<std::string> descriptions = all_gather_strings(describe(shards), group);
  const at::Tensor sizes = all_gather(at::empty({}, at::kLong).fill_(own.numel()), group);
  Assembly assembly;
  for (int rank = 0; rank < group.size(); ++rank) {
    at::Tensor bytes = rank == group.rank() ? own : at::empty({sizes[rank].item<int64_t>()}, at::kByte);
    assembly.add(descriptions[static_cast<size_t>(rank)], broadcast(std::move(bytes), rank, group));
  }
  return assembly.take();
}

}  // namespace bellows::comm
