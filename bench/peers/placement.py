"""GPT-2 with weights on disk: accelerate.disk_offload, the peer of bench/placement/bench_placement.cpp. The arguments are the
number of layers and the folder for the weights. The command `batch N` sets the batch size."""

import sys

import torch
from accelerate import disk_offload
from transformers import GPT2Config, GPT2LMHeadModel

from formula_weights import labels, set_formula_weights
from protocol import serve

WORDS, LENGTH = 50257, 128


class Bench:
    def __init__(self, layers, folder):
        model = GPT2LMHeadModel(GPT2Config(vocab_size=WORDS, n_layer=layers)).eval()
        set_formula_weights(model)
        disk_offload(model, folder, execution_device=torch.device("cpu"))
        self.model = model
        self.set_batch(1)

    def set_batch(self, batch):
        self.ids = labels("ids", int(batch) * LENGTH, WORDS).view(int(batch), LENGTH)
        return [0]

    @torch.no_grad()
    def run(self, n):
        for _ in range(n):
            self.model(self.ids, use_cache=False)


bench = Bench(int(sys.argv[1]), sys.argv[2])
serve(bench.run, {"batch": bench.set_batch})
