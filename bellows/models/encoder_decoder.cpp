#include "bellows/models/encoder_decoder.h"

#include <cmath>

#include "bellows/core/exporting.h"
#include "bellows/models/layers_impl.h"

namespace bellows::models {

namespace {

using layers::LayerNorm;
using layers::Linear;

constexpr double series_eps = 1e-5;

/// Attention with the parameters of torch.nn.MultiheadAttention.
class SeriesAttention final : public torch::nn::Module {
 public:
  explicit SeriesAttention(const EncoderDecoderOptions& o)
      : torch::nn::Module("MultiheadAttention"), head_size_(o.d_model / o.nhead), dropout_(o.dropout) {
    weight_ = register_parameter("in_proj_weight", torch::empty({3 * o.d_model, o.d_model}));
    bias_ = register_parameter("in_proj_bias", torch::zeros({3 * o.d_model}));
    out_ = register_module("out_proj", Linear(o.d_model, o.d_model));
    const torch::NoGradGuard no_grad;
    out_->bias.zero_();
  }

  /// Self-attention: causal, or to all steps that the mask allows.
  at::Tensor forward(const at::Tensor& x, bool causal, const at::Tensor& mask) {
    const auto qkv = at::linear(x, weight_, bias_).chunk(3, 2);
    return attend(qkv[0], qkv[1], qkv[2], causal, causal ? at::Tensor() : mask);
  }
  /// Cross-attention to the encoder's output.
  at::Tensor forward(const at::Tensor& x, const at::Tensor& memory, const at::Tensor& mask) {
    const int64_t width = weight_.size(0) / 3;
    const at::Tensor q = at::linear(x, weight_.slice(0, 0, width), bias_.slice(0, 0, width));
    const auto kv = at::linear(memory, weight_.slice(0, width), bias_.slice(0, width)).chunk(2, 2);
    return attend(q, kv[0], kv[1], false, mask);
  }

 private:
  at::Tensor attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, bool causal,
                    const at::Tensor& mask) {
    return out_->forward(layers::attention(q, k, v, head_size_, mask, causal, is_training() ? dropout_ : 0));
  }

  at::Tensor weight_, bias_;
  Linear out_{nullptr};
  int64_t head_size_;
  double dropout_;
};

/// A layer of the encoder or decoder; the decoder has an additional attention and norm.
class SeriesLayer final : public torch::nn::Module {
 public:
  SeriesLayer(const EncoderDecoderOptions& o, bool decoder)
      : torch::nn::Module(decoder ? "TransformerDecoderLayer" : "TransformerEncoderLayer"),
        activation_(layers::activation_of("encoder_decoder", o.activation)),
        dropout_(o.dropout) {
    self_attn_ = register_module("self_attn", std::make_shared<SeriesAttention>(o));
    if (decoder) multihead_attn_ = register_module("multihead_attn", std::make_shared<SeriesAttention>(o));
    linear1_ = register_module("linear1", Linear(o.d_model, o.dim_feedforward));
    linear2_ = register_module("linear2", Linear(o.dim_feedforward, o.d_model));
    for (int i = 1; i <= (decoder ? 3 : 2); ++i) {
      norms_.push_back(register_module("norm" + std::to_string(i), LayerNorm(o.d_model, series_eps, o.fused)));
    }
  }

  /// Params: memory – output of the encoder; undefined in the encoder itself
  ///         mask – known steps of the encoder [N, 1, 1, T]; undefined: all
  at::Tensor forward(const at::Tensor& x, const at::Tensor& memory, const at::Tensor& mask) {
    at::Tensor y = norms_[0]->forward(self_attn_->forward(x, /*causal=*/memory.defined(), mask), x, dropout_);
    if (memory.defined()) y = norms_[1]->forward(multihead_attn_->forward(y, memory, mask), y, dropout_);
    const at::Tensor inner = layers::activate(linear1_->forward(y), activation_);
    return norms_.back()->forward(linear2_->forward(at::dropout(inner, dropout_, is_training())), y, dropout_);
  }

 private:
  std::shared_ptr<SeriesAttention> self_attn_, multihead_attn_;
  Linear linear1_{nullptr}, linear2_{nullptr};
  std::vector<LayerNorm> norms_;
  layers::Activation activation_;
  double dropout_;
};

/// Positions: sines in the even columns, cosines in the odd ones: float64 [steps, width].
at::Tensor positions(int64_t steps, int64_t width, const at::TensorOptions& options) {
  const at::TensorOptions wide = options.dtype(at::kDouble);
  const at::Tensor rates = (at::arange(0, width, 2, wide) * (-std::log(10000.0) / static_cast<double>(width))).exp();
  const at::Tensor angles = at::arange(0, steps, wide).unsqueeze(1) * rates;
  return at::stack({angles.sin(), angles.cos()}, 2).flatten(1);
}

/// Series with their lengths, without NaN padding.
struct KnownSteps {
  at::Tensor values;   ///< padding is 0
  at::Tensor lengths;  ///< [N]; undefined: no padding
  at::Tensor mask;     ///< [N, 1, 1, T], true: known; undefined: all
};

KnownSteps known_steps(const at::Tensor& x, int64_t least) {
  const at::Tensor known = x.detach().isnan().all(2).logical_not();
  if (x.size(0) == 0 || (x.is_cpu() && !is_exporting() && known.all().item<bool>())) return {x, {}, {}};
  const at::Tensor steps = at::arange(1, x.size(1) + 1, known.options().dtype(at::kLong));
  const at::Tensor lengths = (known * steps).amax(1);
  if (x.is_cpu() && !is_exporting()) {
    const auto shortest = lengths.min().item<int64_t>();
    TORCH_CHECK_VALUE(shortest >= least, "encoder_decoder: expected series of at least ", least,
                      " steps, got a series of ", shortest, " steps, padded with NaN to ", x.size(1),
                      " steps. Leave out the series, or set start_steps.");
  }
  const at::Tensor mask = steps.le(lengths.unsqueeze(1));  // a NaN before the end is kept
  return {at::where(mask.unsqueeze(2), x, at::zeros({}, x.options())), lengths, mask.unsqueeze(1).unsqueeze(1)};
}

class EncoderDecoder final : public torch::nn::Module, public layers::Blocks {
 public:
  explicit EncoderDecoder(const EncoderDecoderOptions& o) : options_(o) {
    input_projection_ = register_module("input_projection", Linear(o.in_features, o.d_model));
    target_projection_ = register_module("target_projection", Linear(o.in_features, o.d_model));
    auto transformer = register_module("transformer", std::make_shared<torch::nn::Module>("Transformer"));
    encoder_norm_ = add_stack(*transformer, "encoder", o.num_encoder_layers, encoder_);
    decoder_norm_ = add_stack(*transformer, "decoder", o.num_decoder_layers, decoder_);
    for (const at::Tensor& parameter : transformer->parameters()) {
      if (parameter.dim() > 1) torch::nn::init::xavier_uniform_(parameter);
    }
    output_ = register_module("output", Linear(o.d_model, o.num_classes > 0 ? o.num_classes : o.out_features));
  }

  at::Tensor forward(const at::Tensor& x) {
    const KnownSteps known = checked_steps(x);
    const at::Tensor all = all_positions(x);
    const at::Tensor memory = through(encoder_, encoder_norm_, history(known, all), {}, known.mask);
    return head(through(decoder_, decoder_norm_, queries(known, all), memory, known.mask));
  }

  /// The decoder's parts pass the memory and their output as one tensor, [N, T + steps of the decoder, d_model].
  std::vector<ModelPart> parts() override {
    using Inputs = std::vector<at::Tensor>;
    std::vector<ModelPart> result;
    const auto add = [&](const std::string& name, std::vector<const torch::nn::Module*> modules,
                         std::function<at::Tensor(const at::Tensor&, const KnownSteps&)> run) {
      result.push_back(
          {name, layers::tensors_of(modules), [this, run = std::move(run)](const at::Tensor& x, const Inputs& inputs) {
             return run(x, checked_steps(inputs.at(0)));
           }});
    };
    add("encoder.embedding", {input_projection_.get()},
        [this](const at::Tensor&, const KnownSteps& known) { return history(known, all_positions(known.values)); });
    for (size_t i = 0; i < encoder_.size(); ++i) {
      add("encoder." + std::to_string(i), {encoder_[i].get()},
          [this, layer = encoder_[i]](const at::Tensor& x, const KnownSteps& known) {
            return run_layer(layer, x, {}, known.mask);
          });
    }
    add("decoder.embedding", {encoder_norm_.get(), target_projection_.get()},
        [this](const at::Tensor& x, const KnownSteps& known) {
          return at::cat({encoder_norm_->forward(x), queries(known, all_positions(known.values))}, 1);
        });
    for (size_t i = 0; i < decoder_.size(); ++i) {
      add("decoder." + std::to_string(i), {decoder_[i].get()},
          [this, layer = decoder_[i]](const at::Tensor& x, const KnownSteps& known) {
            const int64_t steps = known.values.size(1);
            const at::Tensor memory = x.slice(1, 0, steps);
            return at::cat({memory, run_layer(layer, x.slice(1, steps), memory, known.mask)}, 1);
          });
    }
    add("head", {decoder_norm_.get(), output_.get()}, [this](const at::Tensor& x, const KnownSteps& known) {
      return head(decoder_norm_->forward(x.slice(1, known.values.size(1))));
    });
    return result;
  }

  int64_t block_count() const override { return options_.num_encoder_layers + options_.num_decoder_layers; }

 private:
  using Layers = std::vector<std::shared_ptr<SeriesLayer>>;

  LayerNorm add_stack(torch::nn::Module& transformer, const std::string& name, int64_t count, Layers& layers) {
    const bool decoder = name == "decoder";
    auto stack = transformer.register_module(
        name, std::make_shared<torch::nn::Module>(decoder ? "TransformerDecoder" : "TransformerEncoder"));
    auto list = stack->register_module("layers", torch::nn::ModuleList());
    for (int64_t i = 0; i < count; ++i) {
      layers.push_back(std::make_shared<SeriesLayer>(options_, decoder));
      list->push_back(layers.back());
    }
    return stack->register_module("norm", LayerNorm(options_.d_model, series_eps, options_.fused));
  }

  KnownSteps checked_steps(const at::Tensor& x) const {
    const int64_t least = std::max<int64_t>(options_.start_steps, 1);
    TORCH_CHECK_VALUE(x.dim() == 3 && x.size(2) == options_.in_features && x.size(1) >= least,
                      "encoder_decoder: expected series [N, T, ", options_.in_features, "] of at least ", least,
                      " steps, got ", x.sizes(), ".");
    return known_steps(x, least);
  }

  at::Tensor all_positions(const at::Tensor& x) const {
    return positions(x.size(1) + options_.horizon, options_.d_model, x.options());
  }

  /// The input of the encoder.
  at::Tensor history(const KnownSteps& known, const at::Tensor& all) {
    return embedded(known.values, input_projection_, all.slice(0, 0, known.values.size(1)));
  }

  at::Tensor head(const at::Tensor& y) {
    return output_->forward(options_.num_classes > 0 ? y.select(1, -1) : y.slice(1, options_.start_steps));
  }

  at::Tensor embedded(const at::Tensor& x, Linear& projection, const at::Tensor& step_positions) {
    const at::Tensor y = projection->forward(x);
    return at::dropout(y + step_positions.to(y.options()), options_.dropout, is_training());
  }

  /// The input of the decoder: the last steps of each series, and zeros for the future steps.
  at::Tensor queries(const KnownSteps& known, const at::Tensor& all) {
    const EncoderDecoderOptions& o = options_;
    const at::Tensor& x = known.values;
    const at::Tensor to_come = at::zeros({x.size(0), o.horizon, o.in_features}, x.options());
    if (!known.lengths.defined()) {
      const int64_t start = x.size(1) - o.start_steps;
      return embedded(at::cat({x.slice(1, start), to_come}, 1), target_projection_, all.slice(0, start));
    }
    const at::Tensor ahead = at::arange(o.start_steps + o.horizon, known.lengths.options());
    const at::Tensor steps = (known.lengths.unsqueeze(1) - o.start_steps + ahead).clamp_min(0);  // [N, start + horizon]
    const at::Tensor last = steps.slice(1, 0, o.start_steps).unsqueeze(2).expand({-1, -1, o.in_features});
    return embedded(at::cat({x.gather(1, last), to_come}, 1), target_projection_, all.index({steps}));
  }

  at::Tensor through(const Layers& layers, LayerNorm& norm, at::Tensor x, const at::Tensor& memory,
                     const at::Tensor& mask) {
    for (const auto& layer : layers) x = run_layer(layer, x, memory, mask);
    return norm->forward(x);
  }
  at::Tensor run_layer(const std::shared_ptr<SeriesLayer>& layer, const at::Tensor& x, const at::Tensor& memory,
                       const at::Tensor& mask) const {
    return run([layer, memory, mask](const at::Tensor& y) { return layer->forward(y, memory, mask); }, x);
  }

  EncoderDecoderOptions options_;
  Linear input_projection_{nullptr}, target_projection_{nullptr}, output_{nullptr};
  Layers encoder_, decoder_;
  LayerNorm encoder_norm_{nullptr}, decoder_norm_{nullptr};
};

}  // namespace

Model encoder_decoder(const EncoderDecoderOptions& options) {
  const EncoderDecoderOptions& o = options;
  layers::check_sizes("encoder_decoder",
                      {{"in_features", o.in_features},
                       {"out_features", o.out_features},
                       {"horizon", o.horizon},
                       {"d_model", o.d_model},
                       {"num_encoder_layers", o.num_encoder_layers},
                       {"num_decoder_layers", o.num_decoder_layers},
                       {"dim_feedforward", o.dim_feedforward}},
                      o.d_model, o.nhead);
  TORCH_CHECK_VALUE(o.num_classes >= 0 && o.start_steps >= 0,
                    "encoder_decoder: expected num_classes and start_steps of at least 0, got ", o.num_classes, " and ",
                    o.start_steps, ".");
  TORCH_CHECK_VALUE(o.d_model % 2 == 0,
                    "encoder_decoder: expected an even d_model, which sine and cosine positions need, got ", o.d_model,
                    ".");
  layers::check_dropout("encoder_decoder", {o.dropout});
  return Model::of(std::make_shared<EncoderDecoder>(options), "encoder_decoder");
}

}  // namespace bellows::models
