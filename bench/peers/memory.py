"""Training steps in Python PyTorch, plain and with torch.utils.checkpoint: the peer of bench/memory/bench_memory.cpp.
The commands are `losses N TASK VARIANT`, `time N TASK VARIANT` and `bytes TASK VARIANT`."""

import functools
import math
import time

import torch
import torch.nn.functional as F
import torchvision
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    checkpoint_sequential,
    create_selective_checkpoint_contexts,
)
from transformers import BertConfig, BertForSequenceClassification

from formula_weights import labels, set_formula_weights, uniform
from protocol import serve

CLASSES, LR = 10, 1e-5
SMALL_BERT = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 6, "intermediate_size": 1024}
PRODUCTS = {
    torch.ops.aten.mm.default,
    torch.ops.aten.addmm.default,
    torch.ops.aten.bmm.default,
    torch.ops.aten.convolution.default,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
}


def keep_products(_, op, *args, **kwargs):
    return CheckpointPolicy.MUST_SAVE if op in PRODUCTS else CheckpointPolicy.PREFER_RECOMPUTE


class Series(torch.nn.Module):
    """bellows::models::encoder_decoder for classes: torch.nn.Transformer with sine and cosine positions."""

    def __init__(self, features, start, width=128):
        super().__init__()
        self.start = start
        self.input_projection = torch.nn.Linear(features, width)
        self.target_projection = torch.nn.Linear(features, width)
        self.transformer = torch.nn.Transformer(width, 8, 3, 3, 512, dropout=0.0, batch_first=True)
        self.output = torch.nn.Linear(width, 2)
        rates = torch.exp(torch.arange(0, width, 2).double() * (-math.log(10000.0) / width))
        angles = torch.arange(64).double().unsqueeze(1) * rates
        self.positions = torch.stack([angles.sin(), angles.cos()], 2).flatten(1).float()

    def forward(self, x):
        steps = x.size(1)
        queries = torch.cat([x[:, steps - self.start :], torch.zeros_like(x[:, :1])], 1)
        source = self.input_projection(x) + self.positions[:steps]
        target = self.target_projection(queries) + self.positions[steps - self.start : steps + 1]
        mask = torch.nn.Transformer.generate_square_subsequent_mask(target.size(1))
        return self.output(self.transformer(source, target, tgt_mask=mask, tgt_is_causal=True)[:, -1])


class Task:
    def __init__(self, name):
        small = "small" in name
        self.is_series = name.startswith("series-")
        if self.is_series:
            batch = int(name.split("-")[1])
            self.net = Series(188, 12)
            self.x = uniform("input", (batch, 13, 188)).float()
            self.blocks = []
        elif "resnet" in name:
            batch, size = (8, 64) if small else (16, 224)
            make = torchvision.models.resnet18 if small else torchvision.models.resnet50
            self.net = make(num_classes=CLASSES)
            self.x = uniform("input", (batch, 3, size, size)).float()
            self.blocks = [block for n in (1, 2, 3, 4) for block in getattr(self.net, f"layer{n}")]
        else:
            batch, length = (4, 64) if small else (8, 128)
            config = BertConfig(
                **(SMALL_BERT if small else {}),
                hidden_dropout_prob=0,
                attention_probs_dropout_prob=0,
                num_labels=CLASSES,
            )
            self.net = BertForSequenceClassification(config)
            self.x = labels("ids", batch * length, config.vocab_size).view(batch, length)
            self.blocks = list(self.net.bert.encoder.layer)
        self.y = labels("labels", batch, 2 if self.is_series else CLASSES)
        self.net.train()
        self.plain_forwards = [block.forward for block in self.blocks]
        self.reset()

    def reset(self):
        set_formula_weights(self.net)
        self.optimizers = {}

    def optimizer(self, variant):
        kind = next((word for word in variant if word.startswith("fused-")), "adam" if self.is_series else "adamw")
        if kind not in self.optimizers:
            parameters = list(self.net.parameters())
            self.optimizers[kind] = {
                "adamw": lambda: torch.optim.AdamW(parameters, lr=LR, fused=True),
                "adam": lambda: torch.optim.Adam(parameters, lr=LR),
                "fused-adam": lambda: torch.optim.Adam(parameters, lr=LR, fused=True),
                "fused-sgd": lambda: torch.optim.SGD(parameters, lr=LR, momentum=0.9, fused=True),
            }[kind]()
        return self.optimizers[kind]

    def use(self, variant):
        extra = {}
        if "selective" in variant:
            extra["context_fn"] = functools.partial(create_selective_checkpoint_contexts, keep_products)
        for block, forward in zip(self.blocks, self.plain_forwards):
            if "checkpoint" in variant or "selective" in variant:
                block.forward = functools.partial(checkpoint, forward, use_reentrant=False, **extra)
            else:
                block.forward = forward

    def output(self, variant):
        net, x = self.net, self.x
        if "sequential" not in variant:
            return net(x)
        x = net.maxpool(net.relu(net.bn1(net.conv1(x))))
        x = checkpoint_sequential(self.blocks, len(self.blocks) // 2, x, use_reentrant=False)
        return net.fc(net.avgpool(x).flatten(1))

    def step(self, variant, behind_forward=lambda: None):
        self.use(variant)
        with torch.autocast("cpu", torch.bfloat16, enabled="autocast" in variant):
            output = self.output(variant)
            loss = F.cross_entropy(getattr(output, "logits", output), self.y)
        del output
        behind_forward()
        loss.backward()
        optimizer = self.optimizer(variant)
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()


def main():
    tasks = {}

    def task(name):
        if name not in tasks:
            tasks.clear()
            tasks[name] = Task(name)
        return tasks[name]

    def losses(count, name, *variant):
        task(name).reset()
        return [task(name).step(variant) for _ in range(int(count))]

    def timed(count, name, *variant):
        one = task(name)
        start = time.perf_counter()
        for _ in range(int(count)):
            one.step(variant)
        return [time.perf_counter() - start]

    def held(name, *variant):
        """Allocated bytes of a step, as recorded by the profiler: at the end of forward, and the maximum."""
        task(name).step(variant)
        marks = []
        with torch.profiler.profile(
            activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True, acc_events=True
        ) as profile:

            def mark():
                with torch.profiler.record_function("behind_forward"):
                    pass

            task(name).step(variant, mark)
        events = profile.profiler.kineto_results.events()
        marks = [event.start_ns() for event in events if event.name() == "behind_forward"]
        changes = sorted((event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]")
        current = peak = kept = 0
        for when, size in changes:
            current += size
            peak = max(peak, current)
            if when <= marks[0]:
                kept = current
        return [kept, peak]

    serve(lambda n: None, {"losses": losses, "time": timed, "bytes": held})


if __name__ == "__main__":
    main()
