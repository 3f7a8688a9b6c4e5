#include "bellows/data/formats/tar_shards.h"

#include <c10/util/Exception.h>
#include <c10/util/hash.h>

#include <filesystem>

#include "bellows/core/error.h"
#include "bellows/core/log.h"
#include "bellows/data/formats/read_error_impl.h"
#include "bellows/io/archives/decompress.h"

namespace bellows::data {

namespace {

namespace fs = std::filesystem;

constexpr uint64_t worth_keeping_bytes = uint64_t{64} << 20;

/// Where wds2idx puts the index of an archive: its name up to the first dot, and `.idx`.
std::string dali_path(const std::string& shard) {
  const size_t base = shard.rfind('/') + 1;
  return shard.substr(0, shard.find('.', base + 1)) + ".idx";
}

/// Whether the members follow one another from the start of the archive without a gap, so that none is left out.
bool covers(const std::vector<io::TarMember>& members, io::ByteSpan archive) {
  uint64_t end = 0;
  for (const io::TarMember& member : members) {
    if (member.name.empty() || member.offset != end + 512 || member.offset > archive.size() ||
        member.size > archive.size() - member.offset)
      return false;
    end = member.offset + (member.size + 511) / 512 * 512;
  }
  return end <= archive.size() && archive.size() - end >= 512 &&
         io::as_text(archive.subspan(end, 512)).find_first_not_of('\0') == std::string_view::npos;
}

}  // namespace

TarShards::TarShards(std::vector<std::string> names)
    : files_(std::move(names)), archive_bytes_(files_.size()), index_paths_(files_.size()) {}

TarShards::View TarShards::open_view(size_t shard) const {
  const auto as_view = [](auto content) {
    const io::ByteSpan bytes = *content;
    return View{bytes, std::move(content)};
  };
  if (auto kept = unpacked_.find(shard)) return as_view(std::move(kept));
  auto file = files_.map(shard);
  if (io::detect_compression(file->bytes()) != io::Compression::none) {
    return as_view(unpacked_.get(shard, [&] {
      return io::decompress(file->bytes(), files_.name(shard), io::most_unpacked_bytes(file->bytes().size()));
    }));
  }
  file->check_size();
  const io::ByteSpan bytes = file->bytes();
  return {bytes, std::move(file)};
}

TarShards::View TarShards::view(size_t shard) const {
  View view = open_view(shard);
  TORCH_CHECK_VALUE(view.bytes.size() == archive_bytes_[shard], "the shard was changed since it was opened: it had ",
                    archive_bytes_[shard], " bytes of archive, now it has ", view.bytes.size(),
                    ". Open the data set again.");
  return view;
}

io::TarIndex TarShards::index(size_t shard) {
  const std::string version = files_.version(shard);
  io::TarIndex index;
  if (const std::string kept = kept_path(shard); read_kept(kept, shard, version, index)) {
    index_paths_[shard] = kept;
  } else if (const std::string dali = dali_path(files_.name(shard)); read_dali(dali, shard, index)) {
    index_paths_[shard] = dali;
  } else {
    View view;
    parse_content(files_, shard, [&] {
      view = open_view(shard);
      TORCH_CHECK_VALUE(!view.bytes.empty(), files_.name(shard), ": expected a tar archive, found an empty file.");
      index = io::make_tar_index(view.bytes, files_.name(shard));
    });
    index.version = version;
    const bool packed = view.bytes.data() != files_.map(shard)->bytes().data();
    if (files_.is_remote(shard) || packed || view.bytes.size() >= worth_keeping_bytes) keep(shard, index);
  }
  archive_bytes_[shard] = index.archive_bytes;
  return index;
}

std::string TarShards::kept_path(size_t shard) const {
  if (files_.cache_folder().empty()) return "";
  std::error_code ignored;
  const std::string& name = files_.name(shard);
  const std::string place = files_.is_remote(shard) ? files_.version(shard) : fs::absolute(name, ignored).string();
  return files_.cache_folder() + "/index/" + c10::sha1(place).str() + ".tarindex";
}

bool TarShards::read_kept(const std::string& path, size_t shard, const std::string& version,
                          io::TarIndex& index) const {
  std::error_code ignored;
  if (path.empty() || !fs::exists(path, ignored)) return false;
  try {
    const MappedFile file(path);
    index = io::decode_tar_index(file.bytes(), path);
  } catch (const c10::Error& error) {
    log_info("index of ", files_.name(shard), ": ", user_message(error), " It is made anew.");
    return false;
  }
  if (index.version == version) return true;
  log_info("index of ", files_.name(shard), ": the shard has changed since it was made. It is made anew.");
  return false;
}

bool TarShards::read_dali(const std::string& path, size_t shard, io::TarIndex& index) const {
  if (files_.is_remote(shard)) return false;
  std::error_code missing, ignored;
  const auto time = fs::last_write_time(path, missing);
  if (missing) return false;
  try {
    const auto file = files_.map(shard);
    if (io::detect_compression(file->bytes()) != io::Compression::none) return false;
    index.members = io::parse_dali_index(read_text_file(path), path);
    index.archive_bytes = file->bytes().size();
    if (time >= fs::last_write_time(files_.name(shard), ignored) && covers(index.members, file->bytes())) return true;
    log_info(path, " does not describe the whole of ", files_.name(shard), " as it is now, and is not used.");
  } catch (const c10::Error& error) {
    log_info(user_message(error), " The index is not used.");
  }
  return false;
}

void TarShards::keep(size_t shard, const io::TarIndex& index) const {
  const std::string path = kept_path(shard);
  try {
    if (path.empty() || files_.version(shard) != index.version) return;  // it changes while it is read
    fs::create_directories(fs::path(path).parent_path());
    write_text_file(path, io::encode_tar_index(index));
  } catch (const std::exception& error) {
    log_debug("index of ", files_.name(shard), " cannot be kept: ", user_message(error));
  }
}

}  // namespace bellows::data
