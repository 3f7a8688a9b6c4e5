#include "bellows/train/teacher/cache_file.h"

#include <c10/util/Exception.h>
#include <c10/util/accumulate.h>

#include <charconv>
#include <cstring>
#include <limits>
#include <span>

#include "bellows/core/error.h"
#include "bellows/core/round_up.h"
#include "bellows/io/crc32.h"

namespace bellows::train {

namespace {

constexpr const char* cache_kind = "bellows.teacher_outputs";
constexpr const char* cache_version = "1";
constexpr std::string_view fact_prefix = "made_with.";

std::string text_of(const io::SafetensorsMetadata& metadata, std::string_view name) {
  for (const auto& [key, value] : metadata) {
    if (key == name) return value;
  }
  return "";
}

[[noreturn]] void damaged(const std::string& path, const std::string& how) {
  TORCH_CHECK_VALUE(false, "teacher_cache = ", path, ": the file is damaged: ", how,
                    ". Delete it, and the next run computes it again.");
}

std::vector<int64_t> parse_sizes(const std::string& text, const std::string& path) {
  std::vector<int64_t> sizes;
  const char* const end = text.data() + text.size();
  for (const char* at = text.data(); at < end;) {
    int64_t size = 0;
    const auto [stop, error] = std::from_chars(at, end, size);
    if (error != std::errc() || size < 0) damaged(path, "expected sizes such as 128,10, found \"" + text + "\"");
    if (stop != end && *stop != ',') damaged(path, "expected sizes such as 128,10, found \"" + text + "\"");
    sizes.push_back(size);
    at = stop + 1;
  }
  return sizes;
}

CacheLayout parse_layout(const io::SafetensorsMetadata& metadata, const std::string& path) {
  CacheLayout layout{.shape = parse_sizes(text_of(metadata, "shape"), path)};
  const std::vector<int64_t> top = parse_sizes(text_of(metadata, "top"), path);
  layout.top = top.size() == 1 ? top.front() : -1;
  layout.dtype = io::safetensors_dtype({.name = "logits", .dtype = text_of(metadata, "dtype"), .shape = {}}, path);
  if (!c10::isFloatingType(layout.dtype)) damaged(path, "expected a floating-point dtype");
  const bool fits = layout.top == 0 || (layout.top > 0 && !layout.shape.empty() && layout.shape.back() == layout.top);
  if (!fits) damaged(path, "the shape does not fit top = " + text_of(metadata, "top"));
  return layout;
}

void check_kind(const io::SafetensorsMetadata& metadata, const std::string& path) {
  TORCH_CHECK_VALUE(text_of(metadata, "format") == cache_kind, "teacher_cache = ", path,
                    ": expected a file with a teacher's outputs, got another safetensors file. Choose another name.");
  const std::string version = text_of(metadata, "version");
  TORCH_CHECK_VALUE(version == cache_version, "teacher_cache = ", path, ": expected version ", cache_version, ", got ",
                    version, ". Delete the file, and the next run computes it again.");
}

/// The beginning of the checksum, so that it also covers how the rows are read.
uint32_t layout_checksum(const CacheLayout& layout) {
  const std::string text =
      c10::str(io::safetensors_dtype_name(layout.dtype), ";", c10::Join(",", layout.shape), ";", layout.top);
  return io::crc32c(io::as_bytes(text));
}

io::SafetensorsFile open_file(const std::string& path) {
  try {
    return io::SafetensorsFile(path);
  } catch (const c10::Error& error) {
    damaged(path, user_message(error));
  }
}

void put(const at::Tensor& tensor, c10::ScalarType dtype, int64_t offset, int64_t stride,
         std::vector<std::byte>& bytes) {
  const at::Tensor values = tensor.detach().to(at::kCPU, dtype).contiguous();
  const int64_t n = values.size(0);
  const auto row = static_cast<size_t>(n == 0 ? 0 : static_cast<int64_t>(values.nbytes()) / n);
  const auto* from = static_cast<const std::byte*>(values.const_data_ptr());
  for (int64_t i = 0; i < n; ++i)
    std::memcpy(bytes.data() + i * stride + offset, from + static_cast<size_t>(i) * row, row);
}

}  // namespace

int64_t CacheLayout::numel() const {
  return c10::multiply_integers(shape);
}

int64_t CacheLayout::positions() const {
  return top > 0 ? numel() / top : 1;
}

int64_t CacheLayout::logits_bytes() const {
  return numel() * static_cast<int64_t>(c10::elementSize(dtype));
}

int64_t CacheLayout::stride() const {
  return round_up(logits_begin() + logits_bytes(), 8);
}

CacheWriter::CacheWriter(const std::string& path, CacheFacts facts, CacheLayout layout)
    : facts_(std::move(facts)), layout_(std::move(layout)), file_(path), checksum_(layout_checksum(layout_)) {
  file_.write(header(std::numeric_limits<int64_t>::max() >> 20, 0));  // the longest numbers; finish() replaces it
}

std::string CacheWriter::header(int64_t rows, uint32_t checksum) const {
  const auto row_bytes = static_cast<uint64_t>(rows) * static_cast<uint64_t>(layout_.stride());
  io::SafetensorsMetadata metadata{{"format", cache_kind},
                                   {"version", cache_version},
                                   {"crc32c", io::crc32_text(checksum)},
                                   {"dtype", std::string(io::safetensors_dtype_name(layout_.dtype))},
                                   {"shape", c10::Join(",", layout_.shape)},
                                   {"top", std::to_string(layout_.top)}};
  for (const auto& [name, value] : facts_) metadata.emplace_back(std::string(fact_prefix) + name, value);
  return io::make_safetensors_header(
      {{.name = "rows", .dtype = "U8", .shape = {rows, layout_.stride()}, .begin = 0, .end = row_bytes},
       {.name = "ids",
        .dtype = "I64",
        .shape = {rows},
        .begin = row_bytes,
        .end = row_bytes + 8 * static_cast<uint64_t>(rows)}},
      metadata);
}

void CacheWriter::add(const std::vector<int64_t>& ids, const CacheRows& rows) {
  const auto n = static_cast<int64_t>(ids.size());
  std::vector<int64_t> expected{n};
  expected.insert(expected.end(), layout_.shape.begin(), layout_.shape.end());
  TORCH_CHECK_VALUE(rows.logits.sizes() == expected && rows.logits.scalar_type() == layout_.dtype,
                    "teacher_cache: expected outputs ", layout_.dtype, " ", c10::IntArrayRef(expected),
                    ", as for the first batch, got ", rows.logits.scalar_type(), " ", rows.logits.sizes(),
                    ". The outputs of all samples need the same shape. Leave teacher_cache empty.");
  std::vector<std::byte> bytes(static_cast<size_t>(n * layout_.stride()), std::byte{0});
  put(rows.logits, layout_.dtype, layout_.logits_begin(), layout_.stride(), bytes);
  if (layout_.top > 0) {
    put(rows.classes, at::kInt, 0, layout_.stride(), bytes);
    put(rows.rest, at::kFloat, layout_.rest_begin(), layout_.stride(), bytes);
  }
  file_.write(bytes);
  checksum_ = io::crc32c(bytes, checksum_);
  ids_.insert(ids_.end(), ids.begin(), ids.end());
}

void CacheWriter::finish() {
  const auto ids = std::as_bytes(std::span(ids_));
  file_.write(ids);
  checksum_ = io::crc32c(ids, checksum_);
  const size_t reserved = header(std::numeric_limits<int64_t>::max() >> 20, 0).size();
  std::string own = header(static_cast<int64_t>(ids_.size()), checksum_);
  own.resize(reserved, ' ');
  std::string length;
  io::append_little(length, static_cast<uint64_t>(reserved - 8));
  own.replace(0, 8, length);
  file_.overwrite(0, io::as_bytes(own));
  file_.commit();
}

CacheFile::CacheFile(const std::string& path) : path_(path), file_(open_file(path)) {
  const io::SafetensorsMetadata& metadata = file_.metadata();
  check_kind(metadata, path);
  for (const auto& [key, value] : metadata) {
    if (key.starts_with(fact_prefix)) facts_.emplace_back(key.substr(fact_prefix.size()), value);
  }
  layout_ = parse_layout(metadata, path);
  const auto& entries = file_.entries();
  const bool complete = entries.size() == 2 && entries[0].name == "rows" && entries[1].name == "ids" &&
                        entries[0].dtype == "U8" && entries[1].dtype == "I64" && entries[1].shape.size() == 1 &&
                        entries[0].shape == std::vector<int64_t>{entries[1].shape[0], layout_.stride()};
  if (!complete) damaged(path, "expected the tensors rows and ids in the sizes of the metadata");
  rows_ = file_.bytes(entries[0]);
  const io::ByteSpan ids = file_.bytes(entries[1]);
  const std::string found = io::crc32_text(io::crc32c(ids, io::crc32c(rows_, layout_checksum(layout_))));
  if (found != text_of(metadata, "crc32c"))
    damaged(path, "expected the checksum " + text_of(metadata, "crc32c") + ", found " + found);
  ids_.resize(ids.size() / sizeof(int64_t));
  std::memcpy(ids_.data(), ids.data(), ids.size());
}

io::ByteSpan CacheFile::row(int64_t index) const {
  const auto stride = static_cast<size_t>(layout_.stride());
  return rows_.subspan(static_cast<size_t>(index) * stride, stride);
}

}  // namespace bellows::train
