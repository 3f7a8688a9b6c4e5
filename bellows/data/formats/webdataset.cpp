#include "bellows/data/formats/webdataset.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <future>
#include <optional>
#include <unordered_map>

#include "bellows/core/error.h"
#include "bellows/core/progress.h"
#include "bellows/core/text.h"
#include "bellows/data/formats/read_error_impl.h"
#include "bellows/data/formats/tar_shards.h"
#include "bellows/data/formats/touch_impl.h"
#include "bellows/system/thread.h"

namespace bellows::data {

namespace {

constexpr size_t shards_at_a_time = 4;  // that are fetched while their indexes are made

class WebDatasetSource final : public Source {
 public:
  using Source::read;

  explicit WebDatasetSource(const std::vector<std::string>& shards) : shards_(shards) {
    const ShardFiles& files = shards_.files();
    std::optional<Progress> progress;
    for (size_t first = 0; first < files.size();) {
      const size_t count = files.is_remote(first) ? std::min(shards_at_a_time, files.size() - first) : 1;
      if (files.is_remote(first) && !progress)
        progress.emplace("looking at shards", static_cast<int64_t>(files.size()), "shards");
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
    sample.clear();
    sample.id = index;
    sample.key = std::string_view(keys_).substr(entry.key, entry.key_bytes);
    sample.file = shards_.files().name(entry.shard);
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
    const TarShards::View view = shards_.view(samples_[at].shard);  // fetches, unpacks
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
    uint32_t suffix;  // in suffixes_
  };
  struct Entry {
    uint64_t key;    // where it starts in keys_
    uint64_t first;  // in members_, up to the next entry's first
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
  /// The suffix is as it was written: only its case may differ.
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
                      "). A key ends at the first dot of the base name: number the samples before it.");
    TORCH_CHECK_VALUE(member.size <= UINT32_MAX, "open_webdataset: ", member.name, " at byte ", member.offset, " of ",
                      path, " has ", member.size, " bytes; expected less than 4 GiB.");
    for (size_t i = samples_.back().first; i < members_.size(); ++i) {
      TORCH_CHECK_VALUE(members_[i].suffix != suffix, "open_webdataset: sample \"", last_key(),
                        "\" has two members \".", suffixes_[suffix], "\", at bytes ", members_[i].offset, " and ",
                        member.offset, " of ", path, ". Give each sample a key of its own.");
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
  std::unordered_map<std::string, uint32_t> suffix_numbers_;  // few as a rule
  std::vector<std::string_view> suffixes_;                    // its keys by number
  std::string keys_;                                          // of all samples, one behind the other
  std::vector<Member> members_;
  std::vector<Entry> samples_;
};

}  // namespace

SourcePtr open_webdataset(const std::vector<std::string>& shards) {
  return std::make_shared<WebDatasetSource>(shards);
}

}  // namespace bellows::data
