#include "bellows/export/artifact_file.h"

#include <c10/util/Exception.h>

#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "bellows/core/round_up.h"
#include "bellows/io/hash.h"

namespace bellows::export_detail {

namespace {

using Json = nlohmann::json;

constexpr std::string_view magic = "BLWPROGR";
constexpr uint64_t layout_version = 1, alignment = 64;
constexpr size_t digits = 16, front_bytes = magic.size() + 3 * sizeof(uint64_t) + digits;

std::string checksum_of(io::ByteSpan bytes) {
  return io::hash_hex("xxh3_64", bytes);
}

/// Returns: the header, and the size of the file
std::pair<std::string, uint64_t> header_of(const std::string& content, const std::vector<ArtifactSection>& sections) {
  const auto with_offsets_from = [&](uint64_t first) {
    Json rows = Json::array();
    uint64_t offset = first;
    for (const ArtifactSection& section : sections) {
      rows.push_back({section.kind, section.name, offset, section.bytes.size(), section.checksum});
      offset = round_up(offset + section.bytes.size(), alignment);
    }
    return std::pair(Json{{"sections", rows}, {"content", Json::parse(content)}}.dump(), offset);
  };
  // The offsets are part of the header, so they depend on its size. A larger first offset only needs more digits.
  uint64_t first = alignment;
  for (;;) {
    auto made = with_offsets_from(first);
    const uint64_t needed = round_up(front_bytes + made.first.size(), alignment);
    if (needed <= first) return made;
    first = needed;
  }
}

void pad(AtomicFile& file) {
  const std::string zeros(round_up(file.offset(), alignment) - file.offset(), '\0');
  file.write(zeros);
}

/// Returns: a section of the header, whose bytes are inside the file
ArtifactSection section_of(const Json& row, io::ByteSpan file) {
  const auto offset = row.at(2).get<uint64_t>(), size = row.at(3).get<uint64_t>();
  TORCH_CHECK_VALUE(offset % alignment == 0 && offset <= file.size() && size <= file.size() - offset, "section ",
                    row.at(1), " is not inside the file");
  return {.kind = row.at(0), .name = row.at(1), .bytes = file.subspan(offset, size), .checksum = row.at(4)};
}

}  // namespace

void write_artifact(const std::string& path, const std::string& content, std::vector<ArtifactSection> sections) {
  std::set<std::pair<std::string, std::string>> names;
  for (ArtifactSection& section : sections) {
    TORCH_CHECK_VALUE(names.emplace(section.kind, section.name).second, "export: there are two sections named ",
                      section.kind, " ", section.name, ".");
    section.checksum = checksum_of(section.bytes);
  }
  const auto [header, size] = header_of(content, sections);
  std::string front(magic);
  io::append_little(front, layout_version);
  io::append_little(front, size);
  io::append_little(front, static_cast<uint64_t>(header.size()));
  front += checksum_of(io::as_bytes(header));
  AtomicFile file(path);
  file.write(front);
  file.write(header);
  pad(file);
  for (const ArtifactSection& section : sections) {
    file.write(section.bytes);
    pad(file);
  }
  file.commit();
}

ArtifactFile::ArtifactFile(const std::string& path) : file_(path) {
  const io::ByteSpan bytes = file_.bytes();
  const std::string_view text = io::as_text(bytes);
  TORCH_CHECK_VALUE(text.starts_with(magic), "cannot load ", path,
                    ": expected a program that `bellows export --format "
                    "bellows` wrote, found ",
                    io::describe_content(bytes), ".");
  TORCH_CHECK_VALUE(bytes.size() >= front_bytes, "cannot load ", path, ": the file is truncated after ", bytes.size(),
                    " bytes.");
  const auto number = [&](size_t i) { return io::load_little<uint64_t>(bytes, magic.size() + i * sizeof(uint64_t)); };
  TORCH_CHECK_VALUE(number(0) == layout_version, "cannot load ", path, ": expected version ", layout_version,
                    " of the file format, found ", number(0), ". Export the model again, or update Bellows.");
  TORCH_CHECK_VALUE(number(1) == bytes.size(), "cannot load ", path, ": expected ", number(1), " bytes, found ",
                    bytes.size(), ". The file is truncated or damaged.");
  TORCH_CHECK_VALUE(number(2) <= bytes.size() - front_bytes, "cannot load ", path,
                    ": the header is not inside the file. "
                    "The file is damaged.");
  const std::string_view header = text.substr(front_bytes, number(2));
  TORCH_CHECK_VALUE(checksum_of(io::as_bytes(header)) == text.substr(front_bytes - digits, digits), "cannot load ",
                    path, ": the checksum of the header does not match. The file is damaged.");
  try {
    const Json json = Json::parse(header);
    content_ = json.at("content").dump();
    for (const Json& row : json.at("sections")) sections_.push_back(section_of(row, bytes));
  } catch (const std::exception& error) {
    TORCH_CHECK_VALUE(false, "cannot load ", path, ": the header is damaged: ", error.what());
  }
}

void ArtifactFile::check(const ArtifactSection& section) const {
  file_.check_size();
  TORCH_CHECK_VALUE(checksum_of(section.bytes) == section.checksum, "cannot load ", path(), ": the checksum of ",
                    section.kind, " ", section.name, " does not match. The file is damaged.");
}

}  // namespace bellows::export_detail
