"""Writes the reference files of tests/goldens/io/events with PyTorch's SummaryWriter, and reads ours with TensorBoard.

    python tools/goldens/events.py                     writes the goldens
    python tools/goldens/events.py --verify FOLDER     reads back what `io_test` wrote there (environment variable BELLOWS_IO_OUT)
"""

import argparse
import io
import pathlib
import shutil
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
OUT = ROOT / "tests" / "goldens" / "io" / "events"


def values(n):
    """Numbers of both signs and many sizes that C++ makes with the same bits: k * k * k / 1024 for k around 0."""
    return [float((k - n // 2) ** 3) / 1024 for k in range(n)]


def write():
    import numpy as np
    import tensorboard.compat.proto.event_pb2 as event_pb2
    import torch
    from torch.utils.tensorboard import SummaryWriter

    with tempfile.TemporaryDirectory() as folder:
        writer = SummaryWriter(folder, purge_step=7)
        writer.add_scalar("train/loss", 0.1, 7, walltime=1.5)
        writer.add_scalar("train/loss", float("inf"), 8)
        writer.add_scalar("new style", 0.25, 8, new_style=True)
        writer.add_scalar("double", 0.1, 8, new_style=True, double_precision=True)
        writer.add_histogram("spread", torch.tensor(values(201), dtype=torch.float64), 9)
        writer.add_histogram("positive", torch.tensor([3.0, 4.0, 1000.0], dtype=torch.float64), 9)
        writer.add_histogram("equal", torch.zeros(5, dtype=torch.float64), 9)
        writer.add_image("picture", torch.arange(24, dtype=torch.float32).reshape(3, 2, 4) / 23, 10)
        writer.add_image("bytes", np.arange(6, dtype=np.uint8).reshape(2, 3) * 40, 10, dataformats="HW")
        writer.add_text("notes", "# naïve *text*", 11)
        for summary in torch.utils.tensorboard.summary.hparams({"lr": 0.1, "model": "resnet", "epochs": 10}, {"accuracy": 0.5}):
            writer._get_file_writer().add_summary(summary)
        writer.close()
        (written,) = pathlib.Path(folder).iterdir()
        OUT.mkdir(parents=True, exist_ok=True)
        shutil.copy(written, OUT / "summary_writer.tfevents")
    # What Bellows does not write, a reader meets nonetheless.
    with tempfile.TemporaryDirectory() as folder:
        writer = SummaryWriter(folder)
        writer.add_graph(torch.nn.Linear(2, 1), torch.zeros(1, 2))
        writer._get_file_writer().add_event(event_pb2.Event(session_log=event_pb2.SessionLog(status=event_pb2.SessionLog.STOP)))
        writer.add_pr_curve("curve", torch.tensor([0, 1, 1]), torch.tensor([0.1, 0.6, 0.9]), 1)
        writer.close()
        (written,) = pathlib.Path(folder).iterdir()
        shutil.copy(written, OUT / "other.tfevents")


def session_groups(folder):
    """The rows of the HPARAMS tab, as its own back end makes them."""
    from tensorboard import context
    from tensorboard.backend.event_processing import data_provider, plugin_event_multiplexer
    from tensorboard.plugins import base_plugin
    from tensorboard.plugins.hparams import api_pb2, backend_context, get_experiment, list_session_groups

    multiplexer = plugin_event_multiplexer.EventMultiplexer()
    multiplexer.AddRunsFromDirectory(str(folder))
    multiplexer.Reload()
    provider = data_provider.MultiplexerDataProvider(multiplexer, str(folder))
    backend = backend_context.Context(base_plugin.TBContext(data_provider=provider))
    request = context.RequestContext()
    metadata = backend.hparams_metadata(request, "")
    experiment = get_experiment.Handler(request, backend, "", api_pb2.GetExperimentRequest()).run()
    wanted = api_pb2.ListSessionGroupsRequest(start_index=0, slice_size=10)
    wanted.allowed_statuses.extend([api_pb2.STATUS_SUCCESS, api_pb2.STATUS_FAILURE, api_pb2.STATUS_UNKNOWN, api_pb2.STATUS_RUNNING])
    wanted.col_params.add(metric=api_pb2.MetricName(tag="final/accuracy"))
    del metadata
    return experiment, list_session_groups.Handler(request, backend, "", wanted).run().session_groups


def verify(folder):
    import numpy as np
    import tensorboard
    from PIL import Image
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    resumed = EventAccumulator(str(folder / "resumed"), size_guidance={"scalars": 0})
    resumed.Reload()
    steps = [event.step for event in resumed.Scalars("loss")]
    assert steps == list(range(1, 31)), steps
    assert [event.value for event in resumed.Scalars("loss")] == [100.0 + s if s > 12 else s for s in steps]
    times = [event.wall_time for event in resumed.Scalars("loss")][12:]
    assert times == sorted(times)

    all_kinds = EventAccumulator(str(folder / "all"), size_guidance={"images": 0, "tensors": 0})
    all_kinds.Reload()
    tags = all_kinds.Tags()
    assert tags["scalars"] == ["train/loss", "na\ufffdme", "final/accuracy"], tags
    assert tags["images"] == ["picture", "bytes"], tags
    assert tags["histograms"] == ["spread", "positive", "equal"], tags
    assert [e.value for e in all_kinds.Scalars("train/loss")] == [np.float32(0.1), np.inf]
    spread = all_kinds.Histograms("spread")[0].histogram_value
    assert spread.num == 201 and sum(spread.bucket) == 201 and spread.sum == sum(values(201)), spread
    picture = Image.open(io.BytesIO(all_kinds.Images("picture")[0].encoded_image_string))
    expected = (np.arange(24, dtype=np.float32).reshape(3, 2, 4) / 23 * 255).astype(np.uint8).transpose(1, 2, 0)
    assert np.array_equal(np.asarray(picture), expected), np.asarray(picture)
    text = all_kinds.Tensors("notes/text_summary")[0]
    assert text.step == 11 and text.tensor_proto.string_val[0].decode() == "# naïve *text*"

    experiment, groups = session_groups(folder / "all")
    (group,) = groups
    assert {key: (v.number_value or v.string_value or v.bool_value) for key, v in group.hparams.items()} == {
        "lr": 0.1, "model": "resnet", "channels_last": True}, group
    assert [m.name.tag for m in experiment.metric_infos] == ["final/accuracy"], experiment
    (metric,) = group.metric_values
    assert metric.name.tag == "final/accuracy" and metric.value == 0.5, group
    (session,) = group.sessions
    assert session.status == 1 and session.start_time_secs > 1e9, session  # success
    print("all event files read back by tensorboard", tensorboard.__version__)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--verify", type=pathlib.Path)
    arguments = parser.parse_args()
    return verify(arguments.verify) if arguments.verify else write()


if __name__ == "__main__":
    main()
