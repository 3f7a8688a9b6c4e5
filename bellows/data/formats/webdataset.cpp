#include "bellows/data/formats/webdataset.h"

#include <c10/util/Exception.h>
#include <c10/util/hash.h>

#include <algorithm>
#include <filesystem>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "bellows/core/error.h"
#include "bellows/core/log.h"
#include "bellows/core/progress.h"
#include "bellows/core/text.h"
#include "bellows/data/formats/read_sample.h"
#include "bellows/data/formats/shard_files.h"
#include "bellows/data/formats/unpacked_files.h"
#include "bellows/io/archives/decompress.h"
#include "bellows/io/archives/tar_index.h"
#include "bellows/system/file.h"
#include "bellows/system/thread.h"

namespace bellows::data {

namespace {

namespace fs = std::filesystem;

constexpr uint64_t worth_keeping_bytes = uint64_t{64} << 20;

/// The path of an archive's index from wds2idx: the archive's name up to the first dot, and `.idx`.
std::string dali_path(const std::string& shard) {
  const size_t base = shard.rfind('/') + 1;
  return shard.substr(0, shard.find('.', base + 1)) + ".idx";
}

/// True if the members cover the archive from its start without a gap, so that no member is missing.
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

/// Tar archives, plain or compressed, local or remote, with an index of each.
///
/// An index is created by reading all headers. If the archive is remote, compressed or at least 64 MiB, its index is
/// stored in the cache's folder. It is used as long as the archive's size and time (or ETag) are unchanged. DALI's
/// index beside a local archive (`train-000.idx`) is used if it omits nothing. Each read of a member checks either
/// index against the header before the member. An index that does not match is not used, and this is logged.
/// Threads: thread-safe; index() for different shards
class TarShards {
 public:
  /// Throws: c10::ValueError if there are no names
  explicit TarShards(std::vector<std::string> names);

  const ShardFiles& files() const { return files_; }
  /// Returns the index of a shard. Call it once for each shard before view().
  /// Throws: c10::ValueError if the shard is missing, corrupt or too large; as ShardFiles::map
  io::TarIndex index(size_t shard);

  /// A shard's bytes and their owner.
  struct View {
    io::ByteSpan bytes;
    std::shared_ptr<const void> owner;
  };
  /// Throws: c10::ValueError if the shard was truncated or replaced after its index was created (the caller adds the
  ///         sample and the shard to the message); as ShardFiles::map
  View view(size_t shard) const;
  /// The file of the index, against which members are checked (io::tar_member_data). "": this process created the
  /// index.
  const std::string& index_path(size_t shard) const { return index_paths_[shard]; }

 private:
  bool read_kept(const std::string& path, size_t shard, const std::string& version, io::TarIndex& index) const;
  bool read_dali(const std::string& path, size_t shard, io::TarIndex& index) const;
  void keep(size_t shard, const io::TarIndex& index) const;
  std::string kept_path(size_t shard) const;
  View open_view(size_t shard) const;

  ShardFiles files_;
  mutable UnpackedFiles unpacked_;
  std::vector<uint64_t> archive_bytes_;
  std::vector<std::string> index_paths_;
};

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
  TORCH_CHECK_VALUE(view.bytes.size() == archive_bytes_[shard], "the shard has changed since it was opened. It had ",
                    archive_bytes_[shard], " bytes, and it now has ", view.bytes.size(), ". Open the dataset again.");
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
    log_info("index of ", files_.name(shard), ": ", user_message(error), " The index is recreated.");
    return false;
  }
  if (index.version == version) return true;
  log_info("index of ", files_.name(shard),
           ": the shard has changed since the index was written. The index is recreated.");
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
    log_info(path, " does not match the current content of ", files_.name(shard), ", so the index is not used.");
  } catch (const c10::Error& error) {
    log_info(user_message(error), " The index is not used.");
  }
  return false;
}

void TarShards::keep(size_t shard, const io::TarIndex& index) const {
  const std::string path = kept_path(shard);
  try {
    if (path.empty() || files_.version(shard) != index.version) return;  // the shard changes while it is read
    io::make_cache_folder(fs::path(path).parent_path());
    write_text_file(path, io::encode_tar_index(index));
  } catch (const std::exception& error) {
    log_debug("index of ", files_.name(shard), " cannot be stored: ", user_message(error));
  }
}

constexpr size_t shards_at_a_time = 4;  // fetched at a time while their indexes are created

class WebDatasetSource final : public Source {
 public:
  using Source::read;

  explicit WebDatasetSource(const std::vector<std::string>& shards) : shards_(shards) {
    const ShardFiles& files = shards_.files();
    std::optional<Progress> progress;
    for (size_t first = 0; first < files.size();) {
      const size_t count = files.is_remote(first) ? std::min(shards_at_a_time, files.size() - first) : 1;
      if (files.is_remote(first) && !progress)
        progress.emplace("examining shards", static_cast<int64_t>(files.size()), "shards");
      add_shards(first, count);
      if (progress) progress->advance(static_cast<int64_t>(count));
      first += count;
    }
    samples_.shrink_to_fit();
    members_.shrink_to_fit();
    keys_.shrink_to_fit();
  }

  int64_t size() const override { return static_cast<int64_t>(samples_.size()); }

  void read(int64_t index, Sample& sample) const override {
    const auto at = static_cast<size_t>(index);
    const Entry& entry = samples_[at];
    const size_t end = end_of(at);
    begin_sample(shards_.files(), entry.shard, index, sample);
    sample.key = std::string_view(keys_).substr(entry.key, entry.key_bytes);
    for (size_t i = entry.first; i < end; ++i) {
      Field& field = sample.fields.emplace_back();
      field.name = suffixes_[members_[i].suffix];
      field.offset = members_[i].offset;
    }
    read_naming([&] { return sample.where(); },
                [&] { parse_content(shards_.files(), entry.shard, [&] { fill(entry, sample); }); });
  }

  std::string describe() const override { return shards_.files().describe(); }
  bool stored() const override { return true; }

  bool prefetch(int64_t index) const override {
    const auto at = static_cast<size_t>(index);
    const TarShards::View view = shards_.view(samples_[at].shard);  // fetches and decompresses
    const Member& first = members_[samples_[at].first];
    const Member& last = members_[end_of(at) - 1];
    touch_pages(view.bytes, first.offset, last.offset + last.size);
    return true;
  }

  std::vector<int64_t> block_starts() const override {
    std::vector<int64_t> starts;
    for (size_t i = 0; i < samples_.size(); ++i) {
      if (i == 0 || samples_[i].shard != samples_[i - 1].shard) starts.push_back(static_cast<int64_t>(i));
    }
    return starts;
  }

 private:
  struct Member {
    uint64_t offset;
    uint32_t size;
    uint32_t suffix;  // index in suffixes_
  };
  struct Entry {
    uint64_t key;    // start in keys_
    uint64_t first;  // index in members_; ends at the next entry's first
    uint32_t key_bytes;
    uint32_t shard;
  };

  size_t end_of(size_t sample) const {
    return sample + 1 < samples_.size() ? samples_[sample + 1].first : members_.size();
  }

  void fill(const Entry& entry, Sample& sample) const {
    TarShards::View view = shards_.view(entry.shard);
    const Member* member = &members_[entry.first];
    const std::string& index = shards_.index_path(entry.shard);
    for (Field& field : sample.fields) {
      field.bytes = index.empty() ? view.bytes.subspan(member->offset, member->size)
                                  : io::tar_member_data(view.bytes, member_of(entry, *member), index);
      ++member;
    }
    sample.owner = std::move(view.owner);
  }
  /// The suffix is stored in lower case, so the name may differ in case.
  io::TarMember member_of(const Entry& entry, const Member& member) const {
    return {c10::str(std::string_view(keys_).substr(entry.key, entry.key_bytes), ".", suffixes_[member.suffix]),
            member.offset, member.size};
  }

  void add_shards(size_t first, size_t count) {
    std::vector<std::future<io::TarIndex>> indexes;
    for (size_t i = 1; i < count; ++i)
      indexes.push_back(start_async_or_run([this, shard = first + i] { return shards_.index(shard); }));
    add_shard(first, shards_.index(first));
    for (size_t i = 1; i < count; ++i) add_shard(first + i, indexes[i - 1].get());
  }

  void add_shard(size_t shard, const io::TarIndex& index) {
    bool open = false;  // samples_.back() belongs to this shard
    for (const io::TarMember& member : index.members) {
      std::string_view key, suffix;
      if (!split_member_name(member.name, key, suffix)) continue;
      if (!open || last_key() != key) {
        samples_.push_back(
            {keys_.size(), members_.size(), static_cast<uint32_t>(key.size()), static_cast<uint32_t>(shard)});
        keys_ += key;
      }
      open = true;
      add_member(member, suffix_index(suffix), shards_.files().name(shard));
    }
  }

  std::string_view last_key() const { return std::string_view(keys_).substr(samples_.back().key); }

  void add_member(const io::TarMember& member, uint32_t suffix, const std::string& path) {
    constexpr size_t most_members = 1024;
    TORCH_CHECK_VALUE(members_.size() - samples_.back().first < most_members, "open_webdataset: sample \"", last_key(),
                      "\" has more than ", most_members, " members (byte ", member.offset, " of ", path,
                      "). The key of a sample ends at the first dot of the base name, so give each sample a different "
                      "name before that dot.");
    TORCH_CHECK_VALUE(member.size <= UINT32_MAX, "open_webdataset: ", member.name, " at byte ", member.offset, " of ",
                      path, " has ", member.size, " bytes, but the limit is 4 GiB.");
    for (size_t i = samples_.back().first; i < members_.size(); ++i) {
      TORCH_CHECK_VALUE(members_[i].suffix != suffix, "open_webdataset: sample \"", last_key(),
                        "\" has two members \".", suffixes_[suffix], "\", at bytes ", members_[i].offset, " and ",
                        member.offset, " of ", path, ". Give each sample a different key.");
    }
    members_.push_back({member.offset, static_cast<uint32_t>(member.size), suffix});
  }

  uint32_t suffix_index(std::string_view suffix) {
    const auto [known, is_new] =
        suffix_numbers_.try_emplace(lower_case(suffix), static_cast<uint32_t>(suffixes_.size()));
    if (is_new) suffixes_.push_back(known->first);
    return known->second;
  }

  TarShards shards_;
  std::unordered_map<std::string, uint32_t> suffix_numbers_;  // usually few
  std::vector<std::string_view> suffixes_;                    // the keys of suffix_numbers_, by number
  std::string keys_;                                          // of all samples, concatenated
  std::vector<Member> members_;
  std::vector<Entry> samples_;
};

}  // namespace

SourcePtr open_webdataset(const std::vector<std::string>& shards) {
  return std::make_shared<WebDatasetSource>(shards);
}

bool split_member_name(std::string_view name, std::string_view& key, std::string_view& suffix) {
  const size_t slash = name.rfind('/');
  const size_t base = slash == std::string_view::npos ? 0 : slash + 1;
  const size_t dot = name.find('.', base);
  if (dot == std::string_view::npos || dot == base) return false;  // no suffix, or no base name
  const std::string_view top = name.substr(0, name.find('/'));
  if (top.size() >= 4 && top.starts_with("__") && top.ends_with("__")) return false;  // metadata
  key = name.substr(0, dot);
  suffix = name.substr(dot + 1);
  return true;
}

}  // namespace bellows::data
