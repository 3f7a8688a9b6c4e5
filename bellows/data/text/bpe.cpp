#include <memory>
#include <queue>
#include <tuple>

#include "bellows/data/text/bpe.h"
#include "bellows/data/text/tokenizer.h"
#include "bellows/data/text/unicode.h"

namespace bellows::data {

namespace {

enum class CharacterKind { letter, number, space, other };

CharacterKind kind_of(char32_t c) {
  if (unicode::is_letter(c)) return CharacterKind::letter;
  if (unicode::is_number(c)) return CharacterKind::number;
  return unicode::is_white_space(c) ? CharacterKind::space : CharacterKind::other;
}

/// Behind the characters of one kind that begin at `at`. Params: last – where the last of them begins
size_t end_of_run(std::string_view text, size_t at, CharacterKind kind, size_t* last = nullptr) {
  while (at < text.size()) {
    size_t behind = at;
    if (kind_of(unicode::next(text, behind)) != kind) break;
    if (last) *last = at;
    at = behind;
  }
  return at;
}

/// A piece of a word while it is merged.
struct Symbol {
  uint32_t token;
  int32_t before, behind;  // neighbours; -1: none
};

/// The lowest rank first, and of equal ones the leftmost.
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
  return end == text.size() || last == at ? end : last;  // what follows takes the last one along
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
    if (left.token != best.left_token || left.behind < 0) continue;  // merged meanwhile
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
