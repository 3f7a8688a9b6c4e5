#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bellows/data/tokenize.h"

namespace bellows::data {

/// Converts texts to the tokens that a model reads: the pieces of a text between special tokens at the start and the
/// end.
struct TextTokenizer {
  Tokenizer pieces;             ///< without special tokens
  std::vector<int64_t> before;  ///< special tokens before each text
  std::vector<int64_t> after;   ///< special tokens after it
  int64_t vocabulary = 0;       ///< all tokens are below it
  bool pads = true;             ///< token 0 is padding and occurs in no text
  std::string description;      ///< "WordPiece, 30522 words, lower case (bert/vocab.txt)"

  /// The tokens of the text, with special tokens.
  std::vector<int64_t> encode(std::string_view text) const;
};

/// Each byte is a token, 3 + its value; 2 comes before a text and 1 after it. This needs no file, has no unknown words
/// and supports any language and encoding; texts are four to five times as long as with word tokens.
/// Ref: arXiv:2105.13626 (ByT5 uses these numbers, but not 2)
TextTokenizer byte_tokenizer();

/// BERT's tokenizer: words, or for a word that is not in the vocabulary the longest pieces that are, between [CLS] and
/// [SEP]. If the vocabulary has no capital letters, case and accents are folded. Special tokens that occur in a text
/// are treated as text.
/// Params:   path – vocab.txt of a model, one token per line; the first is [PAD]
/// Numerics: equal to transformers' BertTokenizerFast (tests/data/text/tokenizer_test.cpp), with the characters of
///           Unicode 14
/// Throws:   c10::ValueError if the file does not exist, if a token occurs twice, or if a special token is missing.
///           pieces() throws c10::ValueError if the text is not UTF-8
/// Ref:      transformers.BertTokenizer; arXiv:1810.04805
TextTokenizer wordpiece_tokenizer(const std::string& path);

/// A tokenizer like GPT-2's: GPT-2's pattern splits a text into words, numbers and other pieces, and the bytes of each
/// piece are merged pair by pair. Any text can be encoded. <|endoftext|> follows each text if that token exists;
/// special tokens of a template replace it. Special tokens that occur in a text are treated as text.
/// Params:   path – Hugging Face's tokenizer.json with a model of type BPE and a pre-tokenizer of type ByteLevel
/// Numerics: equal to the package tokenizers (tests/data/text/bpe_test.cpp), with the characters of Unicode 14
/// Throws:   c10::ValueError if the file does not exist or is not JSON; if it has an unsupported kind of tokenizer or
///           an unsupported option (the message names it and what was found); if a merge uses unknown tokens; if a byte
///           has no token. pieces() throws c10::ValueError if the text is not UTF-8
/// Ref:      Radford et al., "Language Models are Unsupervised Multitask Learners", 2019; huggingface/tokenizers, BPE
///           and ByteLevel
TextTokenizer bpe_tokenizer(const std::string& path);

/// Opens the tokenizer for a recipe's `tokenizer`: "bytes", the path of a tokenizer.json (any path that ends in .json),
/// or the path of a vocab.txt.
/// Throws: c10::ValueError as bpe_tokenizer() and wordpiece_tokenizer()
TextTokenizer open_tokenizer(const std::string& name);

}  // namespace bellows::data
