#include <c10/util/Exception.h>
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <filesystem>
#include <map>
#include <utility>

#include "bellows/core/error.h"
#include "bellows/io/crc32.h"
#include "bellows/io/records/pack_layout.h"
#include "bellows/system/replaced_file.h"
#include "bellows/system/write_state.h"

namespace bellows::io {

/// The file of a resumable writer: `PATH.partial` until it is complete.
class PackPartialFile {
 public:
  explicit PackPartialFile(const std::string& path) : path_(path), partial_(path + ".partial") {
    fd_ = ::open(partial_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666);
    TORCH_CHECK(fd_ >= 0, "cannot write ", partial_, ": ", errno_message(errno), ".");
    TORCH_CHECK(::flock(fd_, LOCK_EX | LOCK_NB) == 0, "cannot write ", partial_, ": another program is writing it.");
  }
  ~PackPartialFile() {
    if (fd_ >= 0) ::close(fd_);
  }
  PackPartialFile(const PackPartialFile&) = delete;
  PackPartialFile& operator=(const PackPartialFile&) = delete;

  const std::string& partial() const { return partial_; }
  /// Truncates the file to `offset` and continues there.
  void cut(uint64_t offset) {
    offset_ = offset;
    TORCH_CHECK(::ftruncate(fd_, static_cast<off_t>(offset)) == 0, "cannot truncate ", partial_, " at byte ", offset,
                ": ", errno_message(errno), ".");
  }
  void write(ByteSpan bytes) {
    while (!bytes.empty()) {
      const ssize_t written = ::pwrite(fd_, bytes.data(), bytes.size(), static_cast<off_t>(offset_));
      if (written < 0 && errno == EINTR) continue;
      TORCH_CHECK(written >= 0, "cannot write ", partial_, " at byte ", offset_, ": ", errno_message(errno),
                  ". The written part is preserved. Free some space, and run the conversion again to resume.");
      bytes = bytes.subspan(static_cast<size_t>(written));
      offset_ += static_cast<uint64_t>(written);
    }
  }
  void commit() {
    take_ownership(fd_, path_);
    TORCH_CHECK(::fsync(fd_) == 0, "cannot flush ", partial_, " to disk: ", errno_message(errno), ".");
    TORCH_CHECK(::rename(partial_.c_str(), path_.c_str()) == 0, "cannot rename ", partial_, " to ", path_, ": ",
                errno_message(errno), ".");
    ::close(std::exchange(fd_, -1));  // later writes would go into the file that is in place
    const std::string parent = std::filesystem::path(path_).parent_path();
    const int folder = ::open(parent.empty() ? "." : parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder < 0) return;
    ::fsync(folder);
    ::close(folder);
  }

 private:
  std::string path_, partial_;
  int fd_ = -1;
  uint64_t offset_ = 0;
};

namespace {

/// A text that identifies a field.
std::string field_identity(const PackField& field) {
  std::string identity;
  append_pack_field(identity, field);
  return identity;
}

}  // namespace

class PackWriter::Impl {
 public:
  Impl(const std::string& path, const PackWriterOptions& options) : page_(options.page_bytes) {
    TORCH_CHECK_VALUE(std::has_single_bit(page_) && page_ >= kMinPackPage && page_ <= kMaxPackPage,
                      "PackWriter: expected a page size that is a power of two from ", kMinPackPage, " to ",
                      kMaxPackPage, ", got ", page_, ".");
    if (options.resumable) {
      partial_ = std::make_unique<PackPartialFile>(path);
      take_over();
    } else {
      file_ = std::make_unique<AtomicFile>(path);
    }
    begin_block();
  }

  int64_t size() const { return static_cast<int64_t>(table_.size() / kPackSampleEntry); }
  uint64_t bytes() const { return block_offset_ + block_.size(); }
  void add(std::string_view key, std::span<const PackValue> values);
  void close() {
    state_.run("PackWriter", [&] { finish(); });
  }

 private:
  struct Placed {
    uint32_t field;
    uint32_t dims;  // sizes stored before the bytes
    uint64_t offset;
  };

  void take_over();
  bool take_block(ByteSpan rest, uint64_t offset);
  bool take_records(ByteSpan bytes, uint64_t offset, uint32_t samples);
  uint32_t field_of(const PackValue& value);
  void forget_fields(size_t known);
  uint64_t place(std::string_view key, std::span<const PackValue> values);
  void append(std::string_view key, std::span<const PackValue> values, uint64_t size, size_t known);
  void append_record(std::string_view key, std::span<const PackValue> values, uint64_t size);
  void finish();
  void begin_block();
  void end_block(uint64_t alignment);
  void remember_block(const PackBlockHeader& header);
  void pad_to(uint64_t size) { block_.append(size - block_.size(), '\0'); }
  void write(std::string_view bytes) { partial_ ? partial_->write(as_bytes(bytes)) : file_->write(bytes); }

  const uint64_t page_;
  WriteState state_;
  std::unique_ptr<PackPartialFile> partial_;  // one of the two
  std::unique_ptr<AtomicFile> file_;
  uint64_t block_offset_ = 0, blocks_ = 0;
  PackBlockHeader header_;   // of the current block
  std::string block_;        // its bytes so far
  std::string definitions_;  // of fields that it uses first
  std::string table_, block_table_;
  std::vector<PackField> fields_;
  std::map<std::string, uint32_t> numbers_;  // by field_identity
  std::vector<Placed> placed_;               // of the current sample
};

void PackWriter::Impl::begin_block() {
  header_ = {.number = blocks_, .first_sample = static_cast<uint64_t>(size()), .page_bytes = page_};
  block_.assign(kPackHeader, '\0');
  definitions_.clear();
}

/// Params: alignment – pads the block to a multiple of it: the page size, or less for the last block
void PackWriter::Impl::end_block(uint64_t alignment) {
  pad_to(round_up(block_.size(), 8));
  block_ += definitions_;
  header_.bytes = block_.size();
  header_.field_bytes = static_cast<uint32_t>(definitions_.size());
  for (const bool final : {false, true}) {  // the checksum covers the rest of the header, too
    std::string bytes;
    append_pack_block_header(bytes, header_);
    block_.replace(0, kPackHeader, bytes);
    if (!final) header_.crc = crc32c(as_bytes(block_).subspan(kPackCrcStart));
  }
  pad_to(round_up(block_.size(), alignment));
  write(block_);
  remember_block(header_);
}

void PackWriter::Impl::remember_block(const PackBlockHeader& header) {
  append_little(block_table_, block_offset_);
  append_little(block_table_, header.bytes);
  append_little(block_table_, header.first_sample);
  append_little(block_table_, header.samples);
  append_little(block_table_, header.crc);
  block_offset_ += round_up(header.bytes, page_);
  ++blocks_;
}

/// Returns the number of the value's field. A shape that differs from the first of its name gets a field without a
/// shape.
uint32_t PackWriter::Impl::field_of(const PackValue& value) {
  TORCH_CHECK_VALUE(!value.name.empty() && value.name.size() <= kMaxPackName,
                    "PackWriter: expected a field's name of 1 to ", kMaxPackName, " bytes, got ", value.name.size(),
                    ".");
  PackField field{.name = std::string(value.name), .is_array = value.is_array, .dtype = value.dtype, .shape = {}};
  if (value.is_array) {
    TORCH_CHECK_VALUE(is_pack_dtype(value.dtype), "PackWriter: ", printable(value.name), " has the type ",
                      c10::toString(value.dtype), ", which packs do not support. Convert it first.");
    TORCH_CHECK_VALUE(
        value.sizes.size() <= kMaxPackDims && pack_array_bytes(value.dtype, value.sizes) == value.bytes.size(),
        "PackWriter: ", printable(value.name), " has ", value.bytes.size(), " bytes, which does not match an array of ",
        c10::toString(value.dtype), " ", value.sizes, ".");
    field.fixed_shape = true;
    field.shape = value.sizes.vec();
    const bool known = std::any_of(fields_.begin(), fields_.end(), [&](const PackField& other) {
      return other.is_array && other.name == field.name && other.dtype == field.dtype;
    });
    if (known && !numbers_.contains(field_identity(field))) {
      field.fixed_shape = false;
      field.shape.clear();
    }
  }
  const auto [entry, added] = numbers_.try_emplace(field_identity(field), static_cast<uint32_t>(fields_.size()));
  if (added) {
    TORCH_CHECK_VALUE(fields_.size() < kMaxPackFields, "PackWriter: expected at most ", kMaxPackFields,
                      " different fields in a pack, got one more: ", printable(value.name), ".");
    fields_.push_back(std::move(field));
  }
  return entry->second;
}

/// Removes fields from number `known` on, which were never written.
void PackWriter::Impl::forget_fields(size_t known) {
  std::erase_if(numbers_, [&](const auto& entry) { return entry.second >= known; });
  fields_.resize(known);
}

/// Determines the layout of the record and returns its size.
uint64_t PackWriter::Impl::place(std::string_view key, std::span<const PackValue> values) {
  placed_.clear();
  uint64_t at = kPackRecordHead + values.size() * kPackItem + key.size();
  for (const PackValue& value : values) {
    const uint32_t field = field_of(value);
    const bool shaped = value.is_array && !fields_[field].fixed_shape;
    const auto dims = static_cast<uint32_t>(shaped ? value.sizes.size() : 0);
    if (value.is_array) at = round_up(at + 8 * uint64_t{dims}, kPackAlignment);
    placed_.push_back({field, dims, at});
    at += value.bytes.size();
  }
  return at;
}

void PackWriter::Impl::append_record(std::string_view key, std::span<const PackValue> values, uint64_t size) {
  const uint64_t start = block_.size();
  append_little(block_, size);
  append_little(block_, static_cast<uint32_t>(key.size()));
  append_little(block_, static_cast<uint32_t>(values.size()));
  for (size_t i = 0; i < values.size(); ++i) {
    append_little(block_, placed_[i].field);
    append_little(block_, placed_[i].dims);
    append_little(block_, placed_[i].offset);
    append_little(block_, static_cast<uint64_t>(values[i].bytes.size()));
  }
  block_ += key;
  for (size_t i = 0; i < values.size(); ++i) {
    pad_to(start + placed_[i].offset - 8 * uint64_t{placed_[i].dims});
    if (placed_[i].dims > 0) {
      for (const int64_t side : values[i].sizes) append_little(block_, static_cast<uint64_t>(side));
    }
    block_ += as_text(values[i].bytes);
  }
}

void PackWriter::Impl::add(std::string_view key, std::span<const PackValue> values) {
  state_.check("PackWriter");
  TORCH_CHECK_VALUE(key.size() <= kMaxPackKey, "PackWriter: expected a key of at most ", kMaxPackKey, " bytes, got ",
                    key.size(), ".");
  for (size_t i = 0; i < values.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      TORCH_CHECK_VALUE(values[i].name != values[j].name, "PackWriter: sample ", printable(key),
                        " has two fields with the name ", printable(values[i].name), ". Rename one of them.");
    }
  }
  const size_t known = fields_.size();
  uint64_t size = 0;
  try {
    size = place(key, values);
  } catch (...) {
    forget_fields(known);
    throw;
  }
  state_.run("PackWriter", [&] { append(key, values, size, known); });
}

/// Params: known – number of fields before this sample
void PackWriter::Impl::append(std::string_view key, std::span<const PackValue> values, uint64_t size, size_t known) {
  std::string definitions;
  for (size_t i = known; i < fields_.size(); ++i) append_pack_field(definitions, fields_[i]);
  const bool arrays = std::any_of(values.begin(), values.end(), [](const PackValue& value) { return value.is_array; });
  const uint64_t alignment = arrays ? kPackAlignment : 8;
  const uint64_t needed =
      round_up(round_up(block_.size(), alignment) + size, 8) + definitions_.size() + definitions.size();
  if (needed > page_ && header_.samples > 0) {
    end_block(page_);
    begin_block();
  }
  pad_to(round_up(block_.size(), alignment));
  append_little(table_, block_offset_ + block_.size());
  append_little(table_, size);
  append_record(key, values, size);
  definitions_ += definitions;
  ++header_.samples;
}

void PackWriter::Impl::finish() {
  const uint64_t last_block = block_offset_;
  end_block(kPackAlignment);
  const uint64_t index_offset = last_block + block_.size();
  std::string definitions;
  for (const PackField& field : fields_) append_pack_field(definitions, field);
  uint32_t crc = 0;
  for (const std::string* part : {&table_, &block_table_, &definitions}) {
    crc = crc32c(as_bytes(*part), crc);
    write(*part);
  }
  std::string footer;
  append_little(footer, index_offset);
  append_little(footer, static_cast<uint64_t>(table_.size() + block_table_.size() + definitions.size()));
  append_little(footer, static_cast<uint64_t>(size()));
  append_little(footer, blocks_);
  append_little(footer, static_cast<uint32_t>(fields_.size()));
  append_little(footer, crc);
  append_little(footer, page_);
  append_little(footer, kPackVersion);
  append_little(footer, crc32c(as_bytes(footer)));
  footer += kPackEnd;
  write(footer);
  partial_ ? partial_->commit() : file_->commit();
}

/// Reads the blocks that an earlier writer left. The last good one is rewritten, because it may be the last block of a
/// file that was being closed, and so not full.
void PackWriter::Impl::take_over() {
  const MappedFile file(partial_->partial());
  const ByteSpan bytes = file.bytes();
  std::vector<uint64_t> starts;
  for (uint64_t offset = 0; offset < bytes.size();) {
    const ByteSpan rest = bytes.subspan(offset);
    const auto header = rest.size() >= kPackHeader ? parse_pack_block_header(rest) : std::nullopt;
    if (!header || header->page_bytes != page_ || header->number != starts.size() || header->bytes < kPackHeader ||
        header->bytes > rest.size() || header->field_bytes > header->bytes - kPackHeader ||
        crc32c(rest.subspan(kPackCrcStart, header->bytes - kPackCrcStart)) != header->crc)
      break;
    const uint64_t pages = round_up(header->bytes, page_);
    const ByteSpan fill = rest.first(std::min<uint64_t>(pages, rest.size())).subspan(header->bytes);
    if (as_text(fill).find_first_not_of('\0') != std::string_view::npos) break;
    starts.push_back(offset);
    offset += pages;
  }
  for (size_t k = 0; k + 1 < starts.size(); ++k) {
    if (!take_block(bytes.subspan(starts[k]), starts[k])) break;
  }
  partial_->cut(block_offset_);
}

/// Takes over the content of one block; returns false if it does not fit its position.
bool PackWriter::Impl::take_block(ByteSpan rest, uint64_t offset) {
  const PackBlockHeader header = *parse_pack_block_header(rest);
  const uint64_t records_end = header.bytes - header.field_bytes;
  if (header.first_sample != static_cast<uint64_t>(size())) return false;
  const size_t samples_before = table_.size(), fields_before = fields_.size();
  const auto undo = [&] {
    table_.resize(samples_before);
    fields_.resize(fields_before);
    return false;
  };
  try {
    parse_pack_fields(rest.subspan(records_end, header.field_bytes), offset + records_end, partial_->partial(),
                      fields_);
  } catch (const c10::ValueError&) {
    return undo();
  }
  if (!take_records(rest.first(records_end), offset, header.samples)) return undo();
  for (size_t i = fields_before; i < fields_.size(); ++i)
    numbers_.try_emplace(field_identity(fields_[i]), static_cast<uint32_t>(i));
  remember_block(header);
  return true;
}

bool PackWriter::Impl::take_records(ByteSpan bytes, uint64_t offset, uint32_t samples) {
  uint64_t at = kPackHeader;
  for (uint32_t i = 0; i < samples; ++i) {
    while (at + 8 <= bytes.size() && load_little<uint64_t>(bytes, at) == 0) at += 8;  // up to the next record
    if (at + 8 > bytes.size()) return false;
    const auto size = load_little<uint64_t>(bytes, at);
    if (size < kPackRecordHead || size > bytes.size() - at) return false;
    append_little(table_, offset + at);
    append_little(table_, size);
    at = round_up(at + size, 8);
  }
  return true;
}

PackWriter::PackWriter(const std::string& path, PackWriterOptions options)
    : impl_(std::make_unique<Impl>(path, options)) {}
PackWriter::~PackWriter() = default;

int64_t PackWriter::size() const {
  return impl_->size();
}

uint64_t PackWriter::bytes() const {
  return impl_->bytes();
}

void PackWriter::add(std::string_view key, std::span<const PackValue> values) {
  impl_->add(key, values);
}

void PackWriter::close() {
  impl_->close();
}

}  // namespace bellows::io
