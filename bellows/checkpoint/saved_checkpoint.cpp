#include "bellows/checkpoint/saved_checkpoint.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "bellows/checkpoint/tiling.h"
#include "bellows/core/error.h"
#include "bellows/core/grad_mode.h"
#include "bellows/io/crc32.h"
#include "bellows/io/tensors/safetensors.h"
#include "bellows/system/file.h"

namespace bellows::checkpoint {

using comm::ShardSpec;

namespace {

using Runs = std::vector<std::pair<int64_t, int64_t>>;

Runs runs_of(const ShardSpec& spec) {
  const auto run = single_run(spec);
  return run ? Runs{*run} : spec.runs();
}

/// Calls action(element of `a`, element of `b`, count) for each run of elements that both contain.
template <class Action>
void each_common_run(const Runs& a, const Runs& b, const Action& action) {
  int64_t a_at = 0, b_at = 0;  // elements before the current runs
  for (size_t i = 0, k = 0; i < a.size() && k < b.size();) {
    const int64_t a_end = a[i].first + a[i].second, b_end = b[k].first + b[k].second;
    const int64_t begin = std::max(a[i].first, b[k].first), end = std::min(a_end, b_end);
    if (begin < end) action(a_at + begin - a[i].first, b_at + begin - b[k].first, end - begin);
    if (a_end <= b_end) {
      a_at += a[i++].second;
    } else {
      b_at += b[k++].second;
    }
  }
}

}  // namespace

/// The file of one rank: memory-mapped, with its header compared with the index.
class RankFile {
 public:
  RankFile(const std::string& folder, const SavedFile& saved) : file_(folder + "/" + saved.name) {
    const std::string& path = file_.path();
    const io::ByteSpan bytes = file_.bytes();
    TORCH_CHECK_VALUE(bytes.size() == saved.bytes, path, ": expected ", saved.bytes, " bytes, found ", bytes.size(),
                      ": the file is truncated, or is a different file.");
    TORCH_CHECK_VALUE(bytes.size() >= 8 && io::load_little<uint64_t>(bytes) <= bytes.size() - 8, path,
                      ": the header is damaged.");
    const uint32_t crc = io::crc32c(bytes.first(8 + static_cast<size_t>(io::load_little<uint64_t>(bytes))));
    TORCH_CHECK_VALUE(crc == saved.header_crc32c, path, ": expected the header checksum ", saved.header_crc32c,
                      ", found ", crc, ": the file is damaged.");
    for (io::SafetensorsEntry& entry : io::parse_safetensors_header(bytes, path).entries)
      entries_.emplace(entry.name, std::move(entry));
  }

  const std::string& path() const { return file_.path(); }

  io::ByteSpan bytes(const SavedTensor& tensor, const SavedPiece& piece) const {
    const auto entry = entries_.find(piece.key);
    const auto size = static_cast<uint64_t>(piece.spec.numel() * (io::safetensors_bits(tensor.dtype) / 8));
    const bool fits = entry != entries_.end() && entry->second.dtype == tensor.dtype &&
                      entry->second.end - entry->second.begin == size;
    TORCH_CHECK_VALUE(fits, path(), ": expected ", size, " bytes of ", tensor.dtype, " called ",
                      io::printable(piece.key, 200), ", found ",
                      entry == entries_.end() ? "none" : "a different tensor",
                      ": the file does not belong to this checkpoint.");
    file_.check_size();
    return file_.bytes().subspan(entry->second.begin, size);
  }

 private:
  MappedFile file_;
  std::unordered_map<std::string, io::SafetensorsEntry> entries_;
};

namespace {

void verify_chunks(io::ByteSpan bytes, uint64_t begin, uint64_t end, uint64_t chunk_bytes, const SavedPiece& piece,
                   const std::string& path) {
  for (uint64_t chunk = begin / chunk_bytes; chunk * chunk_bytes < end; ++chunk) {
    const uint64_t at = chunk * chunk_bytes;
    const uint32_t crc = io::crc32c(bytes.subspan(at, std::min(chunk_bytes, bytes.size() - at)));
    TORCH_CHECK_VALUE(crc == piece.crc32c[chunk], path, ": ", io::printable(piece.key, 200), ", from byte ", at,
                      " on: expected the checksum ", piece.crc32c[chunk], ", found ", crc, ": the file is damaged.");
  }
}

std::string read_index(const std::string& path) {
  const std::string index = path + "/index.json";
  std::error_code error;  // for unreadable folders, where read_text_file() reports the error
  TORCH_CHECK_VALUE(std::filesystem::exists(index, error) || error, "checkpoint: ", path,
                    " has no index.json: expected a checkpoint file, or a folder step-… that several ranks wrote.");
  return read_text_file(index);
}

}  // namespace

/// The data of the index: files of ranks, opened on demand, or the tensors of a single-process file.
struct SavedCheckpoint::Files {
  std::vector<std::unique_ptr<RankFile>> ranks;
  std::vector<at::Tensor> tensors;  ///< row-major, in index order
  std::unordered_map<std::string_view, size_t> numbers;

  const RankFile& open(const SavedCheckpoint& saved, size_t number) {
    if (!ranks[number]) ranks[number] = std::make_unique<RankFile>(saved.path_, saved.index_.files[number]);
    return *ranks[number];
  }

  io::ByteSpan bytes(const SavedCheckpoint& saved, const SavedTensor& tensor, const SavedPiece& piece) {
    if (tensors.empty()) return open(saved, piece.file).bytes(tensor, piece);
    const at::Tensor& held = tensors[static_cast<size_t>(&tensor - saved.index_.tensors.data())];
    return {static_cast<const std::byte*>(held.const_data_ptr()), static_cast<size_t>(held.nbytes())};
  }

  void take(ShardedIndex& index, const std::string& section, const NamedTensors& named) {
    for (const auto& [name, tensor] : named) {
      const std::string_view dtype = io::safetensors_dtype_name(tensor.scalar_type());
      TORCH_CHECK_VALUE(!dtype.empty(), "checkpoint: ", name, " has dtype ", tensor.scalar_type(),
                        ", which only a single process can load.");
      const std::vector<int64_t> sizes = tensor.sizes().vec();
      const bool kept = tensor.is_non_overlapping_and_dense() && !tensor.is_contiguous();
      index.tensors.push_back({.name = section + name,
                               .dtype = std::string(dtype),
                               .sizes = sizes,
                               .strides = kept ? tensor.strides().vec() : std::vector<int64_t>(),
                               .pieces = {{.key = name, .spec = ShardSpec::whole(sizes)}}});
      tensors.push_back(tensor.contiguous());
    }
  }

  ShardedIndex take(const State& state) {
    ShardedIndex index{.ranks = 1,
                       .step = state.step,
                       .epoch = state.epoch,
                       .batch = state.batch,
                       .recipe = state.recipe,
                       .environment = state.environment};
    take(index, "model/", state.model);
    take(index, "optimizer/", state.optimizer);
    take(index, "extra/", state.extra);
    take(index, "rng/0/", state.rng);
    return index;
  }
};

SavedCheckpoint::SavedCheckpoint(const std::string& path) : path_(path), files_(std::make_unique<Files>()) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) {
    index_ = parse_sharded_index(read_index(path), path + "/index.json");
    files_->ranks.resize(index_.files.size());
  } else {
    index_ = files_->take(load(path));
  }
  for (size_t i = 0; i < index_.tensors.size(); ++i) files_->numbers.emplace(index_.tensors[i].name, i);
}

SavedCheckpoint::~SavedCheckpoint() = default;

const SavedTensor* SavedCheckpoint::find(std::string_view name) const {
  const auto found = files_->numbers.find(name);
  return found == files_->numbers.end() ? nullptr : &index_.tensors[found->second];
}

void SavedCheckpoint::verify(const SavedTensor& tensor, const ShardSpec& part) const {
  if (!files_->tensors.empty()) return;  // already verified by load()
  const Runs wanted = runs_of(part);
  const auto width = static_cast<uint64_t>(io::safetensors_bits(tensor.dtype) / 8);
  for (const SavedPiece& piece : tensor.pieces) {
    int64_t begin = INT64_MAX, end = 0;
    each_common_run(runs_of(piece.spec), wanted, [&](int64_t from, int64_t, int64_t count) {
      begin = std::min(begin, from);
      end = from + count;
    });
    if (begin >= end) continue;
    const io::ByteSpan bytes = files_->bytes(*this, tensor, piece);
    verify_chunks(bytes, static_cast<uint64_t>(begin) * width, static_cast<uint64_t>(end) * width, index_.chunk_bytes,
                  piece, files_->open(*this, piece.file).path());
  }
}

void SavedCheckpoint::verify() const {
  for (size_t i = 0; i < files_->ranks.size(); ++i) files_->open(*this, i);
  for (const SavedTensor& tensor : index_.tensors) verify(tensor, ShardSpec::whole(tensor.sizes));
}

void SavedCheckpoint::read(const SavedTensor& tensor, const ShardSpec& part, const at::Tensor& local) const {
  const c10::ScalarType dtype = tensor.scalar_type();
  TORCH_CHECK_VALUE(
      part.sizes == tensor.sizes && part.is_inside() && local.scalar_type() == dtype && local.numel() == part.numel(),
      "checkpoint: ", tensor.name, ": expected ", part.numel(), " elements of ", dtype, " from a tensor of sizes [",
      c10::Join(", ", tensor.sizes), "], got ", local.numel(), " elements of ", local.scalar_type(),
      " from a tensor of sizes [", c10::Join(", ", part.sizes), "].");
  const no_grad guard;
  const bool direct = local.device().is_cpu() && local.is_contiguous() && !local.is_neg() && !local.is_conj();
  const at::Tensor out = direct ? local.detach() : at::empty(local.sizes(), at::TensorOptions().dtype(dtype));
  auto* data = static_cast<std::byte*>(out.data_ptr());
  const auto width = static_cast<size_t>(out.element_size());
  const Runs wanted = runs_of(part);
  for (const SavedPiece& piece : tensor.pieces) {
    io::ByteSpan bytes;
    each_common_run(runs_of(piece.spec), wanted, [&](int64_t from, int64_t to, int64_t count) {
      if (bytes.empty()) bytes = files_->bytes(*this, tensor, piece);
      std::memcpy(data + static_cast<size_t>(to) * width, bytes.data() + static_cast<size_t>(from) * width,
                  static_cast<size_t>(count) * width);
    });
  }
  if (!direct) local.detach().copy_(out);
}

at::Tensor SavedCheckpoint::read(const SavedTensor& tensor) const {
  verify(tensor, ShardSpec::whole(tensor.sizes));
  return read_unverified(tensor);
}

at::Tensor SavedCheckpoint::read_unverified(const SavedTensor& tensor) const {
  const auto options = at::TensorOptions().dtype(tensor.scalar_type());
  const at::Tensor result = tensor.strides.empty() ? at::empty(tensor.sizes, options)
                                                   : at::empty_strided(tensor.sizes, tensor.strides, options);
  read(tensor, ShardSpec::whole(tensor.sizes), result);
  return result;
}

State SavedCheckpoint::state(int rank) const {
  verify();
  const std::string generators = c10::str("rng/", rank, "/");
  State state{.step = index_.step,
              .epoch = index_.epoch,
              .batch = index_.batch,
              .recipe = index_.recipe,
              .environment = index_.environment};
  for (const SavedTensor& tensor : index_.tensors) {
    const auto take = [&](std::string_view section, NamedTensors& into) {
      if (tensor.name.starts_with(section))
        into.emplace_back(tensor.name.substr(section.size()), read_unverified(tensor));
    };
    take("model/", state.model);
    take("optimizer/", state.optimizer);
    take("extra/", state.extra);
    take(generators, state.rng);
  }
  return state;
}

namespace {

using Planned = std::vector<std::pair<io::SafetensorsEntry, const SavedTensor*>>;

/// The tensors of the model, divided into files of at most `max_bytes` bytes of data; 0: one file. A larger tensor has
/// its own file.
std::vector<Planned> plan_files(const SavedCheckpoint& saved, uint64_t max_bytes) {
  constexpr std::string_view section = "model/";
  std::vector<Planned> files(1);
  uint64_t bytes = 0;
  for (const SavedTensor& tensor : saved.index().tensors) {
    if (!tensor.name.starts_with(section)) continue;
    io::SafetensorsEntry entry{
        .name = tensor.name.substr(section.size()), .dtype = tensor.dtype, .shape = tensor.sizes};
    entry.end = static_cast<uint64_t>(checked_numel(entry.shape, saved.path())) *
                static_cast<uint64_t>(io::safetensors_bits(entry.dtype) / 8);
    if (max_bytes > 0 && bytes + entry.end > max_bytes && !files.back().empty()) {
      files.emplace_back();
      bytes = 0;
    }
    bytes += entry.end;
    files.back().emplace_back(std::move(entry), &tensor);
  }
  for (Planned& file : files) {
    std::sort(file.begin(), file.end(),
              [](const auto& a, const auto& b) { return io::safetensors_before(a.first, b.first); });
    uint64_t at = 0;
    for (auto& [entry, tensor] : file) {
      entry.begin = at;
      entry.end = at += entry.end;
    }
  }
  return files;
}

void write_file(const SavedCheckpoint& saved, const Planned& planned, const std::string& file) {
  std::vector<io::SafetensorsEntry> entries;
  entries.reserve(planned.size());
  for (const auto& [entry, tensor] : planned) entries.push_back(entry);
  AtomicFile out(file);
  out.write(io::make_safetensors_header(entries, {{"format", "pt"}}));
  for (const auto& [entry, tensor] : planned) {
    const at::Tensor dense = saved.read(*tensor).contiguous();
    out.write(io::ByteSpan(static_cast<const std::byte*>(dense.const_data_ptr()), static_cast<size_t>(dense.nbytes())));
  }
  out.commit();
}

/// "model-00002-of-00003.safetensors" for "model.safetensors"
std::string numbered_name(const std::string& file, size_t number, size_t count) {
  constexpr std::string_view ending = ".safetensors";
  const bool ends = file.ends_with(ending);
  char numbers[32];
  std::snprintf(numbers, sizeof numbers, "-%05zu-of-%05zu", number, count);
  return file.substr(0, file.size() - (ends ? ending.size() : 0)) + numbers + (ends ? std::string(ending) : "");
}

}  // namespace

std::vector<std::string> export_safetensors(const std::string& path, const std::string& file, uint64_t max_file_bytes) {
  const SavedCheckpoint saved(path);
  const std::vector<Planned> files = plan_files(saved, max_file_bytes);
  if (files.size() == 1) {
    write_file(saved, files.front(), file);
    return {file};
  }
  std::vector<std::string> written;
  nlohmann::ordered_json map = nlohmann::ordered_json::object();
  uint64_t total = 0;
  for (size_t i = 0; i < files.size(); ++i) {
    written.push_back(numbered_name(file, i + 1, files.size()));
    write_file(saved, files[i], written.back());
    const std::string name = std::filesystem::path(written.back()).filename();
    for (const auto& [entry, tensor] : files[i]) {
      map[entry.name] = name;
      total += entry.end - entry.begin;
    }
  }
  written.push_back(file + ".index.json");
  write_text_file(written.back(),
                  nlohmann::ordered_json{{"metadata", {{"total_size", total}}}, {"weight_map", map}}.dump(2) + "\n");
  return written;
}

}  // namespace bellows::checkpoint
