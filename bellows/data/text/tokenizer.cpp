#include "bellows/data/text/tokenizer.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <memory>
#include <unordered_map>
#include <utility>

#include "bellows/data/text/unicode.h"
#include "bellows/io/bytes.h"
#include "bellows/io/network/hub.h"
#include "bellows/system/file.h"

namespace bellows::data {

namespace {

constexpr size_t longest_word = 100;  // characters; longer words are unknown, as in BERT

struct TextHash {
  using is_transparent = void;
  size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
};
using Vocabulary = std::unordered_map<std::string, int64_t, TextHash, std::equal_to<>>;

Vocabulary read_vocabulary(const std::string& path) {
  const MappedFile file(path);
  std::string_view rest = io::as_text(file.bytes());
  Vocabulary words;
  for (int64_t line = 0; !rest.empty(); ++line) {
    const size_t end = std::min(rest.find('\n'), rest.size());
    std::string_view word = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    if (word.ends_with('\r')) word.remove_suffix(1);
    TORCH_CHECK_VALUE(words.emplace(word, line).second, "tokenizer: ", path, ", line ", line + 1, ": the token ",
                      io::printable(word), " occurs twice. Expected a vocab.txt with one token per line.");
  }
  return words;
}

/// Words in brackets are special tokens.
bool has_capitals(const Vocabulary& words) {
  for (const auto& [word, number] : words) {
    if (word.starts_with('[') && word.ends_with(']')) continue;
    for (const char c : word) {
      if (c >= 'A' && c <= 'Z') return true;
    }
  }
  return false;
}

class WordPieces {
 public:
  explicit WordPieces(const std::string& path) : words_(read_vocabulary(path)), cased_(has_capitals(words_)) {
    for (const char* mark : {"[UNK]", "[CLS]", "[SEP]"}) {
      TORCH_CHECK_VALUE(
          words_.contains(mark), "tokenizer: ", path, " has no ", mark, " among its ", words_.size(),
          " lines. Expected a vocab.txt of BERT with one token per line. Alternatively, set tokenizer: bytes.");
    }
    const auto padding = words_.find("[PAD]");
    TORCH_CHECK_VALUE(padding != words_.end() && padding->second == 0,
                      "tokenizer: expected [PAD] in the first line of ", path, ", because token 0 is padding.");
    unknown_ = number("[UNK]");
  }

  int64_t number(std::string_view mark) const { return words_.find(mark)->second; }
  int64_t size() const { return static_cast<int64_t>(words_.size()); }
  bool cased() const { return cased_; }

  std::vector<int64_t> operator()(std::string_view text) const {
    std::vector<int64_t> tokens;
    std::u32string word, characters;
    const auto finish = [&] {
      if (!word.empty()) add_word(word, tokens);
      word.clear();
    };
    for (size_t at = 0; at < text.size();) {
      const char32_t c = unicode::next(text, at);
      if (unicode::is_control(c)) continue;
      const bool alone = unicode::is_ideograph(c);
      if (alone || unicode::is_space(c)) finish();
      if (unicode::is_space(c)) continue;
      characters.clear();
      if (cased_) {
        characters = c;
      } else {
        unicode::append_folded(c, characters);
      }
      for (const char32_t part : characters) {
        const bool ends = unicode::is_punctuation(part);
        if (ends) finish();
        word += part;
        if (ends) finish();
      }
      if (alone) finish();
    }
    finish();
    return tokens;
  }

 private:
  /// Takes the longest known piece, then continues with the rest. If a part is unknown, the whole word is unknown.
  void add_word(std::u32string_view word, std::vector<int64_t>& tokens) const {
    const size_t before = tokens.size();
    std::string piece;
    std::vector<size_t> ends;  // in `piece`, after each character
    for (size_t begin = 0; begin < word.size() && word.size() <= longest_word;) {
      piece = begin > 0 ? "##" : "";
      ends.clear();
      for (const char32_t c : word.substr(begin)) {
        unicode::append(c, piece);
        ends.push_back(piece.size());
      }
      size_t count = ends.size();
      auto found = words_.end();
      while (count > 0 && (found = words_.find(std::string_view(piece).substr(0, ends[count - 1]))) == words_.end())
        --count;
      if (count == 0) break;
      tokens.push_back(found->second);
      begin += count;
      if (begin == word.size()) return;
    }
    tokens.resize(before);
    tokens.push_back(unknown_);
  }

  Vocabulary words_;
  bool cased_;
  int64_t unknown_ = 0;
};

}  // namespace

std::vector<int64_t> TextTokenizer::encode(std::string_view text) const {
  std::vector<int64_t> tokens = before;
  const std::vector<int64_t> own = pieces(text);
  tokens.insert(tokens.end(), own.begin(), own.end());
  tokens.insert(tokens.end(), after.begin(), after.end());
  return tokens;
}

namespace {

/// The numbers of tokens of two texts after truncation.
/// Params: most – for both texts together
/// Ref:    the package tokenizers, TruncationStrategy::LongestFirst
std::pair<size_t, size_t> truncated_pair(size_t first, size_t second, size_t most) {
  if (first + second <= most) return {first, second};
  size_t shorter = std::min(first, second), longer = shorter > most ? shorter : std::max(shorter, most - shorter);
  if (shorter + longer > most) {
    shorter = most / 2;
    longer = shorter + most % 2;
  }
  return first <= second ? std::pair(shorter, longer) : std::pair(longer, shorter);
}

}  // namespace

TextTokenizer::Pair TextTokenizer::encode_pair(std::string_view first, std::string_view second,
                                               int64_t max_tokens) const {
  TORCH_CHECK_VALUE(joins_pairs, "text: this tokenizer cannot join two texts: ", description,
                    ". Use a vocab.txt, or one text per sample.");
  const auto marks = static_cast<int64_t>(before.size() + 2 * after.size());
  TORCH_CHECK_VALUE(max_tokens == 0 || max_tokens > marks, "text: max_length must be larger than ", marks,
                    ", the number of special tokens of two texts, got ", max_tokens, ".");
  std::vector<int64_t> parts[2] = {pieces(first), pieces(second)};
  Pair result;
  if (max_tokens > 0) {
    const auto most = static_cast<size_t>(max_tokens - marks);
    result.cut = parts[0].size() + parts[1].size() > most;
    const auto [kept_first, kept_second] = truncated_pair(parts[0].size(), parts[1].size(), most);
    parts[0].resize(kept_first);
    parts[1].resize(kept_second);
  }
  result.tokens = before;
  for (const int64_t number : {0, 1}) {
    const std::vector<int64_t>& part = parts[number];
    result.tokens.insert(result.tokens.end(), part.begin(), part.end());
    result.tokens.insert(result.tokens.end(), after.begin(), after.end());
    result.types.resize(result.tokens.size(), number);
  }
  return result;
}

TextTokenizer byte_tokenizer() {
  constexpr int64_t end = 1, start = 2, first = 3;
  const auto pieces = [](std::string_view text) {
    std::vector<int64_t> tokens;
    tokens.reserve(text.size());
    for (const char c : text) tokens.push_back(first + static_cast<unsigned char>(c));
    return tokens;
  };
  return {.pieces = pieces, .before = {start}, .after = {end}, .vocabulary = first + 256, .description = "bytes"};
}

TextTokenizer wordpiece_tokenizer(const std::string& path) {
  const auto words = std::make_shared<const WordPieces>(path);
  return {.pieces = [words](std::string_view text) { return (*words)(text); },
          .before = {words->number("[CLS]")},
          .after = {words->number("[SEP]")},
          .vocabulary = words->size(),
          .joins_pairs = true,
          .description = c10::str("WordPiece, ", words->size(), " words, ", words->cased() ? "cased" : "lowercase",
                                  " (", path, ")")};
}

TextTokenizer open_tokenizer(const std::string& name) {
  if (name == "bytes") return byte_tokenizer();
  if (io::is_remote_address(name)) {
    const io::RemoteFile file = io::fetch_file(name);
    return name.substr(0, name.find('#')).ends_with(".json") ? bpe_tokenizer(file.path())
                                                             : wordpiece_tokenizer(file.path());
  }
  if (name.ends_with(".json")) return bpe_tokenizer(name);
  return wordpiece_tokenizer(name);
}

}  // namespace bellows::data
