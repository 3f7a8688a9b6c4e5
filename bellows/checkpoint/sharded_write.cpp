#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>

#include "bellows/checkpoint/agree.h"
#include "bellows/checkpoint/sharded_write.h"
#include "bellows/core/error.h"
#include "bellows/core/grad_mode.h"
#include "bellows/io/crc32.h"
#include "bellows/io/tensors/safetensors_header.h"
#include "bellows/system/file.h"

namespace bellows::checkpoint {

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

/// The piece's elements in one dimension, on the device of its source.
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

/// Where a checkpoint is written before it has its name. Goes with the object unless it got that.
class PartialFolder {
 public:
  ~PartialFolder() {
    std::error_code error;
    if (!path_.empty()) fs::remove_all(path_, error);
  }
  PartialFolder() = default;
  PartialFolder(const PartialFolder&) = delete;
  PartialFolder& operator=(const PartialFolder&) = delete;

  /// Params: target – the name to be
  const std::string& make(const std::string& target) {
    std::random_device random;
    std::error_code error;
    do {
      char letters[16];
      std::snprintf(letters, sizeof(letters), "%08x", random());
      path_ = folder_above(target) + "/." + fs::path(target).filename().string() + ".partial-" + letters;
    } while (!fs::create_directory(path_, error) && !error);
    if (error) path_.clear();
    TORCH_CHECK(!error, "cannot make a folder beside ", target, ": ", error.message(), ". Choose another folder.");
    return path_;
  }

  void become(const std::string& target) {
    if (std::rename(path_.c_str(), target.c_str()) == 0) {
      path_.clear();
    } else {  // there is one already: they change places, and the old one goes with this object
      TORCH_CHECK((errno == ENOTEMPTY || errno == EEXIST) &&
                      ::renameat2(AT_FDCWD, path_.c_str(), AT_FDCWD, target.c_str(), RENAME_EXCHANGE) == 0,
                  "cannot rename ", path_, " to ", target, ": ", errno_message(errno), ".");
    }
    sync_folder(folder_above(target));
  }

 private:
  std::string path_;
};

/// Writes the pieces' bytes and gives the checksums of their chunks.
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

/// Returns: what the index says of the file, as JSON: bytes, header, checksums of its pieces in the order of the index
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
  const inference_mode ordinary_tensors(false);  // the buffers outlive whatever guard the caller is under
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
  const std::string what = c10::str("checkpoint: ", path, " is not saved, nothing is left of it: ");
  PartialFolder partial;  // rank 0's
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
