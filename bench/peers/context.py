"""Attention over a divided sequence in Python PyTorch: the peer of bench/context/bench_context.cpp. Rank 0 starts the
other ranks, reads the commands, and passes them on. The commands are `numbers ORDER.ring` and `run N`.

torch.distributed.tensor.experimental.context_parallel registers its ring for the attention kernels of GPUs only. This
program therefore calls the functions of that ring itself, with the kernel of CPUs."""


import torch
import torch.distributed as dist
from torch.distributed.tensor.experimental._context_parallel import _attention as ring

from formula_weights import uniform
from rank_protocol import join_ranks, serve_ranks

HEADS, TOKENS, WIDTH = 4, 4096, 64
aten = torch.ops.aten


class RingAttention(torch.autograd.Function):
    @staticmethod
    def forward(context, query, key, value, causal):
        out, logsumexp = ring._templated_ring_attention(
            dist.group.WORLD, 2, aten._scaled_dot_product_flash_attention_for_cpu, query, key, value, is_causal=causal
        )
        context.save_for_backward(query, key, value, out, logsumexp)
        context.causal = causal
        return out

    @staticmethod
    def backward(context, gradient):
        query, key, value, out, logsumexp = context.saved_tensors
        gradients = ring._templated_ring_attention_backward(
            dist.group.WORLD,
            2,
            aten._scaled_dot_product_flash_attention_for_cpu_backward.default,
            gradient,
            "grad_out",
            query,
            key,
            value,
            out,
            logsumexp,
            context.causal,
            dropout_p=0.0,
        )
        return *gradients[:3], None


def part(whole, causal):
    """With load balancing, rank r of n has the chunks r and 2n - 1 - r of 2n chunks."""
    rank, size = dist.get_rank(), dist.get_world_size()
    if not causal:
        return whole.chunk(size, dim=2)[rank].contiguous()
    chunks = whole.chunk(2 * size, dim=2)
    return torch.cat([chunks[rank], chunks[2 * size - 1 - rank]], dim=2)


class Step:
    def __init__(self, name):
        self.causal = name.split(".")[0] == "causal"
        ring._cp_options.enable_load_balance = self.causal
        shape = (1, HEADS, TOKENS, WIDTH)
        names = ("query", "key", "value", "gradient")
        tensors = [part(uniform(name, shape).float(), self.causal) for name in names]
        self.inputs = [tensor.requires_grad_() for tensor in tensors[:3]]
        self.gradient = tensors[3]

    def __call__(self):
        for tensor in self.inputs:
            tensor.grad = None
        out = RingAttention.apply(*self.inputs, self.causal)
        out.backward(self.gradient)
        return out

    def numbers(self):
        out = self()
        sums = [out.detach().double().square().sum()] + [x.grad.double().square().sum() for x in self.inputs]
        total = torch.stack(sums)
        dist.all_reduce(total)
        return total.tolist()


def main():
    others = join_ranks()
    chosen = {}

    def numbers(name):
        chosen["step"] = Step(name)
        return chosen["step"].numbers()

    serve_ranks(others, lambda: chosen["step"](), {"numbers": numbers})


if __name__ == "__main__":
    main()
