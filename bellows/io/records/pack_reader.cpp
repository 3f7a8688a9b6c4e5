#include <c10/util/Exception.h>

#include <algorithm>
#include <atomic>
#include <bit>

#include "bellows/io/crc32.h"
#include "bellows/io/records/pack_layout.h"

namespace bellows::io {

/// An entry of the block table.
struct PackReader::Block {
  uint64_t number = 0, offset = 0, bytes = 0, first_sample = 0;
  uint32_t samples = 0, crc = 0;
};

/// The blocks that were verified. If two threads verify the same block at the same time, the results are equal.
struct PackReader::Verified {
  explicit Verified(uint64_t blocks) : good(std::make_unique<std::atomic<bool>[]>(blocks)) {}
  std::unique_ptr<std::atomic<bool>[]> good;
};

PackReader::PackReader(const std::string& path, PackVerify verify)
    : PackReader(std::make_shared<const MappedFile>(path), verify) {}

PackReader::PackReader(std::shared_ptr<const MappedFile> file, PackVerify verify)
    : file_(std::move(file)), bytes_(file_->bytes()), where_(file_->path()), verify_(verify) {
  open();
}

PackReader::PackReader(ByteSpan bytes, std::string where, PackVerify verify)
    : bytes_(bytes), where_(std::move(where)), verify_(verify) {
  open();
}

void PackReader::open() {
  const std::string_view text = as_text(bytes_);
  TORCH_CHECK_VALUE(text.starts_with(kPackMagic), where_, ": expected a pack, found ", describe_content(bytes_), ".");
  TORCH_CHECK_VALUE(bytes_.size() >= kPackHeader + kPackFooter, where_, ": truncated: a pack has at least ",
                    kPackHeader + kPackFooter, " bytes, but this file has ", bytes_.size(), ".");
  const auto version = load_little<uint32_t>(bytes_, 8);
  TORCH_CHECK_VALUE(version <= kPackVersion, where_, ": the pack has version ", version,
                    ", but this program reads versions up to ", kPackVersion,
                    ". Update Bellows, or write the pack again.");
  TORCH_CHECK_VALUE(version == kPackVersion, where_, ": expected version ", kPackVersion,
                    " at byte 8, found 0: the pack is damaged.");
  read_footer();
  check_blocks();
  verified_ = std::make_shared<Verified>(blocks_);
}

void PackReader::read_footer() {
  const uint64_t at = bytes_.size() - kPackFooter;
  const ByteSpan footer = bytes_.subspan(at);
  TORCH_CHECK_VALUE(as_text(footer).ends_with(kPackEnd), where_, ": expected a pack's footer at byte ", at,
                    ", found other content: the pack was truncated, or other data was appended to it.");
  TORCH_CHECK_VALUE(load_little<uint32_t>(footer, 52) == crc32c(footer.first(52)), where_, ": the footer at byte ", at,
                    " is damaged: its checksum does not match.");
  index_offset_ = load_little<uint64_t>(footer, 0);
  const auto index_bytes = load_little<uint64_t>(footer, 8);
  samples_ = load_little<uint64_t>(footer, 16);
  blocks_ = load_little<uint64_t>(footer, 24);
  page_bytes_ = load_little<uint64_t>(footer, 40);
  TORCH_CHECK_VALUE(index_offset_ <= at && index_bytes == at - index_offset_, where_, ": the footer at byte ", at,
                    " places an index of ", index_bytes, " bytes at byte ", index_offset_,
                    ", which does not end where the footer begins: the pack is truncated or damaged.");
  TORCH_CHECK_VALUE(std::has_single_bit(page_bytes_) && page_bytes_ >= kMinPackPage && page_bytes_ <= kMaxPackPage,
                    where_, ": expected a page size from ", kMinPackPage, " to ", kMaxPackPage,
                    " in the footer at byte ", at, ", found ", page_bytes_, ".");
  TORCH_CHECK_VALUE(samples_ <= index_bytes / kPackSampleEntry && blocks_ > 0 &&
                        blocks_ <= (index_bytes - samples_ * kPackSampleEntry) / kPackBlockEntry,
                    where_, ": the footer at byte ", at, " counts ", samples_, " samples and ", blocks_,
                    " blocks, too many or too few for an index of ", index_bytes, " bytes.");
  const ByteSpan index = bytes_.subspan(index_offset_, index_bytes);
  TORCH_CHECK_VALUE(load_little<uint32_t>(footer, 36) == crc32c(index), where_, ": the index at byte ", index_offset_,
                    " is damaged: its checksum does not match.");
  sample_table_ = index.first(samples_ * kPackSampleEntry);
  block_table_ = index.subspan(sample_table_.size(), blocks_ * kPackBlockEntry);
  const ByteSpan definitions = index.subspan(sample_table_.size() + block_table_.size());
  parse_pack_fields(definitions, at - definitions.size(), where_, fields_);
  TORCH_CHECK_VALUE(fields_.size() == load_little<uint32_t>(footer, 32), where_, ": the footer at byte ", at,
                    " counts ", load_little<uint32_t>(footer, 32), " fields, but the index has ", fields_.size(), ".");
}

PackReader::Block PackReader::block(uint64_t number) const {
  const ByteSpan entry = block_table_.subspan(number * kPackBlockEntry, kPackBlockEntry);
  return {.number = number,
          .offset = load_little<uint64_t>(entry),
          .bytes = load_little<uint64_t>(entry, 8),
          .first_sample = load_little<uint64_t>(entry, 16),
          .samples = load_little<uint32_t>(entry, 24),
          .crc = load_little<uint32_t>(entry, 28)};
}

/// Blocks must follow each other without a gap up to the index, each on its own pages, and so must the samples in them.
void PackReader::check_blocks() {
  uint64_t offset = 0, samples = 0;
  for (uint64_t k = 0; k < blocks_; ++k) {
    const Block here = block(k);
    const bool fits = here.offset == offset && here.bytes >= kPackHeader && here.offset <= index_offset_ &&
                      here.bytes <= index_offset_ - here.offset && here.first_sample == samples &&
                      here.samples <= samples_ - samples;
    TORCH_CHECK_VALUE(fits, where_, ": the index at byte ", index_offset_, " places block ", k, " with ", here.bytes,
                      " bytes at byte ", here.offset, " and its ", here.samples, " samples from ", here.first_sample,
                      " on; expected byte ", offset, " and sample ", samples, ".");
    uint64_t end = here.offset + kPackHeader;
    check_samples(here, end);
    offset += round_up(here.bytes, k + 1 < blocks_ ? page_bytes_ : kPackAlignment);
    samples += here.samples;
  }
  TORCH_CHECK_VALUE(offset == index_offset_ && samples == samples_, where_, ": the index at byte ", index_offset_,
                    " describes ", samples, " samples in ", offset, " bytes, expected ", samples_, " in ",
                    index_offset_, ".");
}

/// Params: end – end of the previous sample in the block; set to the end of the block's last sample
void PackReader::check_samples(const Block& block, uint64_t& end) const {
  for (uint64_t i = block.first_sample; i < block.first_sample + block.samples; ++i) {
    const auto offset = load_little<uint64_t>(sample_table_, i * kPackSampleEntry),
               bytes = load_little<uint64_t>(sample_table_, i * kPackSampleEntry + 8),
               limit = block.offset + block.bytes;
    TORCH_CHECK_VALUE(offset >= end && offset <= limit && bytes <= limit - offset && offset % 8 == 0, where_,
                      ": the index at byte ", index_offset_, " places sample ", i, " with ", bytes, " bytes at byte ",
                      offset, ", outside its place in block ", block.number, ", bytes ", end, " to ", limit, ".");
    end = offset + bytes;
  }
}

/// The block that contains the byte.
uint64_t PackReader::block_at(uint64_t offset) const {
  uint64_t first = 0, last = blocks_;
  while (last - first > 1) {
    const uint64_t middle = first + (last - first) / 2;
    (load_little<uint64_t>(block_table_, middle * kPackBlockEntry) <= offset ? first : last) = middle;
  }
  return first;
}

void PackReader::verify_block(uint64_t number, ByteSpan content) const {
  std::atomic<bool>& good = verified_->good[number];
  if (verify_ == PackVerify::first_use && good.load(std::memory_order_relaxed)) return;
  const Block here = block(number);
  const uint32_t crc = crc32c(content.subspan(here.offset + kPackCrcStart, here.bytes - kPackCrcStart));
  TORCH_CHECK_VALUE(crc == here.crc, where_, ": block ", number, " (page ", here.offset / page_bytes_, ", bytes ",
                    here.offset, " to ", here.offset + here.bytes, ", samples ", here.first_sample, " to ",
                    here.first_sample + here.samples, ") is damaged: its checksum is ", crc, ", expected ", here.crc,
                    ". Copy or write the pack again.");
  good.store(true, std::memory_order_relaxed);
}

PackRecord PackReader::record(int64_t index) const {
  if (file_) file_->check_size();
  return record(index, bytes_);
}

PackRecord PackReader::record(int64_t index, ByteSpan content) const {
  TORCH_CHECK_VALUE(index >= 0 && static_cast<uint64_t>(index) < samples_, where_, ": expected a sample from 0 to ",
                    samples_, ", got ", index, ".");
  TORCH_CHECK_VALUE(content.size() == bytes_.size(), where_, ": the file had ", bytes_.size(),
                    " bytes when it was opened, and it now has ", content.size(), ".");
  const uint64_t entry = static_cast<uint64_t>(index) * kPackSampleEntry;
  const auto offset = load_little<uint64_t>(sample_table_, entry),
             size = load_little<uint64_t>(sample_table_, entry + 8);
  if (verify_ != PackVerify::never) verify_block(block_at(offset), content);
  return parse_pack_record(content.subspan(offset, size), offset, fields_, where_);
}

std::vector<int64_t> PackReader::block_starts() const {
  std::vector<int64_t> starts;
  for (uint64_t k = 0; k < blocks_; ++k) {
    const Block here = block(k);
    if (here.samples > 0) starts.push_back(static_cast<int64_t>(here.first_sample));
  }
  return starts;
}

void need_pack_index(PartialFile& file) {
  constexpr uint64_t likely_index = 64 << 10;  // contains the footer, in one request
  const uint64_t size = file.bytes().size();
  file.need(0, kPackHeader);
  file.need(size - std::min(size, likely_index), size);
  if (size < kPackFooter) return;
  file.need(load_little<uint64_t>(file.bytes(), size - kPackFooter), size);
}

}  // namespace bellows::io
