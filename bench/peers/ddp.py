"""Data parallel steps in Python PyTorch on several ranks: the peer of bench/ddp/bench_ddp.cpp. Rank 0 starts the other
ranks, reads the commands, and passes them on. The commands are `losses MODEL.STRATEGY N`, `resident MODEL.STRATEGY` and
`run N`."""

import argparse
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
import torchvision
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from transformers import BertConfig, BertForSequenceClassification

from formula_weights import labels, set_formula_weights, uniform
from rank_protocol import join_ranks, serve_ranks

IMAGES, SIZE, CLASSES = 32, 64, 1000
SEQUENCES, LENGTH, FEATURES, DIGITS = 8, 128, 64, 10
BERT = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 6, "intermediate_size": 1024}


def part(whole):
    return whole.chunk(dist.get_world_size())[dist.get_rank()].contiguous()


class Step:
    def __init__(self, name, flags):
        task, strategy = name.split(".")
        if task == "bert":
            config = BertConfig(**BERT, hidden_dropout_prob=0, attention_probs_dropout_prob=0)
            net = BertForSequenceClassification(config)
            y = part(labels("labels", SEQUENCES, 2))
            self.x = part(labels("ids", SEQUENCES * LENGTH, config.vocab_size).view(SEQUENCES, LENGTH))
            self.loss = lambda output: F.cross_entropy(output.logits, y)
        else:
            if task == "resnet18":
                net, shape, classes = torchvision.models.resnet18(num_classes=CLASSES), (IMAGES, 3, SIZE, SIZE), CLASSES
            else:
                net = torch.nn.Sequential(
                    torch.nn.Linear(FEATURES, 64), torch.nn.ReLU(), torch.nn.Linear(64, DIGITS)
                )
                shape, classes = (IMAGES, FEATURES), DIGITS
            y, self.x = part(labels("labels", IMAGES, classes)), part(uniform("input", shape).float())
            self.loss = lambda output: F.cross_entropy(output, y)
        net = set_formula_weights(net).train()
        if strategy.startswith("fsdp"):
            self.net = self.fully_sharded(net, task, strategy)
        else:
            self.net = DistributedDataParallel(net, gradient_as_bucket_view=True)
        if strategy == "ddp_compiled":
            self.net = torch.compile(self.net)
        self.batches = 2 if strategy.endswith("_accumulate") else 1
        adamw = {"lr": flags.lr, "fused": True}
        if strategy == "zero":
            self.optimizer = ZeroRedundancyOptimizer(
                self.net.parameters(), torch.optim.AdamW, parameters_as_bucket_view=True, **adamw
            )
        else:
            self.optimizer = torch.optim.AdamW(self.net.parameters(), **adamw)

    @staticmethod
    def fully_sharded(net, task, strategy):
        """FSDP2 with the blocks of the model as units. fsdp_keep keeps parameters after forward."""
        options = {"reshard_after_forward": strategy != "fsdp_keep"}
        if strategy == "fsdp_bf16":
            options["mp_policy"] = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        blocks = net.bert.encoder.layer if task == "bert" else [net.layer1, net.layer2, net.layer3, net.layer4]
        for block in blocks:
            fully_shard(block, mesh=mesh, **options)
        return fully_shard(net, mesh=mesh, **options)

    def __call__(self):
        self.optimizer.zero_grad()
        for _ in range(self.batches):
            loss = self.loss(self.net(self.x))
            loss.backward()
        self.optimizer.step()
        return loss


def main():
    flags = argparse.ArgumentParser()
    flags.add_argument("--lr", type=float, required=True)
    flags = flags.parse_args()
    size = int(os.environ["WORLD_SIZE"])
    others = join_ranks()
    chosen = {}

    def losses(name, count):
        chosen.clear()
        chosen["step"] = Step(name, flags)
        values = [chosen["step"]().item() for _ in range(int(count))]
        total = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(total)
        return (total / size).tolist()

    def status_bytes(name):
        with open("/proc/self/status") as status:
            return next(int(line.split()[1]) * 1024 for line in status if line.startswith(name + ":"))

    def resident(name):
        before = status_bytes("VmRSS")
        step = Step(name, flags)
        for _ in range(2):
            step()
        with open("/proc/self/clear_refs", "w") as refs:
            refs.write("5")  # resets VmHWM
        for _ in range(2):
            step()
        return [status_bytes("VmHWM") - before]

    serve_ranks(others, lambda: chosen["step"](), {"losses": losses, "resident": resident})


if __name__ == "__main__":
    main()
