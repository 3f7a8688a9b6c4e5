"""Training steps in stages with torch.distributed.pipelining: the peer of bench/pipeline/bench_pipeline.cpp. Rank 0 starts
the other ranks, reads the commands, and passes them on. The commands are `losses SCHEDULE COUNT` and `run N`."""


import torch
import torch.distributed as dist
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
)

from formula_weights import set_formula_weights, uniform
from rank_protocol import join_ranks, serve_ranks

BLOCKS, WIDTH, TOKENS, MICRO_BATCHES, LEARNING_RATE = 16, 256, 2048, 8, 0.01

SCHEDULES = {
    "gpipe": (ScheduleGPipe, 1),
    "1f1b": (Schedule1F1B, 1),
    "interleaved": (ScheduleInterleaved1F1B, 2),
    "zero_bubble": (ScheduleInterleavedZeroBubble, 2),
}


class ResidualBlock(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.LayerNorm(WIDTH)
        self.up = torch.nn.Linear(WIDTH, 4 * WIDTH)
        self.down = torch.nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


class Step:
    def __init__(self, name):
        schedule, per_rank = SCHEDULES[name]
        self.rank, size = dist.get_rank(), dist.get_world_size()
        count = per_rank * size
        model = set_formula_weights(torch.nn.Sequential(*[ResidualBlock() for _ in range(BLOCKS)]))
        blocks = list(model)
        length = BLOCKS // count
        stages = [
            PipelineStage(
                torch.nn.Sequential(*blocks[index * length : (index + 1) * length]), index, count, torch.device("cpu")
            )
            for index in range(self.rank, count, size)
        ]
        self.first, self.last = self.rank == 0, self.rank == size - 1
        loss = torch.nn.functional.mse_loss
        self.schedule = schedule(stages if per_rank > 1 else stages[0], MICRO_BATCHES, loss_fn=loss)
        self.optimizer = torch.optim.SGD([p for stage in stages for p in stage.submod.parameters()], lr=LEARNING_RATE)
        self.x = uniform("x", (TOKENS, WIDTH)).float()
        self.y = uniform("y", (TOKENS, WIDTH)).float()

    def __call__(self):
        self.optimizer.zero_grad()
        losses = []
        inputs = (self.x,) if self.first else ()
        if self.last:
            self.schedule.step(*inputs, target=self.y, losses=losses)
        else:
            self.schedule.step(*inputs)
        self.optimizer.step()
        loss = torch.stack(losses).mean().double() if self.last else torch.zeros((), dtype=torch.float64)
        dist.broadcast(loss.detach(), dist.get_world_size() - 1)  # as our step() does
        return loss.item()


def main():
    others = join_ranks()
    chosen = {}

    def losses(name, count):
        chosen.clear()
        chosen["step"] = Step(name)
        return [chosen["step"]() for _ in range(int(count))]

    serve_ranks(others, lambda: chosen["step"](), {"losses": losses})


if __name__ == "__main__":
    main()
