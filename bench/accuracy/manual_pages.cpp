#include "bench/accuracy/manual_pages.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <sstream>

#include "bellows/io/archives/decompress.h"
#include "bellows/io/bytes.h"
#include "bellows/system/file.h"

namespace bellows::bench {

namespace {

namespace fs = std::filesystem;

constexpr std::pair<const char*, int64_t> sections[] = {
    {"man2", 0}, {"man3", 1}, {"man7", 2}, {"man4", 3}, {"man5", 3}};

uint64_t hash_of(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash ^ (hash >> 29);
}

/// What a reader sees of a line of a page; nothing of comments, headers and references to other pages.
std::string_view visible(std::string_view line) {
  if (line.empty() || line[0] != '.') return line;
  const std::string_view macro = line.substr(0, line.find(' '));
  for (const char* hidden : {".\\\"", ".TH", ".so", ".SH", ".UR", ".UE"}) {
    if (macro.substr(0, std::string_view(hidden).size()) == hidden) return {};
  }
  return line.substr(macro.size());
}

void append_words(std::string_view line, int64_t vocabulary, std::vector<int64_t>& words) {
  std::string word;
  const auto finish = [&] {
    if (word.size() > 1)
      words.push_back(1 + static_cast<int64_t>(hash_of(word) % static_cast<uint64_t>(vocabulary - 1)));
    word.clear();
  };
  for (size_t i = 0; i < line.size(); ++i) {
    if (line[i] == '\\') {  // \fB, \-, \(aq
      finish();
      i += i + 1 < line.size() && (line[i + 1] == 'f' || line[i + 1] == '(') ? 2 : 1;
    } else if (std::isalnum(static_cast<unsigned char>(line[i])) || line[i] == '_') {
      word += static_cast<char>(std::tolower(static_cast<unsigned char>(line[i])));
    } else {
      finish();
    }
  }
  finish();
}

std::vector<int64_t> words_of(const fs::path& page, int64_t vocabulary) {
  const MappedFile file(page.string());
  const io::Bytes content = io::decompress(file.bytes(), page.string());
  std::istringstream text(std::string(reinterpret_cast<const char*>(content.data()), content.size()));
  std::vector<int64_t> words;
  for (std::string line; std::getline(text, line);) append_words(visible(line), vocabulary, words);
  return words;
}

struct Pieces {
  std::vector<int64_t> tokens, labels;

  Texts as_texts(int64_t length) const { return {at::tensor(tokens).view({-1, length}), at::tensor(labels)}; }
};

}  // namespace

ManualPages read_manual_pages(const std::string& folder, int64_t vocabulary, int64_t length, int64_t pieces_a_page) {
  Pieces train, held_out;
  int64_t pages = 0;
  for (const auto& [section, label] : sections) {
    std::vector<fs::path> files;
    if (fs::is_directory(fs::path(folder) / section)) {
      for (const auto& entry : fs::directory_iterator(fs::path(folder) / section)) {
        if (entry.path().extension() == ".gz" && !entry.is_symlink()) files.push_back(entry.path());
      }
    }
    std::sort(files.begin(), files.end());
    for (const fs::path& file : files) {
      const std::vector<int64_t> words = words_of(file, vocabulary);
      if (static_cast<int64_t>(words.size()) < length / 2) continue;  // only says where the page is
      ++pages;
      Pieces& pieces = hash_of(file.filename().string()) % 5 == 0 ? held_out : train;
      for (int64_t i = 0; i < pieces_a_page && i * length < static_cast<int64_t>(words.size()); ++i) {
        const auto begin = words.begin() + i * length;
        const auto count = std::min<int64_t>(length, words.end() - begin);
        pieces.tokens.insert(pieces.tokens.end(), begin, begin + count);
        pieces.tokens.resize(pieces.tokens.size() + static_cast<size_t>(length - count));
        pieces.labels.push_back(label);
      }
    }
  }
  TORCH_CHECK_VALUE(pages >= 500, "bench accuracy: expected the manual pages of Linux in ", folder, ", found ", pages,
                    " pages. Install the Debian packages manpages and manpages-dev, or set --pages to their folder.");
  return {train.as_texts(length), held_out.as_texts(length)};
}

}  // namespace bellows::bench
