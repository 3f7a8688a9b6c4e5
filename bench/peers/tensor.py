"""Tensor-parallel steps in Python PyTorch on several ranks: the peer of bench/tensor/bench_tensor.cpp. Rank 0 starts the
other ranks, reads the commands, and passes them on. The commands are `losses VARIANT N` and `run N`."""

import argparse
import contextlib

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)

from formula_weights import labels, set_formula_weights
from rank_protocol import join_ranks, serve_ranks

LAYERS, WIDTH, HEADS, INNER, VOCABULARY = 4, 256, 8, 1024, 16_000
SEQUENCES, LENGTH = 4, 128


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.output = nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, INNER), nn.Linear(INNER, WIDTH)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.down(F.gelu(self.up(self.norm2(x))))

    def attention(self, y):
        heads = [layer(y).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2) for layer in (self.query, self.key, self.value)]
        return self.output(F.scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2).flatten(2))


class LanguageModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.place = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))

    def forward(self, ids):
        x = self.embed(ids) + self.place(torch.arange(ids.size(1)))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def divide(net, variant, mesh):
    """As in PyTorch's tutorial of tensor parallelism. With sequence parallelism, activations between the layers are
    slices of the sequence."""
    sequence = variant == "sequence"
    # The output of norms is divided along the sequence. The layers that read it gather it.
    column = ColwiseParallel(input_layouts=Shard(1)) if sequence else ColwiseParallel()
    row = RowwiseParallel(output_layouts=Shard(1)) if sequence else RowwiseParallel()
    for block in net.blocks:
        plan = {"query": column, "key": column, "value": column, "output": row, "up": column, "down": row}
        if sequence:
            plan |= {"norm1": SequenceParallel(), "norm2": SequenceParallel()}
        parallelize_module(block, mesh, plan)
    if sequence:
        first = PrepareModuleInput(
            input_layouts=Replicate(), desired_input_layouts=Shard(1), use_local_output=True
        )
        parallelize_module(net.blocks[0], mesh, first)
        parallelize_module(net, mesh, {"norm": SequenceParallel()})
    if variant != "layers":
        parallelize_module(
            net,
            mesh,
            {
                "embed": RowwiseParallel(input_layouts=Replicate()),
                "head": ColwiseParallel(
                    input_layouts=Shard(1) if sequence else Replicate(),
                    output_layouts=Shard(-1),
                    use_local_output=False,
                ),
            },
        )
    return net


class Step:
    def __init__(self, variant, flags):
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        count = SEQUENCES * LENGTH
        self.x = labels("ids", count, VOCABULARY).view(SEQUENCES, LENGTH)
        self.y = labels("labels", count, VOCABULARY)
        self.net = divide(set_formula_weights(LanguageModel()).train(), variant, mesh)
        self.loss_scope = contextlib.nullcontext if variant == "layers" else loss_parallel
        # DTensors and ordinary parameters need lists of their own.
        groups = {}
        for parameter in self.net.parameters():
            groups.setdefault(type(parameter.data), []).append(parameter)
        self.optimizers = [torch.optim.AdamW(group, lr=flags.lr, foreach=True) for group in groups.values()]

    def __call__(self):
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        with self.loss_scope():
            loss = F.cross_entropy(self.net(self.x).flatten(0, 1), self.y)
            loss.backward()
        for optimizer in self.optimizers:
            optimizer.step()
        return loss.full_tensor() if isinstance(loss, DTensor) else loss


def main():
    flags = argparse.ArgumentParser()
    flags.add_argument("--lr", type=float, required=True)
    flags = flags.parse_args()
    others = join_ranks()
    chosen = {}

    def losses(variant, count):
        chosen.clear()
        chosen["step"] = Step(variant, flags)
        return [chosen["step"]().item() for _ in range(int(count))]

    serve_ranks(others, lambda: chosen["step"](), {"losses": losses})


if __name__ == "__main__":
    main()
