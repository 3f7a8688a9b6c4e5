#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "bellows/checkpoint/agree.h"
#include "bellows/checkpoint/sharded_plan.h"
#include "bellows/checkpoint/tiling.h"
#include "bellows/io/bytes.h"
#include "bellows/io/tables/number_text.h"
#include "bellows/io/tensors/safetensors.h"

namespace bellows::checkpoint {

using comm::ShardSpec;

namespace {

using nlohmann::json;

constexpr uint64_t crc_chunk_bytes = 16 << 20;
constexpr int64_t small_bytes = 64 << 10;  ///< what several ranks hold is not divided below this

/// A part, and the ranks that hold it: pairs of rank and number among its parts, ascending.
struct Share {
  ShardSpec spec;
  std::vector<std::pair<size_t, size_t>> holders;
};

struct PlannedTensor {
  SavedTensor saved;
  std::vector<Share> shares;
  int64_t width = 0;  ///< bytes of an element
};

std::vector<int64_t> row_major(const std::vector<int64_t>& sizes) {
  std::vector<int64_t> strides(sizes.size());
  int64_t stride = 1;
  for (size_t dim = sizes.size(); dim-- > 0; stride *= std::max<int64_t>(sizes[dim], 1)) strides[dim] = stride;
  return strides;
}

/// Those that come back: of a whole tensor without gaps that does not lie in row-major order.
std::vector<int64_t> kept_strides(const Part& part) {
  const bool whole = part.spec == ShardSpec::whole(part.spec.sizes);
  if (!whole || !part.local.is_non_overlapping_and_dense()) return {};
  std::vector<int64_t> strides = part.local.strides().vec();
  return strides == row_major(part.spec.sizes) ? std::vector<int64_t>() : strides;
}

void check_part(const Part& part) {
  const at::Tensor& local = part.local;
  TORCH_CHECK_VALUE(local.defined() && local.layout() == c10::kStrided && !local.is_quantized() && !local.is_meta(),
                    part.name, ": expected a dense tensor with data, found ",
                    local.defined() ? local.toString() : "an undefined one", ".");
  TORCH_CHECK_VALUE(!io::safetensors_dtype_name(local.scalar_type()).empty(), part.name, " has dtype ",
                    local.scalar_type(), ", which safetensors files cannot hold. Convert it.");
  const ShardSpec& spec = part.spec;
  checked_numel(spec.sizes, part.name);
  const bool box = spec.offset.size() == spec.sizes.size();
  TORCH_CHECK_VALUE(spec.is_inside() && spec.numel() == local.numel() && (!box || local.sizes() == spec.length),
                    part.name, ": expected a tensor of sizes [", c10::Join(", ", spec.length), "] at [",
                    c10::Join(", ", spec.offset), "] inside one of [", c10::Join(", ", spec.sizes), "], found sizes ",
                    local.sizes(), ".");
}

std::string describe(const ShardedState& state, const Parts& parts) {
  TORCH_CHECK_VALUE(state.step >= 0 && state.epoch >= 0 && state.batch >= 0 && state.consumed >= 0,
                    "expected step, epoch, batch and consumed of at least 0.");
  json tensors = json::array();
  for (const Part& part : parts) {
    check_part(part);
    TORCH_CHECK_VALUE(io::is_utf8(part.name), "the name ", io::printable(part.name),
                      " is not UTF-8 text; rename that tensor.");
    tensors.push_back({part.name, io::safetensors_dtype_name(part.local.scalar_type()), part.spec.sizes,
                       kept_strides(part), part.spec.offset, part.spec.length});
  }
  return json{{"at", {state.step, state.epoch, state.batch, state.consumed}}, {"tensors", tensors}}.dump();
}

/// What all ranks hold, out of their descriptions.
class Collection {
 public:
  explicit Collection(const std::vector<int>& ranks) : ranks_(ranks) {}

  void add(size_t rank, const json& description) {
    if (rank == 0) at_ = description["at"];
    TORCH_CHECK_VALUE(description["at"] == at_, "rank ", ranks_[0], " is at step, epoch, batch, consumed ", at_.dump(),
                      ", rank ", ranks_[rank], " at ", description["at"].dump(),
                      ". Save on all ranks at the same step.");
    for (size_t part = 0; part < description["tensors"].size(); ++part)
      add_part(rank, part, description["tensors"][part]);
  }

  /// Checks that each tensor is there, all of it.
  std::vector<PlannedTensor> take() {
    for (const PlannedTensor& tensor : tensors_) {
      std::vector<const ShardSpec*> specs;
      specs.reserve(tensor.shares.size());
      for (const Share& share : tensor.shares) specs.push_back(&share.spec);
      check_tiling(specs, tensor.saved.sizes, tensor.saved.name,
                   [&](size_t i) { return c10::str("rank ", ranks_[tensor.shares[i].holders.front().first]); });
    }
    return std::move(tensors_);
  }

 private:
  void add_part(size_t rank, size_t part, const json& said) {
    const auto [place, is_new] = numbers_.try_emplace(said[0].get<std::string>(), tensors_.size());
    if (is_new) {
      const auto dtype = said[1].get<std::string>();
      tensors_.push_back({.saved = {.name = place->first, .dtype = dtype, .sizes = said[2].get<std::vector<int64_t>>()},
                          .width = io::safetensors_bits(dtype) / 8});
      firsts_.push_back(rank);
    }
    PlannedTensor& tensor = tensors_[place->second];
    const bool same =
        said[1].get<std::string>() == tensor.saved.dtype && said[2].get<std::vector<int64_t>>() == tensor.saved.sizes;
    TORCH_CHECK_VALUE(same, tensor.saved.name, ": rank ", ranks_[firsts_[place->second]], " has ", tensor.saved.dtype,
                      " [", c10::Join(", ", tensor.saved.sizes), "], rank ", ranks_[rank], " has ",
                      said[1].get<std::string>(), " ", said[2].dump(), ".");
    if (tensor.saved.strides.empty()) tensor.saved.strides = said[3].get<std::vector<int64_t>>();
    add_holder(tensor, {tensor.saved.sizes, said[4].get<std::vector<int64_t>>(), said[5].get<std::vector<int64_t>>()},
               rank, part);
  }

  void add_holder(PlannedTensor& tensor, const ShardSpec& spec, size_t rank, size_t part) const {
    if (spec.numel() == 0) return;
    auto share =
        std::find_if(tensor.shares.begin(), tensor.shares.end(), [&](const Share& s) { return s.spec == spec; });
    if (share == tensor.shares.end()) share = tensor.shares.insert(share, {spec, {}});
    TORCH_CHECK_VALUE(share->holders.empty() || share->holders.back().first != rank, tensor.saved.name, ": rank ",
                      ranks_[rank], " has the same part twice.");
    share->holders.emplace_back(rank, part);
  }

  const std::vector<int>& ranks_;
  json at_;
  std::vector<PlannedTensor> tensors_;
  std::vector<size_t> firsts_;  ///< which rank named the tensor first
  std::unordered_map<std::string, size_t> numbers_;
};

/// "[0:5,3:6]", as Python would write it; "" for a whole tensor.
std::string slice_text(const ShardSpec& spec) {
  if (spec == ShardSpec::whole(spec.sizes)) return "";
  std::string text;
  for (size_t dim = 0; dim < spec.offset.size(); ++dim)
    text += c10::str(dim ? "," : "[", spec.offset[dim], ":", spec.offset[dim] + spec.length[dim]);
  return text + "]";
}

/// Says who writes what. What several ranks hold lies one behind the other on a line, of which each of them gets a part
/// as long as the others': few tensors are cut, and all ranks write the same number of bytes.
class Division {
 public:
  Division(std::vector<PlannedTensor> tensors, size_t rank, const Parts& parts)
      : tensors_(std::move(tensors)), rank_(rank), parts_(parts) {
    for (size_t i = 0; i < tensors_.size(); ++i) sort_shares(i);
    for (const auto& [holders, line] : lines_) divide(line);
  }

  SavePlan plan() {
    SavePlan plan;
    for (PlannedTensor& tensor : tensors_) plan.index.tensors.push_back(std::move(tensor.saved));
    std::sort(own_.begin(), own_.end(), [](const OwnPiece& a, const OwnPiece& b) {
      return std::pair(a.tensor, a.piece) < std::pair(b.tensor, b.piece);
    });
    plan.own = std::move(own_);
    return plan;
  }

 private:
  struct OnLine {
    size_t tensor;
    const Share* share;
    bool cut;
  };

  int64_t bytes(const OnLine& item) const { return item.share->spec.numel() * tensors_[item.tensor].width; }

  void sort_shares(size_t number) {
    const PlannedTensor& tensor = tensors_[number];
    const bool runs = std::all_of(tensor.shares.begin(), tensor.shares.end(),
                                  [](const Share& share) { return single_run(share.spec).has_value(); });
    for (const Share& share : tensor.shares) {
      if (share.holders.size() > 1 && share.spec.numel() * tensor.width >= small_bytes) {
        std::vector<size_t> ranks;
        ranks.reserve(share.holders.size());
        for (const auto& [rank, part] : share.holders) ranks.push_back(rank);
        lines_[ranks].push_back({number, &share, runs});
      } else {
        add(number, share.spec, share.holders.front(), 0);
      }
    }
  }

  void divide(const std::vector<OnLine>& line) {
    const auto count = static_cast<int64_t>(line.front().share->holders.size());
    int64_t total = 0, at = 0;
    for (const OnLine& item : line) total += bytes(item);
    const int64_t length = std::max(total / count + 1, small_bytes);
    for (const OnLine& item : line) {
      const ShardSpec& spec = item.share->spec;
      const int64_t numel = spec.numel(), width = tensors_[item.tensor].width;
      for (int64_t done = 0, taken = 0; done < numel; done += taken, at += taken * width) {
        const int64_t who = std::min(at / length, count - 1), room = ((who + 1) * length - at + width - 1) / width;
        taken = !item.cut || who == count - 1 ? numel - done : std::min(numel - done, room);
        add(item.tensor, taken == numel ? spec : ShardSpec::run(spec.sizes, single_run(spec)->first + done, taken),
            item.share->holders[static_cast<size_t>(who)], done);
      }
    }
  }

  void add(size_t number, const ShardSpec& spec, const std::pair<size_t, size_t>& writer, int64_t offset) {
    SavedTensor& saved = tensors_[number].saved;
    if (writer.first == rank_)
      own_.push_back({number, saved.pieces.size(), parts_[writer.second].local, offset, spec.numel()});
    saved.pieces.push_back({.file = writer.first, .key = saved.name + slice_text(spec), .spec = spec});
  }

  std::vector<PlannedTensor> tensors_;
  size_t rank_;
  const Parts& parts_;
  std::map<std::vector<size_t>, std::vector<OnLine>> lines_;  ///< by who holds what is on them
  std::vector<OwnPiece> own_;
};

std::string rank_file_name(int rank, int size) {
  char name[64];
  std::snprintf(name, sizeof(name), "rank-%05d-of-%05d.safetensors", rank, size);
  return name;
}

}  // namespace

Parts named_parts(const ShardedState& state, int rank) {
  Parts parts;
  parts.reserve(state.model.size() + state.optimizer.size() + state.extra.size() + state.rng.size());
  for (const auto& [section, list] : {std::pair("model/", &state.model), std::pair("optimizer/", &state.optimizer),
                                      std::pair("extra/", &state.extra)}) {
    for (const Part& part : *list) parts.push_back({section + part.name, part.local, part.spec});
  }
  for (const Part& part : whole_parts(state.rng))
    parts.push_back({c10::str("rng/", rank, "/", part.name), part.local, part.spec});
  return parts;
}

SavePlan plan_save(const ShardedState& state, const comm::Group& group) {
  const std::string what = "checkpoint: nothing is saved: ";
  const Parts parts = named_parts(state, group.rank());
  const Outcomes said = on_all_ranks(group, [&] { return describe(state, parts); });
  said.check(what);
  Collection collection(group.ranks());
  std::vector<PlannedTensor> tensors;
  try {
    for (size_t rank = 0; rank < said.results.size(); ++rank) collection.add(rank, json::parse(said.results[rank]));
    tensors = collection.take();
  } catch (const c10::ValueError& error) {
    TORCH_CHECK_VALUE(false, what, error.what_without_backtrace());
  }
  SavePlan plan = Division(std::move(tensors), static_cast<size_t>(group.rank()), parts).plan();
  plan.index.ranks = group.size();
  plan.index.step = state.step;
  plan.index.epoch = state.epoch;
  plan.index.batch = state.batch;
  plan.index.consumed = state.consumed;
  plan.index.recipe = state.recipe;
  plan.index.environment = state.environment;
  plan.index.chunk_bytes = crc_chunk_bytes;
  for (int rank = 0; rank < group.size(); ++rank)
    plan.index.files.push_back({.name = rank_file_name(rank, group.size())});
  return plan;
}

}  // namespace bellows::checkpoint
