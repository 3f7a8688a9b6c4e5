#include <cmath>

#include "bench/compile/ordinary_training.h"

namespace bellows::bench {
namespace {

namespace nn = torch::nn;
namespace F = torch::nn::functional;

constexpr int64_t words = 2000;

/// Batches of texts and of the words that follow. Shapes: [length, batch] and [length * batch]
std::vector<Batch> texts(int64_t length, int64_t batch) {
  return four_batches([=]() -> Batch {
    const at::Tensor text = torch::randint(0, words, {length + 1, batch}, at::kLong);
    return {text.slice(0, 0, length).contiguous(), text.slice(0, 1).reshape({-1}).clone()};
  });
}

struct WordLstmImpl : nn::Module {
  explicit WordLstmImpl(int64_t width)
      : embedding(register_module("embedding", nn::Embedding(words, width))),
        lstm(register_module("lstm", nn::LSTM(nn::LSTMOptions(width, width).num_layers(2).dropout(0.2)))),
        dropout(register_module("dropout", nn::Dropout(0.2))),
        decoder(register_module("decoder", nn::Linear(width, words))) {}

  /// Changes the state to the state after the text.
  at::Tensor forward(const at::Tensor& text, at::Tensor& hidden, at::Tensor& cell) {
    const auto [output, state] = lstm(dropout(embedding(text)), std::make_tuple(hidden, cell));
    hidden = std::get<0>(state).detach();
    cell = std::get<1>(state).detach();
    return decoder(dropout(output)).view({-1, words});
  }

  nn::Embedding embedding;
  nn::LSTM lstm;
  nn::Dropout dropout;
  nn::Linear decoder;
};
TORCH_MODULE(WordLstm);

TrainingRun word_lstm(uint64_t seed, bool autocast) {
  torch::manual_seed(seed);
  constexpr int64_t width = 200, batch_size = 20;
  WordLstm model(width);
  auto step = [=, optimizer = sgd(model->parameters(), 1), batches = texts(35, batch_size), turn = size_t{0},
               hidden = torch::zeros({2, batch_size, width}), cell = torch::zeros({2, batch_size, width})]() mutable {
    const Batch& batch = batches[turn++ % batches.size()];
    optimizer->zero_grad();
    at::Tensor loss;
    {
      const PlainAutocast guard(autocast);
      loss = F::cross_entropy(model->forward(batch[0], hidden, cell).to(at::kFloat), batch[1]);
    }
    hidden = hidden.to(at::kFloat), cell = cell.to(at::kFloat);
    loss.backward();
    nn::utils::clip_grad_norm_(model->parameters(), 0.25);
    optimizer->step();
    return loss.detach();
  };
  return {std::move(step), model->parameters()};
}

struct GruClassifierImpl : nn::Module {
  GruClassifierImpl()
      : embedding(register_module("embedding", nn::Embedding(words, 64))),
        gru(register_module("gru", nn::GRU(nn::GRUOptions(64, 128).batch_first(true)))),
        classes(register_module("classes", nn::Linear(128, 2))) {}

  at::Tensor forward(const at::Tensor& text) {
    const auto [output, state] = gru(embedding(text));
    return classes(state[0]);
  }

  nn::Embedding embedding;
  nn::GRU gru;
  nn::Linear classes;
};
TORCH_MODULE(GruClassifier);

/// Texts with a class. Shapes: [batch, length] and [batch]
std::vector<Batch> classified_texts(int64_t batch, int64_t length, int64_t classes) {
  return four_batches([=]() -> Batch {
    return {torch::randint(0, words, {batch, length}, at::kLong), torch::randint(0, classes, {batch}, at::kLong)};
  });
}

TrainingRun gru_classifier(uint64_t seed, bool autocast) {
  torch::manual_seed(seed);
  GruClassifier model;
  return training_run(model->parameters(), adam(model->parameters()), classified_texts(32, 50, 2), autocast,
                      [model](const Batch& batch) mutable {
                        return F::cross_entropy(model->forward(batch[0]).to(at::kFloat), batch[1]);
                      });
}

/// An LSTM cell that is written by hand.
struct HandLstmImpl : nn::Module {
  HandLstmImpl(int64_t in, int64_t width)
      : from_input(register_module("from_input", nn::Linear(in, 4 * width))),
        from_hidden(register_module("from_hidden", nn::Linear(width, 4 * width))) {}

  void forward(const at::Tensor& x, at::Tensor& hidden, at::Tensor& cell) {
    const auto gates = (from_input(x) + from_hidden(hidden)).chunk(4, 1);
    cell = torch::sigmoid(gates[1]) * cell + torch::sigmoid(gates[0]) * torch::tanh(gates[2]);
    hidden = torch::sigmoid(gates[3]) * torch::tanh(cell);
  }

  nn::Linear from_input, from_hidden;
};
TORCH_MODULE(HandLstm);

/// Predicts sine waves in double, as the sequence prediction example of PyTorch does.
TrainingRun sine_waves(uint64_t seed, bool) {
  torch::manual_seed(seed);
  constexpr int64_t waves = 32, length = 100, width = 51;
  HandLstm first(1, width), second(width, width);
  nn::Linear output(width, 1);
  nn::ModuleList all(first, second, output);
  all->to(at::kDouble);
  auto batches = four_batches([]() -> Batch {
    const at::Tensor start = torch::randint(-80, 80, {waves, 1}).to(at::kDouble);
    const at::Tensor wave = torch::sin((torch::arange(length + 1, at::kDouble) + start) / 20);
    return {wave.slice(1, 0, -1).contiguous(), wave.slice(1, 1).contiguous()};
  });
  return training_run(all->parameters(), adam(all->parameters()), std::move(batches), false,
                      [=](const Batch& batch) mutable {
                        at::Tensor h = torch::zeros({waves, width}, at::kDouble), c = h, h2 = h, c2 = h;
                        std::vector<at::Tensor> predicted;
                        for (const at::Tensor& x : batch[0].split(1, 1)) {
                          first->forward(x, h, c);
                          second->forward(h, h2, c2);
                          predicted.push_back(output(h2));
                        }
                        return F::mse_loss(torch::cat(predicted, 1), batch[1]);
                      });
}

struct MaskedTransformerImpl : nn::Module {
  MaskedTransformerImpl(int64_t length, int64_t width)
      : embedding(register_module("embedding", nn::Embedding(words, width))),
        encoder(register_module(
            "encoder", nn::TransformerEncoder(
                           nn::TransformerEncoderLayer(
                               nn::TransformerEncoderLayerOptions(width, 2).dim_feedforward(width).dropout(0.2)),
                           2))),
        dropout(register_module("dropout", nn::Dropout(0.2))),
        decoder(register_module("decoder", nn::Linear(width, words))),
        mask(register_buffer("mask", torch::full({length, length}, -INFINITY).triu(1))),
        positions(register_buffer("positions", 0.1 * torch::randn({length, 1, width}))),
        scale(std::sqrt(static_cast<double>(width))) {
    nn::init::uniform_(embedding->weight, -0.1, 0.1);
    nn::init::uniform_(decoder->weight, -0.1, 0.1);
  }

  at::Tensor forward(const at::Tensor& text) {
    const at::Tensor x = dropout(embedding(text) * scale + positions);
    return decoder(encoder(x, mask)).view({-1, words});
  }

  nn::Embedding embedding;
  nn::TransformerEncoder encoder;
  nn::Dropout dropout;
  nn::Linear decoder;
  at::Tensor mask, positions;
  double scale;
};
TORCH_MODULE(MaskedTransformer);

TrainingRun transformer_words(uint64_t seed, bool autocast) {
  torch::manual_seed(seed);
  constexpr int64_t length = 35;
  MaskedTransformer model(length, 200);
  return training_run(model->parameters(), sgd(model->parameters(), 0.1), texts(length, 20), autocast,
                      [model](const Batch& batch) mutable {
                        return F::cross_entropy(model->forward(batch[0]).to(at::kFloat), batch[1]);
                      });
}

/// Attention of several heads, from separate operators.
struct HandAttentionImpl : nn::Module {
  HandAttentionImpl(int64_t width, int64_t count, double drop)
      : heads(count),
        qkv(register_module("qkv", nn::Linear(width, 3 * width))),
        output(register_module("output", nn::Linear(width, width))),
        dropout(register_module("dropout", nn::Dropout(drop))) {}

  /// Shapes: x [batch, length, width], mask [batch, 1, 1, length], added to the scores, or undefined
  at::Tensor forward(const at::Tensor& x, const at::Tensor& mask) {
    const int64_t batch = x.size(0), length = x.size(1), width = x.size(2), head = width / heads;
    const auto parts = qkv(x).view({batch, length, 3, heads, head}).permute({2, 0, 3, 1, 4}).unbind(0);
    at::Tensor scores = torch::matmul(parts[0], parts[1].transpose(2, 3)) / std::sqrt(static_cast<double>(head));
    if (mask.defined()) scores = scores + mask;
    const at::Tensor weights = dropout(torch::softmax(scores, -1));
    return output(torch::matmul(weights, parts[2]).transpose(1, 2).reshape({batch, length, width}));
  }

  int64_t heads;
  nn::Linear qkv, output;
  nn::Dropout dropout;
};
TORCH_MODULE(HandAttention);

struct BlockImpl : nn::Module {
  BlockImpl(int64_t width, int64_t heads, int64_t inner, double drop, bool before)
      : norm_first(before),
        attention(register_module("attention", HandAttention(width, heads, drop))),
        feed_forward(register_module("feed_forward", nn::Sequential{nn::Linear(width, inner), nn::GELU(),
                                                                    nn::Dropout(drop), nn::Linear(inner, width)})),
        norm1(register_module("norm1", nn::LayerNorm(nn::LayerNormOptions({width})))),
        norm2(register_module("norm2", nn::LayerNorm(nn::LayerNormOptions({width})))),
        dropout(register_module("dropout", nn::Dropout(drop))) {}

  at::Tensor forward(at::Tensor x, const at::Tensor& mask) {
    if (norm_first) {
      x = x + dropout(attention(norm1(x), mask));
      return x + dropout(feed_forward->forward(norm2(x)));
    }
    x = norm1(x + dropout(attention(x, mask)));
    return norm2(x + dropout(feed_forward->forward(x)));
  }

  bool norm_first;  ///< norms before attention and feed-forward, as in later transformers, and not after them
  HandAttention attention;
  nn::Sequential feed_forward;
  nn::LayerNorm norm1, norm2;
  nn::Dropout dropout;
};
TORCH_MODULE(Block);

struct VisionTransformerImpl : nn::Module {
  explicit VisionTransformerImpl(int64_t width)
      : patches(register_module("patches", nn::Conv2d(nn::Conv2dOptions(3, width, 4).stride(4)))),
        first(register_parameter("first", torch::randn({1, 1, width}))),
        positions(register_parameter("positions", torch::randn({1, 65, width}))),
        norm(register_module("norm", nn::LayerNorm(nn::LayerNormOptions({width})))),
        dropout(register_module("dropout", nn::Dropout(0.1))),
        classes(register_module("classes", nn::Linear(width, 10))) {
    for (int i = 0; i < 4; ++i) blocks->push_back(Block(width, 8, 2 * width, 0.1, true));
    register_module("blocks", blocks);
  }

  /// Shapes: images [batch, 3, 32, 32]
  at::Tensor forward(const at::Tensor& images) {
    at::Tensor x = patches(images).flatten(2).transpose(1, 2);
    x = dropout(torch::cat({first.expand({x.size(0), -1, -1}), x}, 1) + positions);
    for (const auto& block : *blocks) x = block->as<Block>()->forward(x, {});
    return classes(norm(x.select(1, 0)));
  }

  nn::Conv2d patches;
  at::Tensor first, positions;
  nn::ModuleList blocks;
  nn::LayerNorm norm;
  nn::Dropout dropout;
  nn::Linear classes;
};
TORCH_MODULE(VisionTransformer);

TrainingRun vision_transformer(uint64_t seed, bool autocast) {
  torch::manual_seed(seed);
  VisionTransformer model(64);
  auto batches = four_batches([]() -> Batch {
    return {torch::rand({32, 3, 32, 32}), torch::randint(0, 10, {32}, at::kLong)};
  });
  return training_run(model->parameters(), adam(model->parameters()), std::move(batches), autocast,
                      [model](const Batch& batch) mutable {
                        return F::cross_entropy(model->forward(batch[0]).to(at::kFloat), batch[1]);
                      });
}

/// A small BERT. Word 0 is padding.
struct TextEncoderImpl : nn::Module {
  TextEncoderImpl(int64_t length, int64_t width)
      : embedding(register_module("embedding", nn::Embedding(words, width))),
        positions(register_module("positions", nn::Embedding(length, width))),
        norm(register_module("norm", nn::LayerNorm(nn::LayerNormOptions({width})))),
        dropout(register_module("dropout", nn::Dropout(0.1))),
        classes(register_module("classes", nn::Linear(width, 2))) {
    for (int i = 0; i < 4; ++i) blocks->push_back(Block(width, 4, 4 * width, 0.1, false));
    register_module("blocks", blocks);
  }

  at::Tensor forward(const at::Tensor& text) {
    const at::Tensor mask = text.eq(0).to(at::kFloat).mul(-1e9).unsqueeze(1).unsqueeze(1);
    at::Tensor x = dropout(norm(embedding(text) + positions(torch::arange(text.size(1)))));
    for (const auto& block : *blocks) x = block->as<Block>()->forward(x, mask);
    return classes(x.select(1, 0));
  }

  nn::Embedding embedding, positions;
  nn::ModuleList blocks;
  nn::LayerNorm norm;
  nn::Dropout dropout;
  nn::Linear classes;
};
TORCH_MODULE(TextEncoder);

TrainingRun text_encoder(uint64_t seed, bool autocast) {
  torch::manual_seed(seed);
  constexpr int64_t length = 64;
  TextEncoder model(length, 256);
  auto batches = classified_texts(16, length, 2);
  for (const Batch& batch : batches) batch[0].slice(1, length - 8).zero_();
  const auto optimizer = std::make_shared<torch::optim::AdamW>(model->parameters(), torch::optim::AdamWOptions(1e-4));
  return training_run(model->parameters(), optimizer, std::move(batches), autocast,
                      [model](const Batch& batch) mutable {
                        return F::cross_entropy(model->forward(batch[0]).to(at::kFloat), batch[1]);
                      });
}

}  // namespace

std::vector<OrdinaryProgram> sequence_programs() {
  return {
      {.name = "lstm", .about = "LSTM language model, 2x200, 35x20 words, SGD, clipping", .make = word_lstm},
      {.name = "gru", .about = "GRU classifier, 128 wide, 32x50 words, Adam", .make = gru_classifier},
      {.name = "lstm-double",
       .about = "LSTM cells by hand in double, 2x51, 100 steps, Adam",
       .make = sine_waves,
       .tolerance = 1e-6,
       .bf16_tolerance = 0},
      {.name = "transformer",
       .about = "transformer language model, causal mask, 200 wide, 35x20 words, SGD",
       .make = transformer_words},
      {.name = "vit",
       .about = "vision transformer, 64 wide, 8 heads, dropout, 32x65, Adam",
       .make = vision_transformer},
      {.name = "bert", .about = "text encoder, 256 wide, 4 heads, dropout, 16x64 words, AdamW", .make = text_encoder}};
}

std::vector<OrdinaryProgram> ordinary_programs() {
  std::vector<OrdinaryProgram> all = dense_programs();
  for (auto* more : {image_programs, sequence_programs}) {
    for (OrdinaryProgram& program : more()) all.push_back(std::move(program));
  }
  return all;
}

}  // namespace bellows::bench
