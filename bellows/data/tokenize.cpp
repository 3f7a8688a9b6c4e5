#include "bellows/data/tokenize.h"

#include <c10/util/Exception.h>

#include "bellows/core/error.h"
#include "bellows/data/source_wrapper.h"
#include "bellows/data/step_error.h"
#include "bellows/io/bytes.h"

namespace bellows::data {

namespace {

class TokenizedSource final : public SourceWrapper {
 public:
  using Source::read;

  TokenizedSource(SourcePtr source, Tokenizer tokenizer, std::string field)
      : SourceWrapper(std::move(source)), tokenizer_(std::move(tokenizer)), field_(std::move(field)) {
    TORCH_CHECK_VALUE(inner() && tokenizer_, "tokenized: expected a source and a function, got ",
                      inner() ? "no function." : "no source.");
  }

  void read(int64_t index, Sample& sample) const override {
    inner()->read(index, sample);
    const Field* text = sample.find(field_);
    TORCH_CHECK_VALUE(text && !text->is_array, "tokenized: ", sample.where(text),
                      text ? " has numbers in \"" : " has no text \"", field_, "\".");
    TORCH_CHECK_VALUE(field_ == "tokens" || !sample.find("tokens"), "tokenized: ", sample.where(),
                      " has \"tokens\" already.");
    auto tokens = std::make_shared<Tokens>();
    run_step([] { return std::string("tokenize"); }, sample, [&] { tokens->values = run(sample, *text); });
    tokens->size = static_cast<int64_t>(tokens->values.size());
    Field& field = sample.fields[static_cast<size_t>(text - sample.fields.data())];
    field.name = "tokens";
    field.is_array = true;
    field.dtype = c10::ScalarType::Long;
    field.bytes = std::as_bytes(std::span(tokens->values));
    field.sizes = c10::IntArrayRef(&tokens->size, 1);
    tokens->owner = std::move(sample.owner);
    sample.owner = std::move(tokens);
  }

 private:
  struct Tokens {
    std::vector<int64_t> values;
    int64_t size = 0;
    std::shared_ptr<const void> owner;  // of the sample's other fields
  };

  std::vector<int64_t> run(const Sample& sample, const Field& text) const {
    try {
      return tokenizer_(io::as_text(text.bytes));
    } catch (const c10::ValueError& error) {
      TORCH_CHECK_VALUE(false, "tokenize: ", sample.where(&text), ": ", user_message(error));
    }
  }

  Tokenizer tokenizer_;
  std::string field_;
};

}  // namespace

SourcePtr tokenized(SourcePtr source, Tokenizer tokenizer, std::string field) {
  return std::make_shared<TokenizedSource>(std::move(source), std::move(tokenizer), std::move(field));
}

}  // namespace bellows::data
