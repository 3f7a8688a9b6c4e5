#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bellows/data/tokenize.h"

namespace bellows::data {

/// How texts become the tokens that a model reads: the pieces of a text between a start and an end mark.
struct TextTokenizer {
  Tokenizer pieces;             ///< without the marks
  std::vector<int64_t> before;  ///< in front of each text
  std::vector<int64_t> after;   ///< behind it
  int64_t vocabulary = 0;       ///< all tokens are below it
  bool pads = true;             ///< token 0 is padding, and in no text
  std::string description;      ///< "WordPiece, 30522 words, lower case (bert/vocab.txt)"

  /// The text with its marks.
  std::vector<int64_t> encode(std::string_view text) const;
};

/// Each byte is a token, 3 + its value; 2 stands before a text and 1 behind it. No file, no unknown words, any language and
/// encoding; texts are four to five times as long as with words.
/// Ref: arXiv:2105.13626 (ByT5, whose numbers these are; its 2 is unused)
TextTokenizer byte_tokenizer();

/// BERT's: words, and where one is not in the vocabulary the longest pieces that are, between [CLS] and [SEP]. A vocabulary
/// without capital letters folds case and accents, one with them does neither. Marks that are written out in a text are text.
/// Params:   path – vocab.txt of a model, a token a line; the first is [PAD]
/// Numerics: equal to transformers' BertTokenizerFast (tests/data/text/tokenizer_test.cpp), by the characters of
///           Unicode 14
/// Throws:   c10::ValueError – no such file, a token twice, one of the marks missing; pieces() – no UTF-8
/// Ref:      transformers.BertTokenizer; arXiv:1810.04805
TextTokenizer wordpiece_tokenizer(const std::string& path);

/// GPT-2's kind: a text falls into words, numbers and what is between by GPT-2's pattern, and the bytes of each are merged pair by
/// pair. Any text is known. Behind each text comes <|endoftext|> where there is such a mark; marks that a template puts around
/// texts come in its place. Marks that are written out in a text are text.
/// Params:   path – Hugging Face's tokenizer.json with a model of type BPE and a pre-tokenizer of type ByteLevel
/// Numerics: equal to the package tokenizers (tests/data/text/bpe_test.cpp), by the characters of Unicode 14
/// Throws:   c10::ValueError – no such file, no JSON, another kind of tokenizer or an option that is not read here: which one and what
///           was found; a merge of unknown tokens, a byte without a token; pieces() – no UTF-8
/// Ref:      Radford et al., "Language Models are Unsupervised Multitask Learners", 2019; huggingface/tokenizers, BPE and ByteLevel
TextTokenizer bpe_tokenizer(const std::string& path);

/// What a recipe's `tokenizer` means: "bytes", the path of a tokenizer.json, which is anything that ends in .json, or of a vocab.txt.
/// Throws: c10::ValueError – as bpe_tokenizer() and wordpiece_tokenizer()
TextTokenizer open_tokenizer(const std::string& name);

}  // namespace bellows::data
