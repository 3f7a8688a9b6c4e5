#include "bellows/checkpoint/saving.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>
#include <unordered_map>

#include "bellows/checkpoint/agree.h"
#include "bellows/checkpoint/tiling.h"
#include "bellows/core/error.h"
#include "bellows/core/grad_mode.h"
#include "bellows/io/bytes.h"
#include "bellows/io/crc32.h"
#include "bellows/io/tables/number_text.h"
#include "bellows/io/tensors/safetensors.h"
#include "bellows/io/tensors/safetensors_header.h"
#include "bellows/system/file.h"

namespace bellows::checkpoint {

using comm::ShardSpec;

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr uint64_t crc_chunk_bytes = 16 << 20;
constexpr int64_t small_bytes = 64 << 10;  ///< parts that several ranks hold are not divided below this size

/// A part, and the ranks that hold it: pairs of rank and part index, ascending.
struct Share {
  ShardSpec spec;
  std::vector<std::pair<size_t, size_t>> holders;
};

struct PlannedTensor {
  SavedTensor saved;
  std::vector<Share> shares;
  int64_t width = 0;  ///< bytes per element
};

std::vector<int64_t> row_major(const std::vector<int64_t>& sizes) {
  std::vector<int64_t> strides(sizes.size());
  int64_t stride = 1;
  for (size_t dim = sizes.size(); dim-- > 0; stride *= std::max<int64_t>(sizes[dim], 1)) strides[dim] = stride;
  return strides;
}

/// The strides to save: only of a dense tensor that is not row-major.
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
                    local.scalar_type(), ", which safetensors files cannot store. Convert the tensor.");
  const ShardSpec& spec = part.spec;
  checked_numel(spec.sizes, part.name);
  const bool box = spec.offset.size() == spec.sizes.size();
  TORCH_CHECK_VALUE(spec.is_inside() && spec.numel() == local.numel() && (!box || local.sizes() == spec.length),
                    part.name, ": expected a tensor of sizes [", c10::Join(", ", spec.length), "] at [",
                    c10::Join(", ", spec.offset), "] inside a tensor of sizes [", c10::Join(", ", spec.sizes),
                    "], found sizes ", local.sizes(), ".");
}

std::string describe(const ShardedState& state, const Parts& parts) {
  TORCH_CHECK_VALUE(state.step >= 0 && state.epoch >= 0 && state.batch >= 0 && state.consumed >= 0,
                    "expected step, epoch, batch and consumed of at least 0.");
  json tensors = json::array();
  for (const Part& part : parts) {
    check_part(part);
    TORCH_CHECK_VALUE(io::is_utf8(part.name), "the name ", io::printable(part.name),
                      " is not UTF-8 text. Rename the tensor.");
    tensors.push_back({part.name, io::safetensors_dtype_name(part.local.scalar_type()), part.spec.sizes,
                       kept_strides(part), part.spec.offset, part.spec.length});
  }
  return json{{"at", {state.step, state.epoch, state.batch, state.consumed}}, {"tensors", tensors}}.dump();
}

/// The parts of all ranks, from their descriptions.
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

  /// Checks that the parts of each tensor cover all of its elements.
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
  std::vector<size_t> firsts_;  ///< the first rank that listed the tensor
  std::unordered_map<std::string, size_t> numbers_;
};

/// The slice in Python's notation: "[0:5,3:6]"; "" for a whole tensor.
std::string slice_text(const ShardSpec& spec) {
  if (spec == ShardSpec::whole(spec.sizes)) return "";
  std::string text;
  for (size_t dim = 0; dim < spec.offset.size(); ++dim)
    text += c10::str(dim ? "," : "[", spec.offset[dim], ":", spec.offset[dim] + spec.length[dim]);
  return text + "]";
}

/// Assigns pieces to ranks. The parts that the same ranks hold are lined up and divided into stretches of equal length,
/// one per rank. So few tensors are split, and all ranks write the same number of bytes.
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
  std::map<std::vector<size_t>, std::vector<OnLine>> lines_;  ///< by the ranks that hold the parts
  std::vector<OwnPiece> own_;
};

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
  const std::string what = "checkpoint: the checkpoint was not saved: ";
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

namespace {

/// The piece's elements as a 1-D tensor, on the device of its source.
at::Tensor flat(const OwnPiece& piece) {
  const at::Tensor source = piece.source.detach().resolve_conj().resolve_neg();
  return source.contiguous().view({-1}).narrow(0, piece.offset, piece.count);
}

void sync_folder(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return;
  ::fsync(fd);
  ::close(fd);
}

std::string folder_above(const std::string& path) {
  const std::string folder = fs::path(path).parent_path();
  return folder.empty() ? "." : folder;
}

/// The temporary folder of a checkpoint. The destructor deletes it unless it was renamed.
class PartialFolder {
 public:
  ~PartialFolder() {
    std::error_code error;
    if (!path_.empty()) fs::remove_all(path_, error);
  }
  PartialFolder() = default;
  PartialFolder(const PartialFolder&) = delete;
  PartialFolder& operator=(const PartialFolder&) = delete;

  /// Params: target – final name
  const std::string& make(const std::string& target) {
    std::random_device random;
    std::error_code error;
    do {
      char letters[16];
      std::snprintf(letters, sizeof(letters), "%08x", random());
      path_ = folder_above(target) + "/." + fs::path(target).filename().string() + ".partial-" + letters;
    } while (!fs::create_directory(path_, error) && !error);
    if (error) path_.clear();
    TORCH_CHECK(!error, "cannot create a folder next to ", target, ": ", error.message(), ". Choose another folder.");
    return path_;
  }

  void become(const std::string& target) {
    if (std::rename(path_.c_str(), target.c_str()) == 0) {
      path_.clear();
    } else {  // the target exists: exchange both, so that the destructor deletes the old one
      TORCH_CHECK((errno == ENOTEMPTY || errno == EEXIST) &&
                      ::renameat2(AT_FDCWD, path_.c_str(), AT_FDCWD, target.c_str(), RENAME_EXCHANGE) == 0,
                  "cannot rename ", path_, " to ", target, ": ", errno_message(errno), ".");
    }
    sync_folder(folder_above(target));
  }

 private:
  std::string path_;
};

/// Writes the bytes of a piece and returns the checksums of its chunks.
json write_piece(AtomicFile& file, const OwnPiece& piece, uint64_t chunk_bytes) {
  const at::Tensor dense = flat(piece).cpu();
  io::ByteSpan rest(static_cast<const std::byte*>(dense.const_data_ptr()), static_cast<size_t>(dense.nbytes()));
  json crc = json::array();
  while (!rest.empty()) {
    const io::ByteSpan chunk = rest.first(std::min<size_t>(chunk_bytes, rest.size()));
    crc.push_back(io::crc32c(chunk));
    file.write(chunk);
    rest = rest.subspan(chunk.size());
  }
  return crc;
}

std::vector<io::SafetensorsEntry> entries_of(const SavePlan& plan) {
  std::vector<io::SafetensorsEntry> entries;
  entries.reserve(plan.own.size());
  for (const OwnPiece& own : plan.own) {
    const SavedTensor& tensor = plan.index.tensors[own.tensor];
    const SavedPiece& piece = tensor.pieces[own.piece];
    entries.push_back({.name = piece.key, .dtype = tensor.dtype, .shape = piece.spec.length});
  }
  return entries;
}

/// Returns: the file's data for the index, as JSON: bytes, header, checksums of its pieces in index order
std::string write_rank_file(const std::string& path, const SavePlan& plan) {
  const std::vector<io::SafetensorsEntry> entries = entries_of(plan);
  std::vector<size_t> order(entries.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(),
            [&](size_t a, size_t b) { return io::safetensors_before(entries[a], entries[b]); });
  std::vector<io::SafetensorsEntry> sorted;
  sorted.reserve(order.size());
  uint64_t at = 0;
  for (const size_t i : order) {
    sorted.push_back(entries[i]);
    sorted.back().begin = at;
    at += static_cast<uint64_t>(plan.own[i].count) * static_cast<uint64_t>(io::safetensors_bits(entries[i].dtype)) / 8;
    sorted.back().end = at;
    TORCH_CHECK_VALUE(sorted.size() < 2 || sorted[sorted.size() - 2].name != sorted.back().name,
                      "two pieces are called ", sorted.back().name, ". Rename the tensor.");
  }
  const std::string header = io::make_safetensors_header(sorted, {{"format", "pt"}});
  AtomicFile file(path);
  file.write(header);
  json pieces = json::array();
  for (size_t i = 0; i < order.size(); ++i) pieces.push_back(nullptr);
  for (const size_t i : order) pieces[i] = write_piece(file, plan.own[i], plan.index.chunk_bytes);
  file.commit();
  return json{{"bytes", file.offset()}, {"header", io::crc32c(io::as_bytes(header))}, {"pieces", pieces}}.dump();
}

void add_reports(ShardedIndex& index, const std::vector<std::string>& reports) {
  std::vector<json> said;
  said.reserve(reports.size());
  for (size_t rank = 0; rank < reports.size(); ++rank) {
    said.push_back(json::parse(reports[rank]));
    index.files[rank].bytes = said[rank]["bytes"];
    index.files[rank].header_crc32c = said[rank]["header"];
  }
  std::vector<size_t> next(reports.size());
  for (SavedTensor& tensor : index.tensors) {
    for (SavedPiece& piece : tensor.pieces)
      piece.crc32c = said[piece.file]["pieces"][next[piece.file]++].get<std::vector<uint32_t>>();
  }
}

}  // namespace

void copy_own(SavePlan& plan, std::vector<at::Tensor>& buffers) {
  const inference_mode ordinary_tensors(false);  // the buffers outlive the caller's guards
  const no_grad guard;
  buffers.resize(plan.own.size());
  for (size_t i = 0; i < plan.own.size(); ++i) {
    OwnPiece& piece = plan.own[i];
    const at::Tensor source = flat(piece);
    at::Tensor& buffer = buffers[i];
    const bool fits = buffer.defined() && buffer.scalar_type() == source.scalar_type() && buffer.numel() == piece.count;
    if (!fits) buffer = at::empty({piece.count}, source.scalar_type());
    piece.source = buffer.copy_(source);
    piece.offset = 0;
  }
}

void write_planned(const std::string& path, SavePlan& plan, const comm::Group& group, const std::string& trouble) {
  const std::string what = c10::str("checkpoint: ", path, " was not saved, and its files were removed: ");
  PartialFolder partial;  // only used by rank 0
  const Outcomes made = on_rank_zero(group, [&] { return partial.make(path); });
  made.check(what);
  const std::string& folder = made.results[0];
  const Outcomes written = on_all_ranks(group, [&] {
    TORCH_CHECK(trouble.empty(), trouble);
    return write_rank_file(folder + "/" + plan.index.files[static_cast<size_t>(group.rank())].name, plan);
  });
  written.check(what);
  on_rank_zero(group, [&] {
    add_reports(plan.index, written.results);
    write_text_file(folder + "/index.json", make_sharded_index(plan.index));
    partial.become(path);
    return std::string();
  }).check(what);
}

}  // namespace bellows::checkpoint
