"""A Triton Inference Server for bench/serve/bench_serve.cpp: the server in the package nvidia-pytriton, with an identity model in its
Python back end, on a free port. `serve_triton.py ELEMENTS` speaks the protocol of protocol.py, whose torch this environment does not
have: after "ready", `port` answers with the ports of HTTP and gRPC."""

import ctypes
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

import pytriton

MODEL = """
import sys
sys.path += %r  # the interpreter in Triton ignores PYTHONPATH
import triton_python_backend_utils as utils

class TritonPythonModel:
    def execute(self, requests):
        return [utils.InferenceResponse([utils.Tensor("y", utils.get_input_tensor_by_name(one, "x").as_numpy())]) for one in requests]
"""
CONFIG = """
backend: "python"
max_batch_size: 16
input { name: "x" data_type: TYPE_FP32 dims: %s }
output { name: "y" data_type: TYPE_FP32 dims: %s }
instance_group { kind: KIND_CPU count: 1 }
dynamic_batching { }
"""


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def write_files(folder, elements):
    """Writes a model repository, and a folder of back ends with the stub for this version of Python."""
    package = pathlib.Path(pytriton.__file__).parent / "tritonserver"
    (folder / "models/identity/1").mkdir(parents=True)
    (folder / "models/identity/1/model.py").write_text(MODEL % [path for path in sys.path if path.endswith("site-packages")])
    (folder / "models/identity/config.pbtxt").write_text(CONFIG % (elements, elements))
    shutil.copytree(package / "backends/python", folder / "backends/python")
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    shutil.copy(package / "python_backend_stubs" / version / "triton_python_backend_stub", folder / "backends/python")
    return package


def end_with_parent():
    """The benchmark may kill this script, and the server must then end, too."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def start(folder, package, port, grpc_port):
    libraries = [str(package / "lib"), str(package / "external_libs"), *map(str, package.parent.parent.glob("*pytriton.libs"))]
    environment = dict(os.environ, LD_LIBRARY_PATH=":".join(libraries))
    options = ["--model-repository", folder / "models", "--backend-directory", folder / "backends", "--http-address", "127.0.0.1"]
    options += ["--http-port", port, "--grpc-address", "127.0.0.1", "--grpc-port", grpc_port, "--allow-metrics", "false", "--log-info", "false", "--log-warning", "false"]
    return subprocess.Popen([package / "bin/tritonserver", *map(str, options)], stdin=subprocess.DEVNULL, stdout=2, env=environment, preexec_fn=end_with_parent)


def wait_until_ready(process, port):
    for _ in range(600):
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/models/identity/ready")
            return
        except OSError:
            if process.poll() is not None:
                sys.exit(f"tritonserver ended with status {process.returncode}")
            time.sleep(0.1)
    sys.exit("tritonserver did not become ready within a minute")


def main():
    port, grpc_port = free_port(), free_port()
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        process = start(folder, write_files(folder, sys.argv[1]), port, grpc_port)
        try:
            wait_until_ready(process, port)
            print("ready", flush=True)
            for line in sys.stdin:
                if line.split() == ["port"]:
                    print(port, grpc_port, flush=True)
        finally:
            process.terminate()
            process.wait()


if __name__ == "__main__":
    main()
