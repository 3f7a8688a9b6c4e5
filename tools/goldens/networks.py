"""Writes the transformers and U-Nets of tests/goldens/models from transformers and PyTorch: python tools/goldens/networks.py

Weights come from a formula (bench/peers/formula_weights.py). networks.safetensors holds, in float64, for each case NAME: NAME.input,
NAME.output, and NAME.grad.PARAMETER of the sum of the output times NAME.dy; for the U-Nets, in training, also NAME.buffer.BUFFER after
the pass. NAME.safetensors and NAME.config.json are files as save_pretrained() writes them. Which options a case has stands here and, under the same name, in
tests/models/networks_golden_test.cpp.
"""

import math
import pathlib
import sys
import tempfile

import safetensors.torch
import torch
import transformers
from torch import nn

root = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(root / "bench" / "peers"))
import formula_weights as formula  # noqa: E402
from unet import UNet  # noqa: E402

out = root / "tests" / "goldens" / "models"
metadata = {"torch": torch.__version__, "transformers": transformers.__version__}
tensors = {}

bert_config = transformers.BertConfig(
    vocab_size=30, hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=12, max_position_embeddings=12, num_labels=3)
distilbert_config = transformers.DistilBertConfig(
    vocab_size=30, dim=8, n_layers=2, n_heads=2, hidden_dim=12, max_position_embeddings=12, num_labels=3)
gpt2_config = transformers.GPT2Config(vocab_size=30, n_positions=12, n_embd=8, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0)


def case(name, net, x, forward=None):
    net = formula.set_formula_weights(net).double()
    y = (forward or net)(x)
    dy = formula.uniform(f"{name}.dy", tuple(y.shape))
    (y * dy).sum().backward()
    tensors.update({f"{name}.input": x, f"{name}.output": y.detach(), f"{name}.dy": dy})
    tensors.update({f"{name}.grad.{key}": p.grad for key, p in net.named_parameters() if p.grad is not None})


def save(name, net):
    with tempfile.TemporaryDirectory() as folder:
        formula.set_formula_weights(net).save_pretrained(folder)
        for suffix, file in (("safetensors", "model.safetensors"), ("config.json", "config.json")):
            (out / f"{name}.{suffix}").write_bytes((pathlib.Path(folder) / file).read_bytes())


def texts():
    """Ids [3, 9], of which the second and third sample end in padding, attention mask and token types."""
    ids = formula.labels("ids", 27, 29).view(3, 9) + 1
    mask = torch.ones_like(ids)
    mask[1, 6:] = 0
    mask[2, 2:] = 0
    types = (torch.arange(9) >= 4).long().expand(3, 9)
    return torch.stack([ids * mask, mask, types], 1)


def transformers_cases():
    x = texts()

    def reading(net, pick=lambda y: y.logits):
        def forward(t):
            more = {"token_type_ids": t[:, 2]} if t.shape[1] > 2 else {}
            return pick(net(input_ids=t[:, 0], attention_mask=t[:, 1], **more))
        return forward

    for name, kind in (("bert_classifier", transformers.BertForSequenceClassification), ("bert_masked_lm", transformers.BertForMaskedLM)):
        net = kind(bert_config).eval()
        case(name, net, x, reading(net))
    net = transformers.BertModel(bert_config).eval()
    case("bert_hidden", net, x, reading(net, lambda y: y.last_hidden_state))
    net = transformers.BertModel(bert_config).eval()
    case("bert_pooled", net, x, reading(net, lambda y: y.pooler_output))
    for name, kind in (("distilbert_classifier", transformers.DistilBertForSequenceClassification),
                       ("distilbert_masked_lm", transformers.DistilBertForMaskedLM)):
        net = kind(distilbert_config).eval()
        case(name, net, x[:, :2].contiguous(), reading(net))
    net = transformers.GPT2LMHeadModel(gpt2_config).eval()
    case("gpt", net, x[:, 0].contiguous(), lambda t: net(input_ids=t).logits)
    save("bert_masked_lm", transformers.BertForMaskedLM(bert_config))
    save("distilbert_classifier", transformers.DistilBertForSequenceClassification(distilbert_config))
    save("gpt", transformers.GPT2LMHeadModel(gpt2_config))


def unets():
    for name, bilinear in (("unet", False), ("unet_bilinear", True)):
        net = UNet(bilinear=bilinear, channels=4, depth=2).train()
        case(name, net, formula.uniform("image", (2, 3, 11, 14)))
        tensors.update({f"{name}.buffer.{key}": b.clone() for key, b in net.named_buffers()})


class Series(nn.Module):
    """torch.nn.Transformer over the last known steps and zeros for those to come."""

    def __init__(self, features, outputs, horizon, start, pick, d=8):
        super().__init__()
        self.input_projection = nn.Linear(features, d)
        self.target_projection = nn.Linear(features, d)
        self.transformer = nn.Transformer(d, 2, 2, 1, 12, batch_first=True)
        self.output = nn.Linear(d, outputs)
        self.horizon, self.start, self.pick, self.d = horizon, start, pick, d

    def positions(self, first, steps):
        at = torch.arange(first, first + steps).double().unsqueeze(1)
        rate = torch.exp(torch.arange(0, self.d, 2).double() * (-math.log(10000.0) / self.d))
        table = torch.zeros(steps, self.d, dtype=torch.float64)
        table[:, 0::2] = torch.sin(at * rate)
        table[:, 1::2] = torch.cos(at * rate)
        return table

    def forward(self, x):
        known = x.shape[1]
        queries = torch.cat([x[:, known - self.start:], torch.zeros(x.shape[0], self.horizon, x.shape[2], dtype=x.dtype)], 1)
        source = self.input_projection(x) + self.positions(0, known)
        target = self.target_projection(queries) + self.positions(known - self.start, queries.shape[1])
        mask = nn.Transformer.generate_square_subsequent_mask(queries.shape[1], dtype=x.dtype)
        return self.pick(self.output(self.transformer(source, target, tgt_mask=mask)))


def series():
    x = formula.uniform("series", (3, 7, 5))
    case("forecast", Series(5, 2, 4, 3, lambda y: y[:, 3:]).eval(), x)
    case("series_classifier", Series(5, 3, 1, 1, lambda y: y[:, -1]).eval(), x)


if __name__ == "__main__":
    transformers_cases()
    unets()
    series()
    contiguous = {key: value.contiguous().clone() for key, value in tensors.items()}
    safetensors.torch.save_file(contiguous, out / "networks.safetensors", metadata=metadata)
