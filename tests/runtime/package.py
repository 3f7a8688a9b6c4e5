"""Compiles the model of tests/runtime/model_files.h with AOTInductor: package.py FILE.pt2"""

import sys

import torch
from torch._inductor import cpu_vec_isa


def formula(sizes, factor):
    count = torch.Size(sizes).numel()
    return torch.nn.Parameter(torch.sin(torch.arange(count, dtype=torch.float64) * factor).float().view(sizes), requires_grad=False)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.w1, self.b1 = formula((16, 8), 0.7), formula((16,), 0.3)
        self.w2, self.b2 = formula((4, 16), 1.1), formula((4,), 0.9)

    def forward(self, x):
        hidden = torch.relu(torch.nn.functional.linear(x, self.w1, self.b1))
        logits = torch.nn.functional.linear(hidden, self.w2, self.b2)
        return torch.softmax(logits, -1), logits.mean(-1)


def main():
    cpu_vec_isa.pick_vec_isa()  # its check fails with the following setting
    torch._inductor.config.aot_inductor.link_libtorch = False
    batch = torch.export.Dim("batch", min=1, max=1024)
    with torch.no_grad():
        program = torch.export.export(Net().eval(), (torch.randn(3, 8),), dynamic_shapes={"x": {0: batch}})
        torch._inductor.aoti_compile_and_package(program, package_path=sys.argv[1])


if __name__ == "__main__":
    main()
