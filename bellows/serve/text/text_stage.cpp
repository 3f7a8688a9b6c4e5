#include "bellows/serve/text/text_stage.h"

#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <utility>

#include "bellows/core/error.h"
#include "bellows/serve/request_error.h"
#include "bellows/serve/tensor_types.h"

namespace bellows::serve {

TextStage::TextStage(const TextOptions& options, std::vector<TensorSpec> inputs)
    : inputs_(std::move(inputs)), tokenizer_(data::open_tokenizer(options.tokenizer)) {
  std::string names;
  for (const TensorSpec& spec : inputs_) {
    roles_.push_back(role_of(spec.name));
    names += (names.empty() ? "" : ", ") + spec.name;
    TORCH_CHECK_VALUE((spec.dtype == c10::kLong || spec.dtype == c10::kInt) && spec.dims.size() == 1,
                      "parameters: tokenizer: the input \"", spec.name,
                      "\" of the model must have the data type TYPE_INT64 or TYPE_INT32 and the dims [-1], got ",
                      config_type_name(spec.dtype), " and ", shape_text(spec.dims), ".");
    TORCH_CHECK_VALUE(spec.dims == inputs_.front().dims,
                      "parameters: tokenizer: the inputs of the model must have the same "
                      "dims, but \"",
                      spec.name, "\" has ", shape_text(spec.dims), ", and \"", inputs_.front().name, "\" has ",
                      shape_text(inputs_.front().dims), ".");
  }
  has_mask_ = std::ranges::count(roles_, Role::mask) > 0;
  TORCH_CHECK_VALUE(
      std::ranges::count(roles_, Role::tokens) == 1,
      "parameters: tokenizer: expected one input for tokens. Other inputs must have mask, type or position "
      "in their names. Inputs of the model: ",
      names, ".");
  length_ = inputs_.front().dims.front();
  const int64_t most =
      length_ < 0 || (options.max_length > 0 && options.max_length < length_) ? options.max_length : length_;
  if (most == 0) return;
  const auto special = static_cast<int64_t>(tokenizer_.before.size() + tokenizer_.after.size());
  TORCH_CHECK_VALUE(most > special, "parameters: tokenizer_max_length: expected more than the ", special,
                    " special tokens, got ", most, ".");
  max_pieces_ = static_cast<size_t>(most - special);
}

TextStage::Role TextStage::role_of(const std::string& name) const {
  const auto contains = [&](const char* word) { return name.find(word) != std::string::npos; };
  if (contains("mask")) return Role::mask;
  if (contains("type")) return Role::types;
  if (contains("position")) return Role::positions;
  return Role::tokens;
}

std::vector<int64_t> TextStage::tokens_of(const std::string& text) const {
  std::vector<int64_t> pieces = tokenizer_.pieces(text);
  if (max_pieces_ > 0 && pieces.size() > max_pieces_) pieces.resize(max_pieces_);
  std::vector<int64_t> tokens = tokenizer_.before;
  tokens.insert(tokens.end(), pieces.begin(), pieces.end());
  tokens.insert(tokens.end(), tokenizer_.after.begin(), tokenizer_.after.end());
  return tokens;
}

at::Tensor TextStage::input(size_t index, const std::vector<std::vector<int64_t>>& tokens, int64_t length) const {
  at::Tensor tensor = at::zeros({static_cast<int64_t>(tokens.size()), length}, c10::kLong);
  auto* row = static_cast<int64_t*>(tensor.mutable_data_ptr());
  for (const std::vector<int64_t>& one : tokens) {
    for (size_t i = 0; i < one.size(); ++i) {
      switch (roles_[index]) {
        case Role::tokens:
          row[i] = one[i];
          break;
        case Role::mask:
          row[i] = 1;
          break;
        case Role::types:
          break;
        case Role::positions:
          row[i] = static_cast<int64_t>(i);
          break;
      }
    }
    row += length;
  }
  return tensor.to(inputs_[index].dtype);
}

std::vector<at::Tensor> TextStage::inputs_of(const BytesTensor& texts) const {
  std::vector<std::vector<int64_t>> tokens;
  size_t longest = static_cast<size_t>(std::max<int64_t>(length_, 0)), shortest = SIZE_MAX;
  for (const std::string& text : texts.values) {
    try {
      tokens.push_back(tokens_of(text));
    } catch (const c10::ValueError& error) {
      throw RequestError(status_bad_request, c10::str("text ", tokens.size(), ": ", user_message(error)));
    }
    if (tokens.back().empty())
      throw RequestError(status_bad_request, c10::str("text ", tokens.size() - 1, " contains no tokens."));
    longest = std::max(longest, tokens.back().size());
    shortest = std::min(shortest, tokens.back().size());
  }
  if (shortest < longest && !can_pad())
    throw RequestError(status_bad_request,
                       c10::str("the texts have ", shortest, " to ", longest,
                                " tokens, but the model has no attention mask for padding. Send each "
                                "text in its own request."));
  std::vector<at::Tensor> inputs;
  for (size_t i = 0; i < inputs_.size(); ++i) inputs.push_back(input(i, tokens, static_cast<int64_t>(longest)));
  return inputs;
}

TensorSpec text_input(const std::vector<TensorSpec>& stated) {
  if (stated.empty()) return {.name = "text", .dtype = bytes_dtype, .dims = {1}};
  const TensorSpec& spec = stated.front();
  TORCH_CHECK_VALUE(stated.size() == 1 && spec.dtype == bytes_dtype && spec.dims == std::vector<int64_t>{1},
                    "parameters: tokenizer: expected one input with the data type TYPE_STRING and the dims [1], or no "
                    "input.");
  return spec;
}

}  // namespace bellows::serve
