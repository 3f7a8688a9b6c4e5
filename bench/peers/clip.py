"""Gradient clipping in Python PyTorch: the peer of bench/clip/bench_clip.cpp."""

import torch
from torch.nn.utils import clip_grad_norm_

from protocol import serve

PAIRS, MATRIX, VECTOR = 80, 311476, 1024


def make_parameters():
    torch.manual_seed(0)
    parameters = []
    for i in range(2 * PAIRS):
        size = VECTOR if i % 2 else MATRIX
        parameters.append(torch.randn(size).requires_grad_())
        parameters[-1].grad = torch.randn(size)
    return parameters


class Work:
    def __init__(self):
        self.parameters = make_parameters()
        self.adamw = torch.optim.AdamW(self.parameters, fused=True)
        self.limit = 1000.0

    def next_limit(self):
        """Decreases from call to call, so that every call clips the gradients."""
        self.limit = 1000.0 if self.limit < 1 else self.limit * 0.999
        return self.limit

    def clip(self):
        clip_grad_norm_(self.parameters, self.next_limit(), foreach=True)

    def clip_loop(self):
        clip_grad_norm_(self.parameters, self.next_limit(), foreach=False)

    def clip_nothing(self):
        clip_grad_norm_(self.parameters, 1e9, foreach=True)

    def step(self):
        self.adamw.step()

    def clip_then_step(self):
        self.clip()
        self.step()


def check():
    parameters = make_parameters()
    before = clip_grad_norm_(parameters, 1000, foreach=True)
    torch.optim.AdamW(parameters, fused=True).step()
    after = torch.nn.utils.get_total_norm([p.grad for p in parameters])
    return [before.item(), after.item(), sum(p.detach().abs().sum(dtype=torch.float64).item() for p in parameters)]


def main():
    work, chosen = Work(), []

    def use(name):
        chosen[:] = [getattr(work, name)]
        return ["ok"]

    def run(count):
        for _ in range(count):
            chosen[0]()

    serve(run, {"use": use, "check": check})


if __name__ == "__main__":
    main()
