#include "bellows/models/exported/archive.h"

#include <c10/util/Exception.h>

#include <algorithm>

namespace bellows::models::exported {

namespace {

bool any_name(const std::vector<io::ZipEntry>& entries, std::string_view part) {
  return std::any_of(entries.begin(), entries.end(),
                     [&](const io::ZipEntry& entry) { return entry.name.find(part) != std::string::npos; });
}

}  // namespace

ExportedArchive::ExportedArchive(const std::string& path) : file_(path), zip_(file_.bytes(), path) {
  TORCH_CHECK_VALUE(!zip_.entries().empty(), path,
                    ": expected a program of torch.export.save, found an empty archive.");
  for (const io::ZipEntry& entry : zip_.entries()) zip_.verify(entry);
  const std::string& first = zip_.entries()[0].name;
  root_ = first.substr(0, first.find('/') + 1);
  check_kind();
  TORCH_CHECK_VALUE(text("archive_format") == "pt2" && text("archive_version") == "0", path,
                    ": expected an archive of the format pt2 in version 0, found ",
                    io::printable(text("archive_format")), " in version ", io::printable(text("archive_version")),
                    ". Export the model with PyTorch 2.8 to 2.11.");
  const std::string_view order = text("byteorder");
  TORCH_CHECK_VALUE(order == "little", path, ": expected little-endian weights, found ", io::printable(order), ".");
}

void ExportedArchive::check_kind() const {
  const std::vector<io::ZipEntry>& all = entries();
  TORCH_CHECK_VALUE(!any_name(all, "data/aotinductor/"), path(),
                    ": this package of AOTInductor contains compiled code, which cannot be trained. Save the program "
                    "with torch.export.save.");
  TORCH_CHECK_VALUE(!any_name(all, "serialized_exported_program.json"), path(),
                    ": PyTorch 2.7 or older wrote this program. Export it again with PyTorch 2.8 or newer.");
  TORCH_CHECK_VALUE(has("archive_format") && has("archive_version") && has("byteorder"), path(),
                    ": expected a program of torch.export.save, found ",
                    any_name(all, "constants.pkl") ? "a TorchScript program, whose name must end in .pt"
                    : any_name(all, "data.pkl")    ? "weights of torch.save"
                                                   : "another zip archive",
                    ".");
}

io::ByteSpan ExportedArchive::bytes(const std::string& record) const {
  const io::ZipEntry* entry = zip_.find(root_ + record);
  TORCH_CHECK_VALUE(entry, path(), ": the archive has no record ", io::printable(root_ + record, 200), ".");
  return entry->data;
}

std::vector<std::string> ExportedArchive::programs() const {
  constexpr std::string_view folder = "models/", ending = ".json";
  std::vector<std::string> names;
  for (const io::ZipEntry& entry : zip_.entries()) {
    std::string_view name = entry.name;
    name.remove_prefix(std::min(root_.size(), name.size()));
    if (!name.starts_with(folder) || !name.ends_with(ending) || name.size() <= folder.size() + ending.size()) continue;
    names.emplace_back(name.substr(folder.size(), name.size() - folder.size() - ending.size()));
  }
  return names;
}

}  // namespace bellows::models::exported
