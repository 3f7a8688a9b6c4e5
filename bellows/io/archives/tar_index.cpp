#include "bellows/io/archives/tar_index.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <charconv>
#include <optional>

#include "bellows/core/round_up.h"
#include "bellows/io/archives/tar.h"
#include "bellows/io/crc32.h"

namespace bellows::io {

namespace {

constexpr uint64_t tar_block = 512;
constexpr size_t most_members = size_t{1} << 24;
constexpr uint64_t most_ustar_bytes = uint64_t{1} << 33;
constexpr std::string_view index_magic = "BWTARIX1";
constexpr size_t index_header_bytes = 8 + 4 * 8, index_row_bytes = 8 + 8 + 4;

bool has_dots(std::string_view name) {
  for (size_t begin = 0; begin <= name.size();) {
    const size_t end = std::min(name.find('/', begin), name.size());
    if (name.substr(begin, end - begin) == "..") return true;
    begin = end + 1;
  }
  return false;
}

bool equal_but_for_case(std::string_view a, std::string_view b) {
  const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; };
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [&](char x, char y) { return lower(x) == lower(y); });
}

bool lies_inside(const TarMember& member, uint64_t archive_bytes) {
  return member.offset >= tar_block && member.offset % tar_block == 0 && member.offset <= archive_bytes &&
         member.size <= archive_bytes - member.offset;
}

/// Splits a line into words.
class IndexLine {
 public:
  IndexLine(std::string_view text, size_t number, std::string_view where)
      : rest_(text), number_(number), where_(where) {}

  /// Returns "" at the end.
  std::string_view word() {
    rest_.remove_prefix(std::min(rest_.find_first_not_of(" \t\r"), rest_.size()));
    const std::string_view found = rest_.substr(0, rest_.find_first_of(" \t\r"));
    rest_.remove_prefix(found.size());
    return found;
  }
  uint64_t number(const char* what) {
    const std::string_view text = word();
    uint64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    check(error == std::errc() && end == text.data() + text.size() && !text.empty(), what, text);
    return value;
  }
  void check(bool fits, const char* expected, std::string_view found) const {
    TORCH_CHECK_VALUE(fits, where_, ": line ", number_, " of an index for DALI: expected ", expected, ", found ",
                      found.empty() ? "the end of the line" : printable(found), ".");
  }

 private:
  std::string_view rest_;
  size_t number_;
  std::string_view where_;
};

void parse_sample_line(IndexLine line, bool with_names, std::vector<TarMember>& members) {
  std::string_view suffix = line.word();
  line.check(!suffix.empty(), "a sample's members", suffix);
  for (; !suffix.empty(); suffix = line.word()) {
    TarMember& member = members.emplace_back();
    member.offset = line.number("an offset");
    line.check(member.offset % tar_block == 0, "an offset that is a multiple of 512", std::to_string(member.offset));
    member.size = line.number("a size");
    if (!with_names) continue;
    const std::string_view name = line.word();
    line.check(name.ends_with(suffix), "a name that ends with its suffix", name);
    member.name = name;
  }
}

}  // namespace

TarIndex make_tar_index(ByteSpan archive, const std::string& where) {
  TarReader reader(archive, where);
  TarIndex index{.archive_bytes = archive.size()};
  while (std::optional<TarEntry> entry = reader.next()) {
    TORCH_CHECK_VALUE(!has_dots(entry->name), where, ": the name ", printable(entry->name, 200), " at byte ",
                      entry->offset,
                      " contains \"..\", which leads out of the archive. Such archives are not supported.");
    TORCH_CHECK_VALUE(index.members.size() < most_members, where, ": more than ", most_members,
                      " members. Split the archive into several shards.");
    index.members.push_back({std::move(entry->name), entry->offset, entry->data.size()});
  }
  index.members.shrink_to_fit();
  return index;
}

// Format of the file: magic; u64 length of the version text, archive_bytes, number of members, length of all names; the
// version text; per member: u64 offset, u64 size, u32 length of its name; the names; u32 CRC-32C of all previous bytes.
std::string encode_tar_index(const TarIndex& index) {
  std::string file(index_magic), names;
  for (const TarMember& member : index.members) names += member.name;
  for (const uint64_t number :
       {uint64_t{index.version.size()}, index.archive_bytes, uint64_t{index.members.size()}, uint64_t{names.size()}})
    append_little(file, number);
  file += index.version;
  for (const TarMember& member : index.members) {
    append_little(file, member.offset);
    append_little(file, member.size);
    append_little(file, static_cast<uint32_t>(member.name.size()));
  }
  file += names;
  append_little(file, crc32c(as_bytes(file)));
  return file;
}

TarIndex decode_tar_index(ByteSpan file, std::string_view where) {
  TORCH_CHECK_VALUE(as_text(file).starts_with(index_magic), where, ": expected an index of a tar archive, found ",
                    describe_content(file), ".");
  const auto check = [&](bool fits) { TORCH_CHECK_VALUE(fits, where, ": the index is damaged."); };
  check(file.size() >= index_header_bytes + 4);
  const ByteSpan body = file.first(file.size() - 4);
  check(crc32c(body) == load_little<uint32_t>(file, body.size()));
  const auto header = [&](size_t i) { return load_little<uint64_t>(file, 8 + 8 * i); };
  const uint64_t version_bytes = header(0), count = header(2), name_bytes = header(3);
  uint64_t rest = body.size() - index_header_bytes;
  check(version_bytes <= rest && name_bytes <= rest - version_bytes && count <= rest / index_row_bytes);
  check(rest == version_bytes + name_bytes + count * index_row_bytes);
  TarIndex index{.archive_bytes = header(1)};
  index.version = as_text(body.subspan(index_header_bytes, version_bytes));
  std::string_view names = as_text(body.last(name_bytes));
  for (size_t at = index_header_bytes + version_bytes; index.members.size() < count; at += index_row_bytes) {
    const uint32_t length = load_little<uint32_t>(body, at + 16);
    check(length <= names.size());
    index.members.push_back(
        {std::string(names.substr(0, length)), load_little<uint64_t>(body, at), load_little<uint64_t>(body, at + 8)});
    names.remove_prefix(length);
    check(lies_inside(index.members.back(), index.archive_bytes) && !has_dots(index.members.back().name));
  }
  check(names.empty());
  return index;
}

ByteSpan tar_member_data(ByteSpan archive, const TarMember& member, std::string_view index) {
  const auto fail = [&](const std::string& found) {
    TORCH_CHECK_VALUE(false, "the index ", index, " does not match the archive: expected \"", member.name, "\" (",
                      member.size, " bytes) at byte ", member.offset, ", found ", found,
                      ". Delete the index, so that it is created again.");
  };
  if (!lies_inside(member, archive.size())) fail(c10::str("an archive of ", archive.size(), " bytes"));
  const ByteSpan data = archive.subspan(member.offset, member.size);
  if (member.size >= most_ustar_bytes) return data;  // the size is in an earlier header
  const uint64_t padded = round_up(member.size, tar_block);
  const uint64_t begin = member.offset - tar_block;
  const ByteSpan part = archive.subspan(begin, std::min(archive.size() - begin, tar_block + padded));
  std::optional<TarEntry> entry;
  try {
    entry = TarReader(part, "").next();
  } catch (const c10::ValueError&) {
    fail("no tar header before it");
  }
  if (!entry) fail("the end of the archive");
  if (entry->data.size() != member.size) fail(c10::str("a member of ", entry->data.size(), " bytes"));
  // A name that is longer than a header's field is in an earlier header.
  if (member.name.size() <= 100 && !equal_but_for_case(entry->name, member.name)) fail(printable(entry->name));
  return data;
}

std::string dali_index(const std::vector<TarMember>& members) {
  std::string lines;
  std::string_view last_key;
  size_t samples = 0;
  for (const TarMember& member : members) {
    const std::string_view name = member.name;
    const size_t base = name.rfind('/') + 1, dot = name.find('.', base);
    if (dot == std::string_view::npos || dot == base) continue;
    TORCH_CHECK_VALUE(name.find_first_of(" \t\r\n\v\f") == std::string_view::npos && dot + 1 < name.size(),
                      "dali_index: the name ", printable(name, 200),
                      " contains white space or ends after its dot, which DALI's index does not support.");
    const std::string_view key = name.substr(0, dot);
    const bool is_new = samples == 0 || key != last_key;
    if (is_new) ++samples;
    lines += samples == 1 && is_new ? "" : is_new ? "\n" : " ";
    lines += c10::str(name.substr(dot + 1), " ", member.offset, " ", member.size, " ", name);
    last_key = key;
  }
  TORCH_CHECK_VALUE(samples > 0, "dali_index: expected at least one member with a suffix, found none.");
  return c10::str("v1.2 ", samples, "\n", lines, "\n");
}

std::vector<TarMember> parse_dali_index(std::string_view text, std::string_view where) {
  const auto take_line = [&](size_t number) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    return IndexLine(line, number, where);
  };
  IndexLine first = take_line(1);
  const std::string_view version = first.word();
  first.check(version == "v1.1" || version == "v1.2", "\"v1.1\" or \"v1.2\"", version);
  const uint64_t samples = first.number("the number of samples");
  first.check(samples > 0, "at least one sample", "0");
  std::vector<TarMember> members;
  for (size_t line = 2; line - 2 < samples; ++line) {
    TORCH_CHECK_VALUE(!text.empty(), where, ": expected ", samples, " samples, found ", line - 2,
                      ": the index is truncated.");
    parse_sample_line(take_line(line), version == "v1.2", members);
  }
  TORCH_CHECK_VALUE(text.find_first_not_of(" \t\r\n") == std::string_view::npos, where, ": expected ", samples,
                    " samples, found more.");
  return members;
}

}  // namespace bellows::io
