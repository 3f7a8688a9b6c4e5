#include "bellows/data/webdataset.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cctype>

#include "bellows/core/error.h"
#include "bellows/io/tar.h"

namespace bellows::data {

namespace {

class WebDatasetSource final : public Source {
 public:
  using Source::read;

  explicit WebDatasetSource(const std::vector<std::string>& shards) {
    TORCH_CHECK_VALUE(!shards.empty(), "open_webdataset: expected at least one shard, got none.");
    shards_.reserve(shards.size());
    for (const std::string& path : shards) add_shard(path);
    samples_.shrink_to_fit();
    members_.shrink_to_fit();
  }

  int64_t size() const override { return static_cast<int64_t>(samples_.size()); }

  void read(int64_t index, Sample& sample) const override {
    const Entry& entry = samples_[static_cast<size_t>(index)];
    const io::TarReader& shard = shards_[entry.shard];
    const size_t end = static_cast<size_t>(index) + 1 < samples_.size() ? samples_[static_cast<size_t>(index) + 1].first
                                                                        : members_.size();
    sample.clear();
    sample.id = index;
    sample.key = entry.key;
    sample.file = shard.path();
    for (size_t i = entry.first; i < end; ++i) {
      const Member& member = members_[i];
      Field& field = sample.fields.emplace_back();
      field.name = suffixes_[member.suffix];
      field.bytes = {member.data, member.size};
      field.offset = member.offset;
    }
    check_shard(shard, sample);
  }

  std::string describe() const override {
    return c10::str(shards_.size(), shards_.size() == 1 ? " shard (" : " shards (", shards_.front().path(),
                    shards_.size() == 1 ? ")" : ", …)");
  }
  bool stored() const override { return true; }

 private:
  static void check_shard(const io::TarReader& shard, const Sample& sample) {
    try {
      shard.check_size();
    } catch (const c10::Error& error) {
      TORCH_CHECK_VALUE(false, "read: ", sample.where(), ": ", user_message(error));
    }
  }

  struct Member {
    const std::byte* data;
    uint64_t offset;
    uint32_t size;
    uint32_t suffix;  // in suffixes_
  };
  struct Entry {
    std::string key;
    size_t first;  // in members_, up to the next entry's first
    uint32_t shard;
  };

  void add_shard(const std::string& path) {
    io::TarReader& reader = shards_.emplace_back(path);
    const auto shard = static_cast<uint32_t>(shards_.size() - 1);
    bool open = false;  // samples_.back() belongs to this shard
    while (auto member = reader.next()) {
      std::string_view key, suffix;
      if (!split_member_name(member->name, key, suffix)) continue;
      if (!open || samples_.back().key != key) samples_.push_back({std::string(key), members_.size(), shard});
      open = true;
      add_member(*member, suffix_index(suffix), path);
    }
  }

  void add_member(const io::TarEntry& member, uint32_t suffix, const std::string& path) {
    TORCH_CHECK_VALUE(member.data.size() <= UINT32_MAX, "open_webdataset: ", member.name, " at byte ", member.offset,
                      " of ", path, " has ", member.data.size(), " bytes; expected less than 4 GiB.");
    for (size_t i = samples_.back().first; i < members_.size(); ++i) {
      TORCH_CHECK_VALUE(members_[i].suffix != suffix, "open_webdataset: sample \"", samples_.back().key,
                        "\" has two members \".", suffixes_[suffix], "\", at bytes ", members_[i].offset, " and ",
                        member.offset, " of ", path, ". Give each sample a key of its own.");
    }
    members_.push_back({member.data.data(), member.offset, static_cast<uint32_t>(member.data.size()), suffix});
  }

  uint32_t suffix_index(std::string_view suffix) {
    std::string lower(suffix);
    for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    const auto known = std::find(suffixes_.begin(), suffixes_.end(), lower);
    if (known != suffixes_.end()) return static_cast<uint32_t>(known - suffixes_.begin());
    suffixes_.push_back(std::move(lower));
    return static_cast<uint32_t>(suffixes_.size() - 1);
  }

  std::vector<io::TarReader> shards_;  // keep the mappings alive
  std::vector<std::string> suffixes_;  // few, each once
  std::vector<Member> members_;
  std::vector<Entry> samples_;
};

}  // namespace

SourcePtr open_webdataset(const std::vector<std::string>& shards) {
  return std::make_shared<WebDatasetSource>(shards);
}

}  // namespace bellows::data
