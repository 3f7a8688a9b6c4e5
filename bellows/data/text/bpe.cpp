#include "bellows/data/text/bpe.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <memory>
#include <queue>
#include <tuple>

#include "bellows/data/text/tokenizer.h"
#include "bellows/data/text/unicode.h"
#include "bellows/io/tables/json_impl.h"
#include "bellows/system/file.h"

namespace bellows::data {

namespace {

using Json = nlohmann::json;

/// The characters that represent bytes in such files: visible ones represent themselves, others start at U+0100.
std::array<char32_t, 256> characters_of_bytes() {
  std::array<char32_t, 256> result{};
  char32_t next = 0x100;
  for (char32_t byte = 0; byte < 256; ++byte) {
    const bool visible = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
    result[byte] = visible ? byte : next++;
  }
  return result;
}

}  // namespace

/// Parser of a tokenizer.json.
class BytePairs::File {
 public:
  File(const std::string& path, BytePairs& pairs) : path_(path), pairs_(pairs) {
    const MappedFile file(path);
    document_ = io::parse_shallow_json(io::as_text(file.bytes()), "tokenizer: " + path);
    check(document_.is_object(), "expected a JSON object, Hugging Face's tokenizer.json, found ", shown(document_));
    check_kind();
    read_vocabulary();
    read_merges();
    read_marks();
  }

 private:
  template <class... Words>
  void check(bool good, const Words&... words) const {
    TORCH_CHECK_VALUE(good, "tokenizer: ", path_, ": ", words..., ".");
  }
  static std::string shown(const Json& value) {
    return value.is_discarded() ? "a different value" : io::shown_json(value);
  }
  static const Json& in(const Json& object, const char* key) {
    static const Json none;
    return object.is_object() && object.contains(key) ? object[key] : none;
  }
  static bool is_off(const Json& value) {
    return value.is_null() || value == Json(false) || value == Json("") || value == Json::array();
  }

  /// Rejects options that change the tokens and differ from GPT-2's.
  void check_kind() {
    const Json &model = in(document_, "model"), &splits = in(document_, "pre_tokenizer");
    const Json& type = in(model, "type");
    check(model.is_object() && (type.is_null() || type == Json("BPE")) && in(model, "merges").is_array(),
          "expected a model of type BPE with merges, found ", type.is_null() ? shown(model) : "type " + shown(type),
          ". Other supported tokenizers: a vocab.txt of BERT, and bytes without a file");
    for (const char* key : {"dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback"})
      check(is_off(in(model, key)), "expected a model without ", key, ", found ", shown(in(model, key)));
    check(is_off(in(document_, "normalizer")), "expected no normalizer, found ", shown(in(document_, "normalizer")));
    check(in(splits, "type") == Json("ByteLevel") && in(splits, "use_regex") != Json(false),
          "expected a pre_tokenizer of type ByteLevel with GPT-2's pattern, found ", shown(splits));
    pairs_.prefix_space_ = in(splits, "add_prefix_space") == Json(true);
  }

  uint32_t token_of(const Json& value, const std::string& what) const {
    constexpr uint64_t most = 1 << 28;
    check(value.is_number_unsigned() && value.get<uint64_t>() < most, "expected an integer of at least 0 for ", what,
          ", found ", shown(value));
    return value.get<uint32_t>();
  }

  void read_vocabulary() {
    const Json& words = in(in(document_, "model"), "vocab");
    check(words.is_object() && !words.empty(), "expected tokens in model.vocab, found ", shown(words));
    for (const auto& [word, number] : words.items()) know(word, token_of(number, io::printable(word)));
    const std::array<char32_t, 256> characters = characters_of_bytes();
    for (size_t byte = 0; byte < characters.size(); ++byte) {
      std::string word;
      unicode::append(characters[byte], word);
      const auto found = tokens_.find(word);
      check(found != tokens_.end(), "the vocabulary has no token for the byte ", byte, " (", io::printable(word),
            "): expected all 256 among the tokens");
      pairs_.byte_tokens_[byte] = found->second;
    }
    pairs_.pads_ = std::ranges::none_of(tokens_, [](const auto& token) { return token.second == 0; });
    if (in(in(document_, "model"), "ignore_merges") == Json(true)) read_whole_words(characters);
  }

  void know(const std::string& word, uint32_t token) {
    tokens_.emplace(word, token);
    pairs_.vocabulary_ = std::max<int64_t>(pairs_.vocabulary_, token + int64_t{1});
  }

  void read_whole_words(const std::array<char32_t, 256>& characters) {
    std::unordered_map<char32_t, char> bytes;
    for (size_t byte = 0; byte < characters.size(); ++byte) bytes[characters[byte]] = static_cast<char>(byte);
    for (const auto& [word, token] : tokens_) {
      std::string text;
      bool known = true;
      for (size_t at = 0; known && at < word.size();) {
        const auto found = bytes.find(unicode::next(word, at));
        known = found != bytes.end();
        if (known) text += found->second;
      }
      if (known) pairs_.whole_words_.emplace(text, token);
    }
  }

  void read_merges() {
    const Json& merges = in(in(document_, "model"), "merges");
    uint32_t rank = 0;
    for (const Json& merge : merges) {
      const std::string where = c10::str("merge ", rank);
      std::string left, right;
      if (merge.is_string()) {
        const auto& text = merge.get_ref<const std::string&>();
        const size_t space = text.find(' ');
        check(space != std::string::npos, "expected two tokens in ", where, ", found ", shown(merge));
        left = text.substr(0, space), right = text.substr(space + 1);
      } else {
        check(merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string(),
              "expected two tokens in ", where, ", found ", shown(merge));
        left = merge[0].get<std::string>(), right = merge[1].get<std::string>();
      }
      const uint64_t first = merged_token(left, where), second = merged_token(right, where);
      pairs_.merges_.emplace(first << 32 | second, Merge{rank++, merged_token(left + right, where)});
    }
  }

  uint32_t merged_token(const std::string& word, const std::string& where) const {
    const auto found = tokens_.find(word);
    check(found != tokens_.end(), where, " uses ", io::printable(word), ", which is not a token in model.vocab");
    return found->second;
  }

  /// Special tokens are in added_tokens and usually also in the vocabulary.
  void read_marks() {
    for (const Json& mark : in(document_, "added_tokens")) {
      const Json& word = in(mark, "content");
      check(word.is_string(), "expected a string as the content of an added token, found ", shown(mark));
      check(in(mark, "special") == Json(true), "expected only special added tokens, found ", shown(mark),
            ". Tokens that are matched before all others are not supported");
      const uint32_t token = token_of(in(mark, "id"), shown(word));
      know(word.get<std::string>(), token);
      pairs_.pads_ = pairs_.pads_ || token == 0;
    }
    const Json& around = in(document_, "post_processor");
    if (in(around, "type") == Json("TemplateProcessing")) return read_template(in(around, "single"));
    check(around.is_null() || in(around, "type") == Json("ByteLevel"),
          "expected a post_processor of type ByteLevel or TemplateProcessing, found ", shown(around));
    if (const auto end = tokens_.find("<|endoftext|>"); end != tokens_.end()) pairs_.after_ = {end->second};
  }

  /// [{"SpecialToken": {"id": "<s>"}}, {"Sequence": {"id": "A"}}, …]
  void read_template(const Json& parts) {
    bool behind = false;
    check(parts.is_array(), "expected a list of parts in the template, found ", shown(parts));
    for (const Json& part : parts) {
      behind = behind || part.contains("Sequence");
      const Json& mark = in(in(part, "SpecialToken"), "id");
      if (!mark.is_string()) continue;
      (behind ? pairs_.after_ : pairs_.before_).push_back(merged_token(mark.get<std::string>(), "the template"));
    }
  }

  const std::string& path_;
  BytePairs& pairs_;
  Json document_;
  std::unordered_map<std::string, uint32_t> tokens_;
};

BytePairs::BytePairs(const std::string& path) {
  const File file(path, *this);
}

namespace {

enum class CharacterKind { letter, number, space, other };

CharacterKind kind_of(char32_t c) {
  if (unicode::is_letter(c)) return CharacterKind::letter;
  if (unicode::is_number(c)) return CharacterKind::number;
  return unicode::is_white_space(c) ? CharacterKind::space : CharacterKind::other;
}

/// The end of the run of characters of one kind that starts at `at`.
/// Params: last – start of the last of these characters
size_t end_of_run(std::string_view text, size_t at, CharacterKind kind, size_t* last = nullptr) {
  while (at < text.size()) {
    size_t behind = at;
    if (kind_of(unicode::next(text, behind)) != kind) break;
    if (last) *last = at;
    at = behind;
  }
  return at;
}

/// A piece of a word during merging.
struct Symbol {
  uint32_t token;
  int32_t before, behind;  // neighbors; -1: none
};

/// The lowest rank first; among equal ranks, the leftmost.
struct Candidate {
  uint32_t rank;
  int32_t left;
  uint32_t left_token, right_token, result;
  bool operator>(const Candidate& other) const { return std::tie(rank, left) > std::tie(other.rank, other.left); }
};

}  // namespace

size_t end_of_piece(std::string_view text, size_t at) {
  for (const std::string_view ending : {"'s", "'t", "'re", "'ve", "'m", "'ll", "'d"}) {
    if (text.substr(at).starts_with(ending)) return at + ending.size();
  }
  size_t begin = at + (text[at] == ' ');
  size_t behind = begin;
  if (begin < text.size()) {
    const CharacterKind kind = kind_of(unicode::next(text, behind));
    if (kind != CharacterKind::space) return end_of_run(text, behind, kind);
  }
  size_t last = at;
  const size_t end = end_of_run(text, at, CharacterKind::space, &last);
  return end == text.size() || last == at ? end : last;  // the next piece includes the last white space
}

const BytePairs::Merge* BytePairs::merge_of(uint32_t left, uint32_t right) const {
  const auto found = merges_.find(static_cast<uint64_t>(left) << 32 | right);
  return found == merges_.end() ? nullptr : &found->second;
}

void BytePairs::add_word(std::string_view bytes, std::vector<int64_t>& tokens) const {
  if (const auto whole = whole_words_.find(std::string(bytes)); whole != whole_words_.end())
    return tokens.push_back(whole->second);
  std::vector<Symbol> symbols;
  symbols.reserve(bytes.size());
  const auto count = static_cast<int32_t>(bytes.size());
  for (int32_t i = 0; i < count; ++i)
    symbols.push_back(
        {byte_tokens_[static_cast<unsigned char>(bytes[static_cast<size_t>(i)])], i - 1, i + 1 < count ? i + 1 : -1});
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue;
  const auto consider = [&](int32_t left) {
    if (left < 0 || symbols[static_cast<size_t>(left)].behind < 0) return;
    const Symbol& first = symbols[static_cast<size_t>(left)];
    const uint32_t second = symbols[static_cast<size_t>(first.behind)].token;
    if (const Merge* merge = merge_of(first.token, second))
      queue.push({merge->rank, left, first.token, second, merge->result});
  };
  for (int32_t i = 0; i < count; ++i) consider(i);
  constexpr uint32_t gone = UINT32_MAX;
  while (!queue.empty()) {
    const Candidate best = queue.top();
    queue.pop();
    Symbol& left = symbols[static_cast<size_t>(best.left)];
    if (left.token != best.left_token || left.behind < 0) continue;  // already merged
    Symbol& right = symbols[static_cast<size_t>(left.behind)];
    if (right.token != best.right_token) continue;
    left.token = best.result;
    right.token = gone;
    left.behind = right.behind;
    if (left.behind >= 0) symbols[static_cast<size_t>(left.behind)].before = best.left;
    consider(left.before);
    consider(best.left);
  }
  for (const Symbol& symbol : symbols) {
    if (symbol.token != gone) tokens.push_back(symbol.token);
  }
}

std::vector<int64_t> BytePairs::operator()(std::string_view text) const {
  std::vector<int64_t> tokens;
  std::string with_space;
  if (prefix_space_ && !text.empty() && text.front() != ' ') {
    with_space.append(" ").append(text);
    text = with_space;
  }
  for (size_t at = 0; at < text.size();) {
    const size_t end = end_of_piece(text, at);
    add_word(text.substr(at, end - at), tokens);
    at = end;
  }
  return tokens;
}

TextTokenizer bpe_tokenizer(const std::string& path) {
  const auto pairs = std::make_shared<const BytePairs>(path);
  return {.pieces = [pairs](std::string_view text) { return (*pairs)(text); },
          .before = pairs->before(),
          .after = pairs->after(),
          .vocabulary = pairs->vocabulary(),
          .pads = pairs->pads(),
          .description = c10::str("byte-level BPE, ", pairs->vocabulary(), " tokens (", path, ")")};
}

}  // namespace bellows::data
