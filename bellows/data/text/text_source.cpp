#include "bellows/data/text/text_source.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <array>

#include "bellows/core/error.h"
#include "bellows/data/order/integers.h"
#include "bellows/data/picture.h"
#include "bellows/io/bytes.h"
#include "bellows/kernels/parallel.h"

namespace bellows::data {

namespace {

constexpr uint8_t seen_whole = 1, seen_cut = 2;

bool is_tokens(const Field& field) {
  return field.is_array && field.sizes.size() == 1 && integer_count(field) >= 0;
}

bool is_label(std::string_view name) {
  return name == "label" || name == "cls" || name == "json";
}

/// Memory that a sample's fields point to.
struct TextValues {
  std::vector<int64_t> tokens, types;
  int64_t count = 0;
  std::shared_ptr<const void> owner;  // of the other fields
};

/// Params: origin – the field they were made from, for the location in messages
Field integers(std::string_view name, std::span<const int64_t> values, c10::IntArrayRef sizes, const Field& origin) {
  Field field;
  field.name = name;
  field.offset = origin.offset;
  field.bytes = std::as_bytes(values);
  field.is_array = true;
  field.dtype = c10::ScalarType::Long;
  field.sizes = sizes;
  return field;
}

}  // namespace

std::string find_text_field(const Sample& sample, bool tokens) {
  const std::array<const char*, 2> usual =
      tokens ? std::array{"input_ids", "tokens"} : std::array<const char*, 2>{"txt", "text"};
  std::vector<std::string> found;
  bool has_text = false;
  for (const Field& field : sample.fields) {
    if (is_label(field.name) || is_picture(field)) continue;  // its bytes could pass for text
    has_text = has_text || !field.is_array;
    if (tokens ? !is_tokens(field) : field.is_array) continue;
    if (field.name == usual[0] || field.name == usual[1]) return std::string(field.name);
    found.emplace_back(field.name);
  }
  TORCH_CHECK_VALUE(!found.empty() || !tokens || !has_text, "text: ", sample.where(), " contains ",
                    sample.field_names(), ", but a text needs a tokenizer. Set tokenizer to bytes, or to a vocab.txt.");
  TORCH_CHECK_VALUE(found.size() == 1, "text: ", sample.where(), found.empty() ? " has no " : " has several ",
                    tokens ? "lists of tokens" : "texts", "; it contains ", sample.field_names(),
                    ". Set text_field to the field with the text.");
  return found.front();
}

TextSource::TextSource(SourcePtr source, TextOptions options)
    : origin_(std::move(source)), options_(std::move(options)) {
  TORCH_CHECK_VALUE(origin_, "text: expected a source, got null.");
  for (int64_t i = 0; options_.field.empty() && i < origin_->size(); ++i) {
    try {
      options_.field = find_text_field(origin_->read(i), !options_.tokenizer);
    } catch (const c10::ValueError&) {  // possibly a bad sample
      if (i + 1 == std::min<int64_t>(origin_->size(), 100)) throw;
    }
  }
  most_pieces_ = options_.max_tokens;
  source_ = origin_;
  tokens_field_ = options_.field;
  if (!options_.pair_field.empty()) {
    TORCH_CHECK_VALUE(options_.tokenizer, "text: pairs of texts need a tokenizer. Set tokenizer to a vocab.txt.");
    options_.tokenizer->encode_pair("", "", options_.max_tokens);  // checks the options
    most_pieces_ = options_.max_tokens;
  } else if (options_.tokenizer) {
    const TextTokenizer& tokenizer = *options_.tokenizer;
    most_pieces_ -= static_cast<int64_t>(tokenizer.before.size() + tokenizer.after.size());
    source_ = tokenized(origin_, tokenizer.pieces, options_.field);
    tokens_field_ = "tokens";
  }
  TORCH_CHECK_VALUE(options_.max_tokens == 0 || most_pieces_ > 0,
                    "text: max_length must be larger than the number of special tokens of ",
                    options_.tokenizer ? options_.tokenizer->description : "the text", ", got ", options_.max_tokens,
                    ".");
  seen_ = std::make_unique<std::atomic<uint8_t>[]>(static_cast<size_t>(origin_->id_bound()));
}

void TextSource::take_tokens(const Field& field, const Sample& sample, std::vector<int64_t>& tokens) const {
  const auto refuse = [&](const auto&... words) { TORCH_CHECK_VALUE(false, "text: ", sample.where(&field), words...); };
  const int64_t count = integer_count(field);
  if (count == 0) refuse(": the text is empty", options_.tokenizer ? ", or it contains no tokens." : ".");
  const bool cut = options_.max_tokens > 0 && count > most_pieces_;
  const int64_t kept = cut ? most_pieces_ : count;
  if (options_.tokenizer) tokens = options_.tokenizer->before;
  const size_t begin = tokens.size();
  tokens.resize(begin + static_cast<size_t>(kept));
  copy_integers(field, 0, kept, tokens.data() + begin);
  if (options_.tokenizer)
    tokens.insert(tokens.end(), options_.tokenizer->after.begin(), options_.tokenizer->after.end());
  check_vocabulary(field, sample, tokens);
  mark(sample.id, cut);
}

void TextSource::check_vocabulary(const Field& field, const Sample& sample, const std::vector<int64_t>& tokens) const {
  const auto [low, high] = std::ranges::minmax_element(tokens);
  const int64_t wrong = *low < 0 ? *low : *high;
  TORCH_CHECK_VALUE(*low >= 0 && (options_.vocabulary == 0 || *high < options_.vocabulary),
                    "text: ", sample.where(&field), ": expected tokens from 0 to ", options_.vocabulary - 1, ", got ",
                    wrong, ". The data was tokenized with a vocabulary that the model does not have.");
}

void TextSource::read_pair(Sample& sample) const {
  const Field* texts[2] = {sample.find(options_.field), sample.find(options_.pair_field)};
  for (const int number : {0, 1}) {
    const Field* text = texts[number];
    TORCH_CHECK_VALUE(
        text && !text->is_array, "text: ", sample.where(text), text ? " has numbers in \"" : " has no text \"",
        number == 0 ? options_.field : options_.pair_field, "\"; it contains ", sample.field_names(), ".");
  }
  TextTokenizer::Pair pair;
  try {
    pair = options_.tokenizer->encode_pair(io::as_text(texts[0]->bytes), io::as_text(texts[1]->bytes),
                                           options_.max_tokens);
  } catch (const c10::ValueError& error) {
    TORCH_CHECK_VALUE(false, "text: ", sample.where(texts[0]), ": ", user_message(error));
  }
  check_vocabulary(*texts[0], sample, pair.tokens);
  mark(sample.id, pair.cut);
  auto values = std::make_shared<TextValues>();
  values->tokens = std::move(pair.tokens);
  values->types = std::move(pair.types);
  values->count = static_cast<int64_t>(values->tokens.size());
  std::vector<Field> fields;
  for (const Field& field : sample.fields) {
    if (options_.labels && is_label(field.name) && &field != texts[0] && &field != texts[1]) fields.push_back(field);
  }
  fields.push_back(integers("tokens", values->tokens, c10::IntArrayRef(&values->count, 1), *texts[0]));
  fields.push_back(integers("token_type_ids", values->types, c10::IntArrayRef(&values->count, 1), *texts[1]));
  sample.fields = std::move(fields);
  values->owner = std::move(sample.owner);
  sample.owner = std::move(values);
}

void TextSource::mark(int64_t id, bool cut) const {
  std::atomic<uint8_t>& seen = seen_[static_cast<size_t>(id)];
  if (seen.load(std::memory_order_relaxed) == 0) seen.store(cut ? seen_cut : seen_whole, std::memory_order_relaxed);
}

void TextSource::read(int64_t index, Sample& sample) const {
  source_->read(index, sample);
  if (!options_.pair_field.empty()) return read_pair(sample);
  const Field* text = sample.find(tokens_field_);
  TORCH_CHECK_VALUE(text, "text: ", sample.where(), " has no \"", tokens_field_, "\"; it contains ",
                    sample.field_names(), ".");
  TORCH_CHECK_VALUE(is_tokens(*text), "text: ", sample.where(text), ": \"", tokens_field_,
                    text->is_array ? "\" is not a list of integers."
                                   : "\" is text, so it needs a tokenizer. Set tokenizer to bytes, or to a vocab.txt.");
  auto values = std::make_shared<TextValues>();
  take_tokens(*text, sample, values->tokens);
  values->count = static_cast<int64_t>(values->tokens.size());
  std::vector<Field> fields;
  for (const Field& field : sample.fields) {
    if (options_.labels && is_label(field.name) && &field != text) fields.push_back(field);
  }
  fields.push_back(integers("tokens", values->tokens, c10::IntArrayRef(&values->count, 1), *text));
  sample.fields = std::move(fields);
  values->owner = std::move(sample.owner);
  sample.owner = std::move(values);
}

std::vector<int64_t> TextSource::lengths() const {
  std::vector<int64_t> result(static_cast<size_t>(size()));
  constexpr int64_t at_a_time = 64;
  kernels::parallel_chunks((size() + at_a_time - 1) / at_a_time, [&](int64_t chunk) {
    Sample sample;
    for (int64_t i = chunk * at_a_time; i < std::min(size(), (chunk + 1) * at_a_time); ++i) {
      try {
        read(i, sample);
        result[static_cast<size_t>(i)] = sample.find("tokens")->sizes[0];
      } catch (const c10::ValueError&) {  // training reports it
      }
    }
  });
  return result;
}

TextCounts TextSource::counts() const {
  TextCounts counts;
  for (int64_t i = 0; i < id_bound(); ++i) {
    const uint8_t seen = seen_[static_cast<size_t>(i)].load(std::memory_order_relaxed);
    counts.texts += seen != 0;
    counts.cut += seen == seen_cut;
  }
  return counts;
}

}  // namespace bellows::data
