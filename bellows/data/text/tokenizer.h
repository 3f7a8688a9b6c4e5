#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bellows/data/tokenize.h"

namespace bellows::data {

/// Converts texts to the tokens that a model reads. Special tokens are added before and after the tokens of the text.
struct TextTokenizer {
  Tokenizer pieces;             ///< returns the tokens of a text without special tokens
  std::vector<int64_t> before;  ///< special tokens before each text
  std::vector<int64_t> after;   ///< special tokens after each text
  int64_t vocabulary = 0;       ///< exclusive upper bound of all tokens
  bool pads = true;             ///< true if token 0 is padding and occurs in no text
  bool joins_pairs = false;     ///< true if encode_pair() is supported
  std::string description;      ///< for example "WordPiece, 30522 words, lower case (bert/vocab.txt)"

  /// Returns the tokens of the text, including special tokens.
  std::vector<int64_t> encode(std::string_view text) const;

  /// The tokens of two texts in one sequence, and the number of the text to which each token belongs (0 or 1).
  struct Pair {
    std::vector<int64_t> tokens, types;
    bool cut = false;  ///< a text was truncated
  };
  /// Joins two texts, as in [CLS] first [SEP] second [SEP].
  /// Params:   max_tokens – the longer text is truncated until the result has at most this number of tokens; 0: no limit
  /// Numerics: equal to BertTokenizerFast of transformers with truncation="longest_first"
  ///           (tests/data/text/text_pair_test.cpp)
  /// Throws:   c10::ValueError if joins_pairs is false, or if max_tokens leaves no space for a token
  Pair encode_pair(std::string_view first, std::string_view second, int64_t max_tokens = 0) const;
};

/// Returns a tokenizer that converts each byte b to the token 3 + b. Token 2 comes before a text, and token 1 after it.
/// The tokenizer needs no file, has no unknown words and supports any language and encoding. A text becomes four to
/// five times as many tokens as with a word tokenizer.
/// Ref: arXiv:2105.13626 (ByT5 uses the same numbers, except token 2)
TextTokenizer byte_tokenizer();

/// Returns BERT's tokenizer. A word becomes one token if it is in the vocabulary. Otherwise, it is split into the
/// longest pieces that are in the vocabulary. [CLS] comes before a text, and [SEP] after it. If the vocabulary has no
/// capital letters, texts are converted to lower case and lose their accents. Special tokens that occur in a text are
/// treated as text.
/// Params:   path – vocab.txt of a model, with one token per line; the first token is [PAD]
/// Numerics: equal to BertTokenizerFast of transformers (tests/data/text/tokenizer_test.cpp), with the characters of
///           Unicode 14
/// Throws:   c10::ValueError if the file does not exist, if a token occurs twice, or if a special token is missing.
///           pieces() throws c10::ValueError if the text is not UTF-8
/// Ref:      transformers.BertTokenizer; arXiv:1810.04805
TextTokenizer wordpiece_tokenizer(const std::string& path);

/// Returns a tokenizer like GPT-2's. A pattern splits a text into words, numbers and other pieces. The bytes of each
/// piece are then merged pair by pair, so any text can be encoded.
///
/// If the token <|endoftext|> exists, it comes after each text. If the file has a template, the special tokens of the
/// template are used instead. Special tokens that occur in a text are treated as text.
/// Params:   path – Hugging Face's tokenizer.json with a model of type BPE and a pre-tokenizer of type ByteLevel
/// Numerics: equal to the Python package tokenizers (tests/data/text/bpe_test.cpp), with the characters of Unicode 14
/// Throws:   c10::ValueError if the file does not exist or is not JSON; if the kind of tokenizer or an option is not
///           supported (the message names the unsupported value); if a merge uses unknown tokens; if a byte has no
///           token. pieces() throws c10::ValueError if the text is not UTF-8
/// Ref:      Radford et al., "Language Models are Unsupervised Multitask Learners", 2019; huggingface/tokenizers, BPE
///           and ByteLevel
TextTokenizer bpe_tokenizer(const std::string& path);

/// Opens the tokenizer that the key `tokenizer` of a recipe names.
/// Params: name – "bytes", the path of a tokenizer.json (any path that ends in .json), or the path of a vocab.txt. Instead
///         of a path, an address such as hf://org/name/vocab.txt (see io::fetch_file())
/// Throws: exceptions of bpe_tokenizer(), wordpiece_tokenizer() and io::fetch_file()
TextTokenizer open_tokenizer(const std::string& name);

}  // namespace bellows::data
