#include <c10/util/Exception.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <set>

#include "bellows/core/error.h"
#include "bellows/data/formats/new_folder.h"
#include "bellows/data/formats/webdataset.h"
#include "bellows/io/archives/tar.h"
#include "bellows/io/archives/tar_index.h"
#include "bellows/io/tensors/npy.h"
#include "bellows/system/write_state.h"

namespace bellows::data {

namespace {

constexpr const char* unfinished_suffix = ".unfinished";

/// The parts of a pattern such as "train-%06d.tar".
struct ShardPattern {
  std::string before, after;
  size_t digits = 0;
  bool numbered = false;

  explicit ShardPattern(const std::string& pattern) {
    for (size_t at = 0; at < pattern.size(); ++at) {
      const bool sign = pattern.compare(at, 2, "%%") == 0;
      if (pattern[at] != '%' || sign) {
        (numbered ? after : before) += pattern[at];
        at += sign ? 1 : 0;
        continue;
      }
      const size_t begin = at + 1;
      do ++at;
      while (at < pattern.size() && std::isdigit(static_cast<unsigned char>(pattern[at])));
      const bool fits = at < pattern.size() && pattern[at] == 'd' && at - begin <= 2 && !numbered &&
                        (at == begin || pattern[begin] == '0');
      TORCH_CHECK_VALUE(fits, "webdataset_sink: expected one number like %06d in the pattern, and %% for a percent ",
                        "sign, got ", pattern, ".");
      digits = at > begin ? std::stoul(pattern.substr(begin, at - begin)) : 0;
      numbered = true;
    }
  }

  std::string name(int64_t shard) const {
    if (!numbered) return before;
    std::string number = std::to_string(shard);
    if (number.size() < digits) number.insert(0, digits - number.size(), '0');
    return before + number + after;
  }
};

/// A member of the sample being written.
struct SinkMember {
  std::string suffix;
  std::string made;  ///< the content, if it is not the field's
  io::ByteSpan bytes;
};

SinkMember member_of(const Field& field) {
  SinkMember member{.suffix = std::string(field.name), .bytes = field.bytes};
  if (!field.is_array) return member;
  if (field.name == "label" && field.dtype == c10::ScalarType::Long && field.sizes.empty()) {
    int64_t label = 0;
    std::memcpy(&label, field.bytes.data(), sizeof(label));
    member.suffix = "cls";
    member.made = std::to_string(label);
  } else {
    member.suffix += ".npy";
    member.made = io::make_npy_header(field.dtype, field.sizes.vec());
    member.made += io::as_text(field.bytes);
  }
  return member;
}

class WebDatasetSink final : public Sink {
 public:
  WebDatasetSink(const std::string& pattern, const WebDatasetSinkOptions& options)
      : pattern_(pattern), options_(options), number_(options.first_shard) {
    TORCH_CHECK_VALUE(!pattern.empty(), "webdataset_sink: expected a path, got an empty one.");
    TORCH_CHECK_VALUE(options.max_samples > 0 && options.max_bytes > 0 && options.first_shard >= 0,
                      "webdataset_sink: expected limits of at least 1 and a first shard of at least 0, got ",
                      options.max_samples, " samples, ", options.max_bytes, " bytes, shard ", options.first_shard, ".");
    start_shard();
  }

  ~WebDatasetSink() override {
    for (const std::string& name : finished_) ::unlink((name + unfinished_suffix).c_str());
  }

  void write(const Sample& sample) override {
    state_.check("webdataset_sink");
    TORCH_CHECK_VALUE(!closed_, "webdataset_sink: write() was called after close().");
    const std::string key = key_of(sample);
    std::vector<SinkMember> members;
    for (const Field& field : sample.fields) members.push_back(member_of(field));
    std::sort(members.begin(), members.end(), [](const auto& a, const auto& b) { return a.suffix < b.suffix; });
    for (SinkMember& member : members) {  // only now, because sorting moves short strings
      if (!member.made.empty()) member.bytes = io::as_bytes(member.made);
    }
    check(sample, key, members);
    state_.run("webdataset_sink", [&] { add(key, members); });
    last_key_ = key;
  }

  void close() override {
    TORCH_CHECK_VALUE(!closed_, "webdataset_sink: the sink is closed already.");
    state_.run("webdataset_sink", [&] {
      finish_shard();
      put_in_place();
    });
    closed_ = true;
  }

 private:
  void add(const std::string& key, const std::vector<SinkMember>& members) {
    if (!writer_ || (pattern_.numbered && (samples_ >= options_.max_samples || bytes_ >= options_.max_bytes))) {
      finish_shard();
      start_shard();
    }
    for (const SinkMember& member : members) {
      writer_->add(key + "." + member.suffix, member.bytes);
      bytes_ += static_cast<int64_t>(member.bytes.size());
    }
    ++samples_;
  }

  void put_in_place() {
    std::set<std::filesystem::path> folders;
    for (const std::string& name : finished_) {
      TORCH_CHECK(std::rename((name + unfinished_suffix).c_str(), name.c_str()) == 0, "webdataset_sink: cannot rename ",
                  name, unfinished_suffix, ": ", errno_message(errno), ".");
      const std::filesystem::path folder = std::filesystem::path(name).parent_path();
      folders.insert(folder.empty() ? "." : folder);
      if (!options_.dali_index) continue;
      const MappedFile shard(name);
      const size_t dot = name.find('.', name.rfind('/') + 2);
      write_text_file(name.substr(0, dot) + ".idx", io::dali_index(io::make_tar_index(shard.bytes(), name).members));
    }
    finished_.clear();
    for (const std::filesystem::path& folder : folders) sync_folder(folder, false);
  }

  static std::string key_of(const Sample& sample) {
    if (!sample.key.empty()) return std::string(sample.key);
    char text[32];
    std::snprintf(text, sizeof(text), "%09lld", static_cast<long long>(sample.id));
    return text;
  }

  /// Checks that reading restores what is written.
  void check(const Sample& sample, const std::string& key, const std::vector<SinkMember>& members) const {
    TORCH_CHECK_VALUE(!members.empty(), "webdataset_sink: ", sample.where(), " has no fields.");
    TORCH_CHECK_VALUE(samples_ == 0 || key != last_key_, "webdataset_sink: two samples in a row have the key ",
                      io::printable(key, 100), ", so they would be merged into one. Give each sample a different key.");
    TORCH_CHECK_VALUE(("/" + key + "/").find("/../") == std::string::npos, "webdataset_sink: the key ",
                      io::printable(key, 100), " contains \"..\", which leads out of the archive.");
    for (size_t i = 0; i < members.size(); ++i) {
      const std::string& suffix = members[i].suffix;
      std::string_view read_key, read_suffix;
      const bool lower = std::none_of(suffix.begin(), suffix.end(), [](unsigned char c) { return std::isupper(c); });
      TORCH_CHECK_VALUE(lower && split_member_name(key + "." + suffix, read_key, read_suffix) && read_key == key &&
                            read_suffix == suffix && suffix.find('/') == std::string::npos,
                        "webdataset_sink: ", sample.where(), ": the key ", io::printable(key, 100), " and the field ",
                        io::printable(suffix, 100),
                        " could not be separated when the archive is read. The base name of the key must have no dot, "
                        "and the name of the field no capital letter and no slash.");
      TORCH_CHECK_VALUE(i == 0 || members[i - 1].suffix != suffix, "webdataset_sink: ", sample.where(),
                        ": two fields would get the name \".", suffix, "\".");
    }
  }

  void start_shard() {
    const std::string name = pattern_.name(number_);
    writer_.emplace(name + unfinished_suffix);
    samples_ = bytes_ = 0;
  }

  void finish_shard() {
    if (!writer_) return;
    writer_->close();
    writer_.reset();
    finished_.push_back(pattern_.name(number_++));
  }

  const ShardPattern pattern_;
  const WebDatasetSinkOptions options_;
  int64_t number_, samples_ = 0, bytes_ = 0;
  WriteState state_;
  std::optional<io::TarWriter> writer_;
  std::string last_key_;
  std::vector<std::string> finished_;  // complete shards under temporary names
  bool closed_ = false;
};

}  // namespace

std::unique_ptr<Sink> webdataset_sink(const std::string& pattern, const WebDatasetSinkOptions& options) {
  return std::make_unique<WebDatasetSink>(pattern, options);
}

}  // namespace bellows::data
