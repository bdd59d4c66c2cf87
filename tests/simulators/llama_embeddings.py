"""A real embedding service: llama.cpp's HTTP server with the local model's weights.

python -m tests.simulators.llama_embeddings: prints its address and ends with its standard
input. The model writes rather than embeds, so its vectors are good for the protocol only.
"""

from __future__ import annotations

import socket
import sys
from typing import Final

from config.embedded.model_server import weights

KEY: Final = "llama-key"
MODEL: Final = "smollm2-embeddings"
DIMENSIONS: Final = 576
# Longer texts are refused, and with them all of their batch.
TEXT_MAX_TOKENS: Final = 128


def main() -> None:
    """Serve until the starter is gone."""
    import xllamacpp  # noqa: PLC0415 - native code, wanted in this process alone

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    parameters = xllamacpp.CommonParams()
    parameters.model.path = str(weights())
    parameters.model_alias = {MODEL}
    parameters.hostnames = ["127.0.0.1"]
    parameters.port = port
    parameters.api_keys = [KEY]
    parameters.n_ctx = 2 * TEXT_MAX_TOKENS
    parameters.n_parallel = 2
    parameters.n_batch = parameters.n_ubatch = TEXT_MAX_TOKENS
    parameters.cpuparams.n_threads = 1
    parameters.cpuparams_batch.n_threads = 1
    parameters.embedding = True
    parameters.pooling_type = xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_MEAN
    parameters.endpoint_slots = False
    parameters.ui = False
    parameters.offline = True
    parameters.verbosity = 1
    server = xllamacpp.Server(parameters)
    sys.stdout.write(f"{server.listening_address}\n")
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    main()
